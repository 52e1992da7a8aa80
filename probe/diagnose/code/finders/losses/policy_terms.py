"""Losses of policies: what the log probability of an action is multiplied by, and compared with. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    SHAPED,
    Many,
    Value,
    alternatives,
    bare,
    comes_from,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.losses.bootstraps import backups, errors, is_place, networks_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, is_run_of_network, networks, product
from probe.diagnose.code.traits.backwards import CUTS, flows, layers_of
from probe.diagnose.code.traits.basic import is_mean_of, losses, terms
from probe.diagnose.code.traits.likelihoods import (
    action_of,
    alike,
    best_of_all,
    chosen_among,
    difference_of,
    factors_of,
    is_likelihood,
    is_rebuilt,
    is_surprise,
    likelihood_sign,
    source_of,
    steps_to,
)
from probe.diagnose.code.traits.updates import always_with, plain

FINDERS = Finders()
_DRAWS = ("sample", "rsample", "multinomial")
_CHOSEN_ANEW = frozenset({
    "part", "slice", "element", "index", "randperm", "permutation", "split", "tuple", "list", "range", "len", "arange", "rows", "to", "float",
    "unsqueeze", "squeeze", "torch.utils.data.DataLoader", "torch.utils.data.TensorDataset", "array_split", "shape", "size", "from_numpy", "view", "long",
})
"""Operations that only choose among rows that are there already."""


def _is_gradient(value: Value) -> bool:
    return value.op == "run"


def reaches(value: Value, start: Value) -> bool:
    """Whether a gradient of a value flows to one that it is made of."""
    return flows(value, lambda one: one is start)


def learned(computation: Computation) -> Iterator[Value]:
    """The terms of all losses, each once; of the terms that are means of sums, their addends."""
    seen: set[int] = set()
    for _, loss in losses(computation):
        for term, _ in terms(loss):
            for one, _ in addends(term):
                if id(one) not in seen:
                    seen.add(id(one))
                    yield one


def weighed(computation: Computation) -> Iterator[tuple[Value, Value, list[Value]]]:
    """The products of a log probability with something else, within losses: the product, the log probability, and
    the other factors that are no numbers."""
    seen: set[int] = set()
    for _, loss in losses(computation):
        for value in origins(loss, stop=("detach", "item", "run")):
            if value.op not in ("mul", "div", "masked_fill") or id(value) in seen:
                continue
            seen.add(id(value))
            factors = factors_of(value)
            likely = [one for one in factors if is_likelihood(one) or is_surprise(one)]
            others = [one for one in factors if one not in likely and number(one) is None]
            if len(likely) == 1 and others:
                yield value, likely[0], others


# Gradients ----------------------------------------------------------------------------------


@FINDERS.add("advantage-with-gradient")
def _advantage_with_gradient(program: Program) -> Iterator[Remark]:
    """The weight of a log probability is a return less a value that has a gradient."""
    yield from _weights_with_gradient(program, of_steps=False)


@FINDERS.add("error-shared-with-the-critic")
def _error_shared_with_the_critic(program: Program) -> Iterator[Remark]:
    """The weight of a log probability is the critic's own error, with its gradient."""
    yield from _weights_with_gradient(program, of_steps=True)


def _weights_with_gradient(program: Program, *, of_steps: bool) -> Iterator[Remark]:
    computation = computation_of(program)
    bootstrapped = {id(one.whole) for one in backups(computation)}
    for value, likely, others in weighed(computation):
        if value.where.no_grad or not flows(likely, _is_gradient):
            continue
        for one in others:
            judged = estimate_in(_in_exponent(one))
            if judged is None or not reaches(one, judged) or not is_fitted(computation, judged):
                continue
            if any(id(part) in bootstrapped for part in origins(one)) == of_steps:
                yield Remark(value.node, f"{short(value.node)} is differentiated by the values too: {short(one.node)} (line {one.line}) holds {short(judged.node)} with its graph")


def _in_exponent(value: Value) -> Value:
    """What the exponential or the softmax of a multiple is taken of, bounded or not: the advantage of a weight."""
    at = bare(value)
    while at.op in ("clamp", "minimum") and at.args:
        at = bare(at.args[0])
    if at.op not in ("exp", "softmax") or not at.args:
        return value
    at = bare(at.args[0])
    while at.op in ("mul", "div", "clamp") and at.args:
        at = bare(at.args[-1] if at.op == "mul" and not any(one.op == "run" for one in origins(at.args[0])) else at.args[0])
    return at


def estimate_in(value: Value) -> Value | None:
    """What a network gives, of a difference between something else and it."""
    value = bare(value)
    if value.op == "sub" and is_mean_of(value.args[1], value.args[0]):
        return estimate_in(value.args[0])
    parts = list(addends(value))
    if len(parts) < 2 and bare(value).op == "div":
        return estimate_in(bare(value).args[0])
    taken = [one for one, sign in parts if sign < 0 and any(each.op == "run" for each in origins(one, stop=(*CUTS, "step", "sample"))) and likelihood_sign(one) is None]
    given = [one for one, sign in parts if sign > 0 and not any(each.op == "run" and not each.where.no_grad for each in origins(one, stop=(*CUTS, "step", "sample")))]
    found = [each for each in origins(taken[0], stop=(*CUTS, "run")) if each.op == "run"] if len(taken) == 1 and given else []
    return next((one for one in found if not one.where.no_grad), found[0] if found else None)


def is_fitted(computation: Computation, value: Value) -> bool:
    """Whether what a network gives is compared with a target somewhere."""
    wanted = plain(value.args[0])
    return any(id(wanted) in networks_of(prediction) for _, prediction, _ in errors(computation)) or any(
        one.op in ("square", "pow") for one in computation.of("square", "pow") if id(wanted) in networks_of(one)
    )


@FINDERS.add("policy-without-gradient")
def _policy_without_gradient(program: Program) -> Iterator[Remark]:
    """A term of the loss weighs log probabilities that have no gradient."""
    computation = computation_of(program)
    known = networks(computation)
    for term in learned(computation):
        factors = product(term).above
        likely = [one for one in factors if is_likelihood(one) or _holds_likelihoods(one)]
        others = [one for one in factors if one not in likely and number(one) is None]
        learns = any(is_run_of_network(one, known) or one.op in ("unknown", "star") for one in origins(term, stop=CUTS) if not one.where.no_grad)
        learns = learns or any(constant(one.named.get("requires_grad")) is True for one in origins(term, stop=CUTS))  # a temperature
        cut = not learns and not flows(term, lambda one: is_run_of_network(one, known))
        if len(likely) == 1 and others and cut and not any(_may_learn(one) for one in others) and any(one.op == "run" for one in origins(likely[0])):
            why = _why(term, likely[0])
            if why is not None:
                yield Remark(likely[0].node, f"{short(likely[0].node)} has no gradient: {why}, and the loss multiplies it by {short(others[0].node)}")


def _may_learn(value: Value) -> bool:
    """Whether a factor is, or may be, a parameter of its own: a temperature."""
    plainly = bare(value)
    return plainly.op in ("exp", "softplus", "@input") or any(
        one.op == "torch.nn.Parameter" for one in origins(value, stop=CUTS)
    )


def _why(term: Value, value: Value) -> str | None:
    """What takes the gradient of a log probability away in a term; None where nothing is seen that does."""
    for one in (*origins(value), *origins(term)):
        if one.op in ("tensor", "detach", "item", "numpy", "as_tensor", "array") and (comes_from(value, one) or comes_from(one, value)):
            return f"{short(one.node)} (line {one.line}) takes the numbers alone"
    off = next((one for one in origins(value) if one.where.no_grad and (one.op in ("log_prob", "log_softmax", "run"))), None)
    return None if off is None else f"{short(off.node)} (line {off.line}) is computed with gradients turned off"


def _holds_likelihoods(value: Value) -> bool:
    """Whether a value is made of a list of log probabilities."""
    inner = value
    while inner.args and inner.op in ("tensor", "stack", "cat", "as_tensor", "array", "to", "float", "detach"):
        inner = inner.args[0]
        if isinstance(inner, Many):
            return len(inner.parts) == 1 and is_likelihood(inner.parts[0])
    return False


# Actions --------------------------------------------------------------------------------------


@FINDERS.add("greedy-actions")
def _greedy_actions(program: Program) -> Iterator[Remark]:
    """The log probability of the most probable action is learned from."""
    for value, likely, _ in weighed(computation_of(program)):
        chosen = action_of(likely)
        best = best_of_all(likely)
        if chosen is not None and (is_place(chosen) or bare(chosen).op == "mode") and flows(likely, _is_gradient):
            action = bare(chosen)
            if source_of(likely) & {id(one) for one in chosen_among(action)}:
                yield Remark(action.node, f"{short(action.node)} is the action that is taken, and {short(value.node)} (line {value.line}) learns from it: the most probable action is never compared with another")
        elif best is not None and flows(likely, _is_gradient):
            yield Remark(best.node, f"{short(best.node)} takes the most probable action, and {short(value.node)} (line {value.line}) learns from its probability: it is never compared with another")


@FINDERS.add("action-drawn-twice")
def _action_drawn_twice(program: Program) -> Iterator[Remark]:
    """An action is drawn for its log probability alone, and another one of the same policy is taken."""
    computation = computation_of(program)
    draws = list(computation.of(*_DRAWS))
    for value, likely, _ in weighed(computation):
        chosen = action_of(likely)
        drawn = None if chosen is None else bare(chosen)
        if drawn is None or drawn.op not in _DRAWS or drawn.where.maybe or _is_used(computation, drawn):
            continue
        policy = networks_of(drawn)
        taken = [one for one in draws if one is not drawn and policy and networks_of(one) == policy and _is_used(computation, one)]
        if taken:
            yield Remark(drawn.node, f"{short(drawn.node)} draws another action than {short(taken[0].node)} in line {taken[0].line}, which is the one that is taken: {short(value.node)} (line {value.line}) rewards the wrong one")


def _is_used(computation: Computation, drawn: Value) -> bool:
    """Whether anything else than log probabilities is made of a draw."""
    waiting, seen = [drawn], {id(drawn)}
    while waiting:
        for user in computation.users(waiting.pop()):
            if user.op in ("log_prob", "gather", "tuple", "list", "@object"):
                continue
            if user.op not in ("squeeze", "unsqueeze", "view", "detach", "long", "reshape"):
                return True
            if id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return False


# Ratios ---------------------------------------------------------------------------------------


def _clamps(computation: Computation) -> Iterator[tuple[Value, Value, Value, Value]]:
    """What is clamped on both sides: the clamp, the value, the least and the largest one."""
    for value in computation.of("clamp"):
        of, low, high = value.argument("input", 0), value.argument("min", 1), value.argument("max", 2)
        if of is not None and low is not None and high is not None:
            yield value, bare(of), low, high


@FINDERS.add("ratio-clipped-around-zero")
def _ratio_clipped_around_zero(program: Program) -> Iterator[Remark]:
    """A ratio of probabilities is clamped to what lies around 0 and not around 1."""
    for value, ratio, low, high in _clamps(computation_of(program)):
        pair = number(low), number(high)
        around = (pair[0] is not None and pair[1] is not None and pair[0] == -pair[1] and pair[1] < 1) or (low.op == "neg" and same(low.args[0], high))
        if around and difference_of(ratio) is not None:
            yield Remark(value.node, f"{short(value.node)} keeps the ratio of the probabilities (line {ratio.line}) around 0: it is 1 where nothing has changed")


@FINDERS.add("ratio-without-exponential")
def _ratio_without_exponential(program: Program) -> Iterator[Remark]:
    """A difference, or a quotient, of log probabilities is clamped around 1 as if it were a ratio of probabilities."""
    for value, ratio, low, high in _clamps(computation_of(program)):
        if not (_is_near_one(low, below=True) and _is_near_one(high, below=False)):
            continue
        if ratio.op in ("sub", "div") and len(ratio.args) == 2 and is_likelihood(ratio.args[0]) and flows(ratio.args[0], _is_gradient):
            yield Remark(value.node, f"{short(value.node)} takes {short(ratio.node)} (line {ratio.line}) for a ratio of probabilities: it is made of their logarithms")


def _is_near_one(value: Value, *, below: bool) -> bool:
    known = number(value)
    if known is not None:
        return 0 < known < 1 if below else 1 < known < 3
    return value.op == ("sub" if below else "add") and any(number(one) == 1 for one in value.args)


@FINDERS.add("ratio-of-itself")
def _ratio_of_itself(program: Program) -> Iterator[Remark]:
    """The new log probability is compared with its own numbers, in each of several passes over the same data."""
    for ratio, new, old in _compared_with_itself(program):
        if bare(new) is bare(old):
            yield Remark(ratio.node, f"{short(ratio.node)} compares the policy with itself: {short(old.node)} is {short(new.node)} of the same weights")


@FINDERS.add("old-policy-recomputed")
def _old_policy_recomputed(program: Program) -> Iterator[Remark]:
    """The old log probability is computed anew for each minibatch, by the weights of that moment."""
    yield from _recomputed(program, in_batches=True)


@FINDERS.add("ratio-of-itself")
def _recomputed_in_each_pass(program: Program) -> Iterator[Remark]:
    """The old log probability is computed anew in each pass over all of the data."""
    yield from _recomputed(program, in_batches=False)


def _recomputed(program: Program, *, in_batches: bool) -> Iterator[Remark]:
    for ratio, new, old in _compared_with_itself(program):
        chosen = any(one.where.loops and one.op in ("rows", "element", "randperm", "permutation") for one in _data_of(new))
        if bare(new) is not bare(old) and chosen == in_batches:
            yield Remark(ratio.node, f"{short(ratio.node)} compares the policy with itself: {short(old.node)} (line {old.line}) is computed anew in each pass, by the weights that the last one left")


def _compared_with_itself(program: Program) -> Iterator[tuple[Value, Value, Value]]:
    computation = computation_of(program)
    known = networks(computation)
    for _, ratio, low, high in _clamps(computation):
        found = difference_of(ratio)
        if found is None or not (_is_near_one(low, below=True) and _is_near_one(high, below=False)):
            continue
        new, old = found
        if (alike(bare(new), bare(old)) or is_rebuilt(bare(new), bare(old))) and flows(new, _is_gradient) and not flows(old, _is_gradient) and _is_repeated(new, old, known):
            yield ratio, new, old


@FINDERS.add("old-policy-recomputed")
def _copied_in_each_pass(program: Program) -> Iterator[Remark]:
    """The old log probability is that of a copy which gets the weights of the policy anew in each pass."""
    computation = computation_of(program)
    loads = [one for one in computation.of("load_state_dict") if one.where.loops and len(one.args) > 1 and one.args[1].op == "state_dict"]
    known = networks(computation) if loads else set()
    for _, ratio, low, high in _clamps(computation) if loads else ():
        found = difference_of(ratio)
        if found is None or not (_is_near_one(low, below=True) and _is_near_one(high, below=False)):
            continue
        new, old = found
        for load in loads:
            copied, policy = plain(load.args[0]), plain(load.args[1].args[0])
            inside = [{id(one) for one in layers_of(each)} for each in (copied, policy)]
            last = [_last_layers(one) for one in (old, new)]
            beside = old.where.loops[: len(load.where.loops)] == load.where.loops and not inside[0] & inside[1]
            if all(last) and last[0] <= inside[0] and last[1] <= inside[1] and beside and always_with(load, ratio) and _is_repeated(new, old, known):
                when = "before" if load.number < old.number else "after"
                yield Remark(load.node, f"{short(load.node)} gives the old policy the weights of that moment {when} each {short(ratio.node)} (line {ratio.line}), which compares the policy with itself")


def _last_layers(likely: Value) -> set[int]:
    """The layers that give the distribution which a log probability is of."""
    given = [one.args[0] for one in steps_to(likely) if one.op in ("log_prob", "gather", "part") and one.args]
    return {id(plain(one.args[0])) for one in origins(given[-1], stop=("run",)) if one.op == "run"} if given else set()


def _is_repeated(new: Value, old: Value, known: set[int]) -> bool:
    """Whether one of the loops around both goes over the same data again in each pass."""
    data = [one for one in origins(new) if one.op != "run" and one.args]
    for loop in new.where.loops:
        if loop not in old.where.loops or not isinstance(loop, (ast.For, ast.While)):
            continue
        inner = [one for one in _data_of(new) if loop in one.where.loops]
        inner += [one for one in origins(new) if one.op == "run" and loop in one.where.loops and not is_run_of_network(one, known)]
        if data and all(one.op in _CHOSEN_ANEW or one.op == "@constant" for one in inner) and not _goes_over_data(loop, new):
            return True
    return False


def _goes_over_data(loop: ast.AST, value: Value) -> bool:
    """Whether a loop's own elements are among the data that a value is computed from."""
    return any(one.where.loops[-1:] == (loop,) and one.op in ("element", "index", "rows", "part", "next") and one.node is loop for one in _data_of(value))


def _data_of(value: Value) -> Iterator[Value]:
    """What a network computes a value from."""
    seen: set[int] = set()
    for one in origins(value):
        if one.op == "run":
            for given in (*one.args[1:], *one.named.values()):
                for each in origins(given, stop=("run",)):
                    if each.op != "run" and not any(inner.op == "run" for inner in origins(each)) and id(each) not in seen:
                        seen.add(id(each))
                        yield each


# Critics and judges -------------------------------------------------------------------------------


@FINDERS.add("policy-against-its-critic")
def _policy_against_its_critic(program: Program) -> Iterator[Remark]:
    """A loss is what the critic says of the policy's actions, without a minus."""
    computation = computation_of(program)
    critics = _critics(computation)
    for call, loss in losses(computation):
        for term, sign in addends(loss):
            judged = _judged(term)
            if judged is None or sign < 0 or id(plain(judged.args[0])) not in critics:
                continue
            actor = next((one for given in judged.args[1:] for one in origins(given, stop=CUTS) if one.op == "run" and id(plain(one.args[0])) not in networks_of_critic(judged)), None)
            if actor is not None and reaches(judged, actor) and id(plain(actor.args[0])) not in critics:
                yield Remark(call.node, f"{short(call.node)} makes {short(judged.node)} (line {judged.line}) smaller, what the critic says of the policy's own actions")


def networks_of_critic(judged: Value) -> set[int]:
    """The layers between a judgement and the first place where something else than a layer stands."""
    found: set[int] = set()
    at = judged
    while at.op in ("run", "relu", "tanh", "gelu", "silu", "leaky_relu", "elu", "dropout", "mish", *SHAPED) and at.args:
        if at.op == "run":
            found.add(id(plain(at.args[0])))
        at = at.args[1] if at.op == "run" and len(at.args) > 1 else at.args[0]
    return found


def _judged(term: Value) -> Value | None:
    """What a critic gives, of itself or of the smaller one of two."""
    term = bare(term)
    while term.op in ("part", "min", "minimum", "stack", "list", "cat", "star") or isinstance(term, Many):
        inner = term.parts[:1] if isinstance(term, Many) else term.args[:1]
        if not inner:
            return None
        term = bare(inner[0])
    return term if term.op == "run" and len(term.args) > 1 else None


def _critics(computation: Computation) -> set[int]:
    """The last layers of networks that are compared with a reward and what follows it."""
    wanted = {id(one.whole) for one in backups(computation) if not _is_cost(one.reward)}
    found: set[int] = set()
    for _, prediction, target in errors(computation):
        if any(id(one) in wanted for each in alternatives(target) for one in origins(each, stop=("run",))):
            judged = _judged(prediction)
            found |= {id(plain(judged.args[0]))} if judged is not None else set()
    return found


def _is_cost(value: Value) -> bool:
    return bare(value).op != "neg" and any(word in short(value.node).lower() for word in ("cost", "loss", "penal", "error", "energy", "regret"))


@FINDERS.add("temperature-the-wrong-way")
def _temperature_the_wrong_way(program: Program) -> Iterator[Remark]:
    """A learned temperature is multiplied by a constant log probability, without a minus."""
    for call, loss in losses(computation_of(program)):
        for term, sign in addends(loss):
            made = product(term)
            trained = [one for one in made.above if _is_temperature(one)]
            others = [one for one in made.above if one not in trained and number(one) is None]
            if len(trained) != 1 or len(others) != 1 or made.below or flows(term, _is_gradient):
                continue
            for part, direction in addends(others[0]):
                found = likelihood_sign(part)
                if found is not None and found * direction * sign * made.sign > 0:
                    yield Remark(call.node, f"{short(call.node)} minimizes {short(term.node)} (line {term.line}) without a minus: it moves the temperature away from where the entropy is the one that is wanted")


def _is_temperature(value: Value) -> bool:
    """Whether a value is a parameter of its own, or its exponential."""
    value = bare(value)
    value = bare(value.args[0]) if value.op in ("exp", "softplus") and value.args else value
    return value.op == "torch.nn.Parameter" or (value.op in ("zeros", "tensor", "ones", "full", "log") and constant(value.named.get("requires_grad")) is True)


@FINDERS.add("one-label-for-both")
def _one_label_for_both(program: Program) -> Iterator[Remark]:
    """One loss asks a judge for the same answer to data and to what a generator gives."""
    for _, loss in losses(computation_of(program)):
        asked = [one for one in _judgements(loss) if _label(one.args[1]) is not None]
        for one in asked:
            if not _is_cut(one.args[0]):
                continue
            judge = networks_of_critic(bare(one.args[0]))
            if any(_is_data(other.args[0]) and _label(other.args[1]) != _label(one.args[1]) and networks_of_critic(bare(other.args[0])) == judge for other in asked):
                continue
            for other in asked:
                judges = networks_of_critic(bare(one.args[0])), networks_of_critic(bare(other.args[0]))
                if other is not one and judges[0] == judges[1] != set() and _is_data(other.args[0]) and _label(one.args[1]) == _label(other.args[1]):
                    yield Remark(one.node, f"{short(one.node)} asks for the same answer to generated samples as line {bare(other.args[0]).line} does for real ones")


def _judgements(loss: Value) -> Iterator[Value]:
    for one in origins(loss, stop=("run", "detach")):
        if one.op in ("binary_cross_entropy", "binary_cross_entropy_with_logits", "mse_loss") and len(one.args) > 1:
            yield one


def _label(value: Value) -> float | None:
    """The number that a constant tensor is full of."""
    value = bare(value)
    if value.op in ("ones", "ones_like", "zeros", "zeros_like"):
        return 1.0 if value.op.startswith("ones") else 0.0
    return number(value.argument("fill_value", 1)) if value.op in ("full", "full_like", "new_full") else None


def _is_cut(value: Value) -> bool:
    """Whether a judge sees what another network gives, without its gradient."""
    judge = networks_of_critic(bare(value))
    cut = [one for one in origins(value) if (one.op == "detach" or one.where.no_grad) and networks_of(one) and not networks_of(one) & judge]
    return bool(cut)


def _is_data(value: Value) -> bool:
    """Whether a judge sees data alone."""
    judge = networks_of_critic(bare(value))
    return networks_of(value) <= judge
