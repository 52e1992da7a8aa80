"""What values are learned towards: the reward, and the discounted value of what follows. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Instance,
    Many,
    Value,
    alternatives,
    bare,
    constant,
    number,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, product
from probe.diagnose.code.traits.backwards import flows, layers_of
from probe.diagnose.code.traits.basic import is_mean_of, without_small
from probe.diagnose.code.traits.extents import last
from probe.diagnose.code.traits.likelihoods import is_likelihood, likelihood_sign
from probe.diagnose.code.traits.updates import plain
from probe.diagnose.code.traits.uses import holds_outputs

FINDERS = Finders()
_ERRORS = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
_LARGEST = ("max", "amax", "maximum")
_JOINED = ("cat", "stack", "list", "tuple", "add", "sub", "mul", "clamp", "tanh", "rsample", "sample", "exp", "relu", "either", "softmax", "log_softmax")
_ANSWERED = ("step", "item", "append", "tensor", "as_tensor", "sample", "argmax", "multinomial", "builtins.int", "int", "lt", "le", "gt", "ge", "eq", "or", "and", "numpy")
"""Operations that networks' results go into where an environment answers."""
_COPIES = ("copy", "clone", "deepcopy", "array", "tensor")
_VECTORS = ("array", "asarray", "tensor", "as_tensor", "float32", "FloatTensor", "torch.FloatTensor")
_DISCOUNTS = ("gamma", "discount", "discount_factor", "gam", "discount_rate")
_DRAWN = ("randn_like", "randn", "rand_like", "@constant", "shape", "normal")


class Backup(NamedTuple):
    """`reward + discount * factors * future`, with what else is added to it."""

    whole: Value
    reward: Value
    factors: list[Value]
    """What the value of what follows is multiplied by, without the discount."""
    future: Value
    others: list[Value]


@lru_cache(maxsize=1)
def backups(computation: Computation) -> tuple[Backup, ...]:
    """The sums of a reward and of the discounted value of what follows, each once; found once for all finders."""
    seen: dict[int, Backup] = {}
    for value in computation.of("add", "sub"):
        found = _backup(value, computation)
        if found is not None:
            seen.setdefault(id(found.future), found)
    return tuple(seen.values())


def _backup(value: Value, computation: Computation) -> Backup | None:
    """The sum as one; an environment of the program may have computed the reward as a sum of its own."""
    whole = _backup_of(value, list(addends(value)), computation)
    return whole or (_backup_of(value, [(value.args[0], 1), (value.args[1], 1)], computation) if value.op == "add" and len(value.args) == 2 else None)


def _backup_of(value: Value, parts: list[tuple[Value, int]], computation: Computation) -> Backup | None:
    rewards, discounted, others = [], [], []
    for one, sign in parts:
        made = product(one)
        ahead = [factor for factor in made.above if _is_computed(factor) or holds_outputs(computation, factor)]
        if any(_is_discount(factor) or stored_discount(computation, factor) for factor in made.above) and len(ahead) == 1 and not made.below and sign * made.sign > 0:
            discounted.append((made.above, ahead[0]))
        elif not _is_computed(one) and not holds_outputs(computation, one) and number(one) is None and not any(number(factor) is not None for factor in made.above):
            rewards.append(one)
        else:
            others.append(one)
    if len(discounted) != 1 or len(rewards) != 1 or len(parts) > 4:
        return None
    factors, future = discounted[0]
    if any(one is bare(rewards[0]) for one in origins(future)) or future.op in (*_ERRORS, "mean", "sum"):
        return None
    return Backup(value, rewards[0], [one for one in factors if one is not future and not _is_discount(one) and stored_discount(computation, one) != "alike"], future, others)


def stored_discount(computation: Computation, value: Value) -> str | None:
    """Whether a value is read from an array of discounts: "alike" where all are powers of one, "ending" where some are 0."""
    value = bare(value)
    if value.op != "part" or bare(value.args[0]).op not in ("zeros", "ones", "empty"):
        return None
    written = [one.args[2] for one in computation.users(bare(value.args[0])) if one.op == "set_item" and len(one.args) > 2]
    found = [each for one in written for each in alternatives(one)]
    powers = [one for one in found if _is_discount(one) or (one.op == "pow" and _is_discount(one.args[0]))]
    if not powers or any(number(one) != 0 for one in found if not any(one is each for each in powers)):
        return None
    return "alike" if len(powers) == len(found) else "ending"


def _is_discount(value: Value) -> bool:
    """Whether a value is a number just below 1, or a setting that is called a discount."""
    known = number(value)
    if known is not None or value.op == "@constant":
        return known is not None and 0.5 < known < 1
    name = value.data if value.op == "@input" else constant(value.args[1]) if value.op == "part" and len(value.args) > 1 else value.op
    return isinstance(name, str) and name.lower() in _DISCOUNTS


def _is_computed(value: Value) -> bool:
    """Whether a network computes a value, and no environment answers to it."""
    return is_place(unmasked(value)) or any(one.op == "run" for one in origins(value, stop=_ANSWERED))


def networks_of(value: Value) -> set[int]:
    """The layers whose results a value is made of."""
    return {id(plain(one.args[0])) for one in origins(value) if one.op == "run" and (len(one.args) > 1 or one.named)}


def errors(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Each comparison of a prediction with a target by their distance: it, and the two, in both orders."""
    for value in computation.of(*_ERRORS):
        if len(value.args) > 1:
            yield value, value.args[0], value.args[1]
            yield value, value.args[1], value.args[0]
    for value in computation.of("sub"):
        if len(value.args) == 2 and any(is_squared(user, value) for user in computation.users(value)):
            yield value, value.args[0], value.args[1]
            yield value, value.args[1], value.args[0]


def is_squared(user: Value, value: Value) -> bool:
    """Whether a value takes the square, or the size, of another one."""
    if user.op == "pow":
        return user.args[0] is value and number(user.argument("exponent", 1)) == 2
    return user.op in ("square", "abs") or (user.op == "mul" and list(user.args).count(value) == 2)


def compared(computation: Computation, chosen: bool = False) -> Iterator[tuple[Value, Value, Value, Backup]]:
    """Each comparison of a prediction with a backup (if `chosen`, also with one in some rows): it, the prediction, what it is
    compared with, and the backup."""
    found = backups(computation)
    for value, prediction, target in errors(computation):
        inner = {id(one) for one in _summed(target, chosen)}
        for one in found:
            if id(one.whole) in inner and not any(each is one.whole for each in origins(prediction)):
                yield value, prediction, target, one


def _summed(value: Value, chosen: bool = False) -> Iterator[Value]:
    """A value, and the sums that it is an alternative of, another shape or type of, or a sum of; if `chosen`, also those that
    it is in some rows."""
    for one in alternatives(value):
        one = bare(one) if one.op != "either" else one
        yield one
        if one.op in ("add", "sub"):
            yield from _summed(one.args[0])
        if chosen and one.op == "where" and len(one.args) == 3:
            yield from (each for given in one.args[1:] for each in _summed(given))
        if one.op == "add" and len(one.args) > 1:
            yield from _summed(one.args[1])


def unmasked(value: Value) -> Value:
    """x of what sets x to 0 in some rows."""
    while True:
        value = bare(value)
        if value.op in ("masked_fill", "set_item") and value.args and constant(value.args[-1]) in (0, 0.0):
            value = value.args[0]
        elif value.op == "where" and len(value.args) == 3:
            inner = [one for one in value.args[1:] if number(one) != 0 and bare(one).op not in ("zeros_like", "zeros")]
            if len(inner) != 1:
                return value
            value = inner[0]
        else:
            return value


@FINDERS.add("index-taken-for-value")
def _index_taken_for_value(program: Program) -> Iterator[Remark]:
    """The number of the best action is discounted as if it were its value."""
    for one in backups(computation_of(program)):
        future = unmasked(one.future)
        if is_place(future):
            yield Remark(one.whole.node, f"{short(one.whole.node)} discounts the number of the best action (line {future.line}), not its value")


def is_place(value: Value) -> bool:
    """Whether a value says where the largest one is."""
    value = bare(value)
    if value.op in ("argmax", "argmin"):
        return True
    over = value.args[0] if value.op in ("part", "indices") and value.args else None
    return over is not None and over.op == "max" and (value.op == "indices" or constant(value.args[1]) == 1)


@FINDERS.add("larger-of-two-critics")
def _larger_of_two_critics(program: Program) -> Iterator[Remark]:
    """Of the estimates of two networks, the larger one is what is learned towards."""
    for one in backups(computation_of(program)):
        for part, _ in addends(unmasked(one.future)):
            judges = larger_of(bare(part))
            if judges is not None:
                yield Remark(part.node, f"{short(part.node)} takes the larger one of what two networks say of what follows")


def larger_of(value: Value) -> tuple[Value, Value] | None:
    """Two values of separate networks, of which a value is the larger one."""
    if value.op == "part" and value.args[0].op == "max" and constant(value.args[1]) == 0:
        value = value.args[0]
    found: list[Value] = []
    inner = value
    if value.op in _LARGEST and value.args:
        inner = value.args[0]
        while inner.op in ("stack", "cat") and inner.args:
            inner = inner.args[0]
        found = inner.parts if isinstance(inner, Many) else list(value.args)
    elif value.op == "where" and len(value.args) == 3:
        test, first, second = (bare(one) for one in value.args)
        pair = [bare(one) for one in test.args]
        if (test.op in ("lt", "le") and pair == [second, first]) or (test.op in ("gt", "ge") and pair == [first, second]):
            found = [first, second]
    if len(found) == 1 and isinstance(inner, Many) and inner.grown and bare(found[0]).op == "run":
        return found[0], found[0]
    if len(found) != 2:
        return None
    one, other = networks_of(found[0]), networks_of(found[1])
    last = [_judge(each) for each in found]
    return (found[0], found[1]) if one and other and None not in last and last[0] is not last[1] and one != other else None


def _judge(value: Value) -> Value | None:
    """The layer that gives a value."""
    value = bare(value)
    while value.op == "part" and value.args:
        value = bare(value.args[0])
    return plain(value.args[0]) if value.op == "run" else None


@FINDERS.add("entropy-taken-away")
def _entropy_taken_away(program: Program) -> Iterator[Remark]:
    """The log probability of the next action is added to the value of what follows."""
    for one in backups(computation_of(program)):
        future = unmasked(one.future)
        parts = list(addends(future))
        if len(parts) != 2:
            continue
        for part, sign in parts:
            direction = likelihood_sign(part)
            rest = next(each for each, _ in parts if each is not part)
            if direction is not None and direction * sign > 0 and likelihood_sign(rest) is None and _is_computed(rest):
                yield Remark(future.node, f"{short(future.node)} adds the log probability to the value of what follows: it is smaller the more the policy explores")


@FINDERS.add("judged-by-the-trained-network")
def _judged_by_the_trained_network(program: Program) -> Iterator[Remark]:
    """The copy chooses the next action, and the network in training says what it is worth."""
    for _, prediction, _, one in compared(computation_of(program)):
        value = unmasked(one.future)
        chosen = _chosen(value)
        if chosen is None or not is_place(chosen):
            continue
        judge, chooser = networks_of(value.args[0]), networks_of(chosen)
        trained = networks_of(prediction)
        if judge and chooser and judge <= trained and not chooser & trained:
            yield Remark(value.node, f"{short(value.node)} is the trained network's value of the action that the copy has chosen (line {bare(chosen).line})")


def _chosen(value: Value) -> Value | None:
    """The place that a value is taken from: of `gather` and of an index."""
    if value.op == "gather":
        return value.argument("index", len(value.args) - 1)
    if value.op == "part" and isinstance(value.args[1], Many) and len(value.args[1].parts) == 2:
        return value.args[1].parts[1]
    return None


@FINDERS.add("target-with-gradient")
def _target_with_gradient(program: Program) -> Iterator[Remark]:
    """The network that is compared with the target also computes it, and gradients flow into both."""
    for value, prediction, target, one in compared(computation_of(program), chosen=True):
        trained = networks_of(prediction)
        gives = lambda each, trained=trained: each.op == "run" and id(plain(each.args[0])) in trained  # noqa: E731
        if not value.where.no_grad and flows(target, gives) and flows(one.future, gives) and flows(prediction, gives) and not _is_actor(prediction):
            yield Remark(value.node, f"{short(value.node)} is differentiated through its target too: {short(one.future.node)} (line {one.future.line}) keeps its graph")


@FINDERS.add("target-with-gradient")
def _later_predictions_with_gradient(program: Program) -> Iterator[Remark]:
    """The target of each prediction is the one after it, with its gradient; of the last one, what happened."""
    for value, prediction, target in errors(computation_of(program)):
        joined = bare(target)
        parts = joined.args[0].parts if joined.op == "cat" and joined.args and isinstance(joined.args[0], Many) else []
        if len(parts) != 2 or value.where.no_grad or _is_computed(parts[1]) or bare(parts[1]) is bare(prediction):
            continue
        later = parts[0]
        if later.op == "part" and later.args[1].op == "slice" and number(later.args[1].args[0]) == 1 and bare(later.args[0]) is bare(prediction) and flows(later, lambda one: one.op == "run"):
            yield Remark(value.node, f"{short(value.node)} is differentiated through its target too: {short(later.node)} (line {later.line}) keeps its graph")


def _is_actor(value: Value) -> bool:
    return any(is_likelihood(one) for one in origins(value))


@FINDERS.add("target-of-the-same-state")
def _target_of_the_same_state(program: Program) -> Iterator[Remark]:
    """What follows is computed from the states that are predicted themselves."""
    computation = computation_of(program)
    written = frozenset(id(bare(one.args[0])) for one in computation.of("set_item") if one.args)
    written |= {id(part) for one in computation.of("append") if isinstance(one.args[1], Many) for part in one.args[1].parts if part.op == "cat"}
    for _, prediction, _, one in compared(computation):
        ahead, now = data_of(unmasked(one.future), written), data_of(prediction, written)
        if ahead and now and ahead <= now and bare(one.future).op != "part":
            yield Remark(one.future.node, f"{short(one.future.node)} is the value of the states that {short(prediction.node)} (line {prediction.line}) predicts, not of those that follow")


@FINDERS.add("target-network-never-updated")
def _never_updated(program: Program) -> Iterator[Remark]:
    """What follows is judged by another network, which is given the weights of the trained one before the training, and then nothing."""
    computation = computation_of(program)
    for value, prediction, _, one in compared(computation):
        ran = [plain(each.args[0]) for each in origins(one.future, ("run",)) if each.op == "run" and each.where.no_grad]
        said = bare(prediction, "gather", "part")
        own = [plain(said.args[0])] if said.op == "run" else []
        for load, copy, of in _taken_over(computation) if len(ran) == 1 and len(own) == 1 and ran[0] is not own[0] and value.where.loops else ():
            if load.where.loops or ran[0] not in layers_of(copy) or own[0] not in layers_of(of) or load.number > value.number:
                continue
            touched = [each for each in computation.values if each.number != load.number and each.op in _CHANGED and each.args and any(part is copy for part in origins(each.args[0]))]
            if all(each.op == "parameters" and all(_only_freezes(computation, user) for user in computation.users(each)) for each in touched):
                yield Remark(one.future.node, f"{short(one.future.node)} is judged by the network that {short(load.node)} (line {load.line}) gives the trained one's weights once, before the training, and that nothing changes afterwards")
                return


def _taken_over(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Where a network is given the weights of another one: the load, or the copy, and the two networks."""
    for load in computation.of("load_state_dict"):
        given = load.args[1] if len(load.args) > 1 else load
        if given.op == "state_dict" and given.args:
            yield load, plain(load.args[0]), plain(given.args[0])
    for copy in computation.values:
        of = copy.data if isinstance(copy, Instance) else computation.copies.get(id(copy))
        if isinstance(of, Value) and (isinstance(copy, Instance) or copy.op == "torch.nn.Sequential"):
            yield copy, copy, of


_CHANGED = ("parameters", "named_parameters", "load_state_dict", "state_dict", "set_attribute", "step", "buffers", "apply", "lerp", "modules")
"""Operations that change weights, or give them away."""


def _only_freezes(computation: Computation, value: Value) -> bool:
    """Whether parameters are only gone over to be kept without a gradient."""
    used = computation.users(value)
    return value.op == "element" and bool(used) and all((one.op == "set_attribute" and one.data == "requires_grad") or one.op == "requires_grad_" for one in used)


def _key(value: Value) -> tuple[object, ...]:
    """What tells data from other data: the same entry of a batch is the same data each time."""
    if value.op == "part" and isinstance(known := constant(value.args[1]), (int, str)):
        return (*_key(bare(value.args[0])), known)
    return (id(value),)


def _array_of(value: Value, row: Many) -> Value | None:
    """The array that is made of a row of numbers on the way to a value: another array is another sample."""
    array = None
    while value is not row and (value.parts if isinstance(value, Many) else value.args):
        array, value = value, value.parts[0] if isinstance(value, Many) else value.args[0]
    return array if array is not None and array.op in _VECTORS else None


def _copy_of(value: Value, written: frozenset[int]) -> Value | None:
    """The copy that a value is of an array that is `written` into: it holds what stood there at its time."""
    if id(bare(value)) in written:
        while value.args and value.op in (*KEPT, *SHAPED):
            if value.op in _COPIES:
                return value
            value = value.args[0].parts[0] if isinstance(value.args[0], Many) and len(value.args[0].parts) == 1 else value.args[0]
    return None


def data_of(value: Value, written: frozenset[int]) -> set[tuple[object, ...]] | None:
    """The data that networks compute a value from; None where a part of what they give is taken. `written`: the arrays that
    something writes into, and what was joined before it was stored, which is one thing."""
    found: set[tuple[object, ...]] = set()
    seen: set[tuple[int, bool]] = set()
    waiting, ran = [(value, False)], False
    while waiting:
        at, inside = waiting.pop()
        made, at = at, bare(at)
        if inside and isinstance(at, Many) and len(at.parts) > 1 and not at.grown and (array := _array_of(made, at)) is not None:
            found.add((id(array),))
            continue
        if inside and (copy := at if at.op == "cat" and id(at) in written else _copy_of(made, written)) is not None:
            found.add((id(copy),))
            continue
        if (id(at), inside) in seen or at.op in _DRAWN:
            continue
        seen.add((id(at), inside))
        if at.op == "run":
            ran = True
            waiting += [(one, True) for one in [*at.args[1:], *at.named.values()]]
        elif isinstance(at, Many) or (inside and at.op in _JOINED):
            waiting += [(one, inside) for one in at.made_of()]
        elif any(one.op == "run" for one in origins(at)):
            if at.op == "part" and not isinstance(constant(at.args[1]), int) and not (isinstance(at.args[1], Many) and not inside):
                return None
            if at.op in ("part", "gather", *_LARGEST, "min", "amin", "minimum", "sum", "mean"):
                waiting.append((at.args[0], inside))
                waiting += [(one, inside) for one in at.args[1:] if at.op in ("minimum", "min", "maximum", "max")]
            elif at.op in _JOINED:
                waiting += [(one, inside) for one in at.args]
            else:
                return None
        elif inside:
            found.add(_key(at))
    return found if ran else None


@FINDERS.add("reward-inside-the-product")
def _reward_inside_the_product(program: Program) -> Iterator[Remark]:
    """The discount multiplies the sum of the reward and of the value of what follows."""
    computation = computation_of(program)
    for value, prediction, target in errors(computation):
        made = product(target)
        inner = [bare(one) for one in made.above if not _is_discount(one)]
        if len(inner) != 1 or len(made.above) != 2 or made.below or inner[0].op != "add":
            continue
        sides = [_is_computed(one) for one in inner[0].args]
        if sorted(sides) == [False, True] and all(number(one) is None for one in inner[0].args) and networks_of(prediction):
            yield Remark(bare(target).node, f"{short(bare(target).node)} multiplies the reward of this step by the discount too (it is compared in line {value.line})")


@FINDERS.add("best-action-trained")
def _best_action_trained(program: Program) -> Iterator[Remark]:
    """The value of the best action is compared with what followed another one."""
    for value, prediction, _, one in compared(computation_of(program)):
        best = best_of(bare(prediction))
        if best is None or value.where.no_grad or not flows(prediction, lambda each: each.op == "run") or any(each is best for each in origins(one.reward)):
            continue
        if not any(each.op in ("argmax", "max") and each.args and bare(each.args[0]) is bare(best.args[0]) for each in origins(one.reward)):
            yield Remark(value.node, f"{short(value.node)} compares the reward of the action that was taken with {short(prediction.node)} (line {prediction.line}), the value of the best one")


def best_of(value: Value) -> Value | None:
    """Where a value is the largest one that a network gives: the maximum, or the place of it."""
    if value.op == "part" and value.args[0].op == "max" and constant(value.args[1]) == 0:
        value = value.args[0]
    over = number(value.argument("dim", 1)) if value.op == "max" else None
    if over in (1, -1) and bare(value.args[0]).op in ("run", "add", "sub"):
        return value
    chosen = _chosen(value)
    place = None if chosen is None else bare(chosen)
    return place if place is not None and place.op == "argmax" and bare(place.args[0]) is bare(value.args[0]) else None


@FINDERS.add("untried-taken-for-failed")
def _untried_taken_for_failed(program: Program) -> Iterator[Remark]:
    """The target is 0 for each action that was not taken: the value of the one that was is put among zeros."""
    computation = computation_of(program)
    known = {id(one.whole) for one in backups(computation)}
    for value, prediction, target in errors(computation):
        filled = bare(target)
        if filled.op not in ("set_item", "scatter") or bare(prediction).op != "run" or not filled.args or last(prediction) == 1 or last(bare(prediction)) == 1:
            continue  # one value for each state has no others
        base = bare(filled.args[0])
        if base.op in ("zeros", "zeros_like") and any(id(each) in known for one in _summed(filled.args[-1]) for each in (one, *one.args)):
            yield Remark(value.node, f"{short(value.node)} asks for 0 of each action that was not taken: {short(base.node)} (line {base.line}) gets the value of one alone")


@FINDERS.add("returns-of-scaled-advantages")
def _returns_of_scaled_advantages(program: Program) -> Iterator[Remark]:
    """The returns that values learn are made of advantages that are scaled already."""
    for value, _, target in errors(computation_of(program)):
        for one in _summed(_chosen_rows(target)):
            for scaled, other in (one.args, one.args[::-1]) if one.op == "add" and len(one.args) == 2 else ():
                inner = centred(bare(scaled))
                if inner is not None and any(bare(each) is bare(other) for each in origins(inner)) and any(_is_discount(each) for each in origins(inner)):
                    yield Remark(one.node, f"{short(one.node)} adds advantages that are scaled already (line {bare(scaled).line}) to the values: {short(value.node)} (line {value.line}) learns no returns")


def _chosen_rows(value: Value) -> Value:
    """A value, of which rows are chosen."""
    value = bare(value)
    while value.op in ("part", "rows") and value.args:
        value = bare(value.args[0])
    return value


def centred(value: Value) -> Value | None:
    """x of (x - mean(x)) / std(x)."""
    if value.op != "div" or len(value.args) != 2:
        return None
    above, below = bare(value.args[0]), without_small(value.args[1])
    return below.args[0] if above.op == "sub" and below.op == "std" and is_mean_of(above.args[1], above.args[0]) else None
