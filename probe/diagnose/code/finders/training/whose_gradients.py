"""What optimizers hold, clear and clip, and how their rates are set. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Instance,
    Many,
    Table,
    Value,
    alternatives,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends, module, product
from probe.diagnose.code.traits.backwards import CUTS, reached_from
from probe.diagnose.code.traits.held import Source, apart, contents, groups, optimizers, owner, sources
from probe.diagnose.code.traits.updates import backwards, is_optimizer, is_schedule, runs
from probe.diagnose.code.traits.weights import has_parameters, in_place

FINDERS = Finders()
_CLIPS = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_", "torch.nn.utils.clip_grad.clip_grad_norm_")
_WITH_PARAMETERS = (
    "Linear", "Conv", "Embedding", "BatchNorm", "LayerNorm", "GroupNorm", "LSTM", "GRU", "RNN", "MultiheadAttention", "Bilinear", "Transformer",
    "Parameter",
)
_JOINS = frozenset({"run", "linear", "matmul", "mul", "add", "sub", "div", "einsum", "cat", "cdist", "cosine_similarity"})
_FILLED = frozenset({"zeros", "ones", "full", "tensor", "rand", "randn", "FloatTensor", "torch.FloatTensor", "torch.Tensor"})
_COMPUTED = frozenset({
    "exp", "neg", "mul", "add", "sub", "div", "pow", "square", "sigmoid", "softplus", "softmax", "log_softmax", "tanh", "clamp", "relu", "log", "sqrt", "sum",
    "mean", "item", "detach", "part", "element", "stack", "cat", "append", "sum_of", "text", "print", "tolist", "list", "tuple", "dict", "zip", "enumerate",
    "items", "values", "unbind",
})
"""What is done with a number that a loss is weighted by, and with what holds it."""


# Which networks ----------------------------------------------------------------


def _all_apart(some: list[Source] | None, others: list[Source] | None, computation: Computation) -> bool:
    """Whether two lists of parameters certainly have none in common."""
    return bool(some and others) and all(apart(a.of, b.of, computation) for a in some or () for b in others or ())


@FINDERS.add("clipped-another")
def _clipped_another(program: Program) -> Iterator[Remark]:
    """Between a backward and a step, the gradients of a network are clipped that the step does not change."""
    computation = computation_of(program)
    for clip in computation.of(*_CLIPS):
        clipped = sources(clip.argument("parameters", 0))
        if not clipped:
            continue
        steps: list[Value] = []
        for value in computation.values[clip.number + 1 :]:
            if value.op in ("backward", "zero_grad", "unscale_") or runs(value) != runs(clip):
                break
            if value.op == "step" and value.args and not is_schedule(value.args[0]):
                steps.append(value)
        held = [sources(one.args[0].argument("params", 0)) if is_optimizer(one.args[0]) else None for one in steps]
        if steps and all(_all_apart(clipped, one, computation) for one in held):
            yield Remark(clip.node, f"{short(clip.node)} clips the gradients of {_named(clipped)}, and {short(steps[0].node)} (line {steps[0].line}) changes {_named(held[0] or [])}")


def _named(found: list[Source]) -> str:
    """The networks in a list, as the program names them."""
    texts = list(dict.fromkeys(one.of.node.arg if isinstance(one.of.node, ast.arg) else short(one.of.node, 30) for one in found))
    return ", ".join(texts[:3])


@FINDERS.add("gradients-of-another-loss")
def _gradients_of_another_loss(program: Program) -> Iterator[Remark]:
    """A step also follows what the loss of another network's step has left: nothing clears it in between."""
    computation = computation_of(program)
    if any(value.data in ("requires_grad", "grad") for value in computation.of("set_attribute")) or any(one.args[0].op == "grad" for one in computation.of("zero") if one.args):
        return
    events = [value for value in computation.of("backward", "step", "zero_grad") if value.args]
    losses = {id(value): loss for value, loss in backwards(computation)}
    for place, step in enumerate(events):
        if step.op != "step" or not is_optimizer(step.args[0]) or step.where.maybe:
            continue
        held = sources(step.args[0].argument("params", 0))
        if not held or any(one.chosen for one in held):
            continue
        before = [one for one in events[:place] if _in_one_pass(one, step)]
        after = [one for one in events[place + 1 :] if _in_one_pass(one, step)] if step.where.loops else []
        left: list[Value] = []
        other_step: Value | None = None
        for event in [*reversed(before), *reversed(after)]:
            if event.op == "zero_grad" and not _leaves(event.args[0], step.args[0], held, computation):
                break
            if event.op == "step" and is_optimizer(event.args[0]) and _all_apart(sources(event.args[0].argument("params", 0)), held, computation):
                other_step = event
            elif event.op == "step" and event is not step and not is_schedule(event.args[0]):
                break
            if event.op == "backward":
                loss = losses.get(id(event))
                if loss is None:
                    break
                if gradient_reaches(loss, held, computation):
                    left.append(event)
                    others = sources(other_step.args[0].argument("params", 0)) if other_step is not None else None
                    others_own = others and gradient_reaches(loss, others, computation) and (
                        not gradient_reaches(losses[id(left[0])], others, computation) or _only_through(loss, held, others, computation)
                    )
                    if len(left) > 1 and others_own:
                        yield Remark(step.node, f"{short(step.node)} also uses the gradients that {short(event.node)} (line {event.line}) left: nothing clears them in between")
                        break


def _only_through(loss: Value, held: list[Source], others: list[Source], computation: Computation) -> bool:
    """Whether gradients of a loss come to networks only by way of other ones, which judge what they give."""
    judges = {id(part) for one in others for part in contents(one.of, computation)}
    judged = [one for one in origins(loss, stop=CUTS) if one.op == "run" and id(module(one.args[0])) in judges]
    inside = {id(part) for one in held for part in contents(one.of, computation)}
    return bool(judged) and not any(one.op == "run" and id(module(one.args[0])) in inside for one in origins(loss, stop=CUTS, without=judged))


def _in_one_pass(one: Value, other: Value) -> bool:
    """Whether two values are computed in the same run of the same loop."""
    return runs(one) == runs(other) and one.where.loops == other.where.loops


def _leaves(cleared: Value, optimizer: Value, held: list[Source], computation: Computation) -> bool:
    """Whether clearing certainly leaves the gradients of what an optimizer holds."""
    if cleared is optimizer:
        return False
    if is_optimizer(cleared):
        return _all_apart(sources(cleared.argument("params", 0)), held, computation)
    return _all_apart([Source(module(cleared), False)], held, computation)


def gradient_reaches(loss: Value, held: list[Source], computation: Computation) -> bool:
    """Whether gradients of a loss flow into networks."""
    inside = {id(part) for one in held for part in contents(one.of, computation)}
    return any(
        not one.where.no_grad and ((one.op == "run" and id(module(one.args[0])) in inside) or (one.op == "torch.nn.Parameter" and id(one) in inside))
        for one in reached_from(loss)
    )


# What no optimizer holds -----------------------------------------------------------


@FINDERS.add("in-no-optimizer")
def _in_no_optimizer(program: Program) -> Iterator[Remark]:
    """A loss is computed with a layer that stands apart from all that the optimizers hold."""
    computation = computation_of(program)
    for step, layer, held in _not_held(computation):
        if not any(_holds_neighbour(layer, source.of, computation) for source in held):
            yield Remark(step.node, f"{short(step.node)} gives the parameters of line {layer.line}, {short(layer.node)}, gradients, and no optimizer holds them")


@FINDERS.add("layer-in-no-group")
def _layer_in_no_group(program: Program) -> Iterator[Remark]:
    """The groups of an optimizer hold some layers of a network, and leave one out that the loss is computed with."""
    computation = computation_of(program)
    for step, layer, held in _not_held(computation):
        if len({id(one.of) for one in held}) > 1 and any(_holds_neighbour(layer, source.of, computation) for source in held):
            yield Remark(layer.node, f"{short(layer.node)} is in no group of the optimizer, and {short(step.node)} (line {step.line}) gives it gradients")
    yield from _left_out_by_name(computation)


@FINDERS.add("in-no-optimizer")
def _term_of_no_optimizer(program: Program) -> Iterator[Remark]:
    """A term of a loss depends on the parameters of one network alone, and no optimizer holds them."""
    computation = computation_of(program)
    made = optimizers(computation)
    given = [sources(one.argument("params", 0)) for one in made]
    steps = [value for value in computation.of("step") if value.args and not is_schedule(value.args[0])]
    if not made or any(one is None for one in given) or not all(is_optimizer(one.args[0]) for one in steps) or any(True for _ in computation.of("add_param_group")):
        return
    inside = {id(part) for found in given for one in found or () for part in contents(one.of, computation)}
    asked = {
        id(part) for value in computation.of("parameters", "named_parameters", "requires_grad_", "load_state_dict", "modules", "children")
        for part in contents(module(value.args[0]), computation) if value.args and not _only_clipped(value, computation)
    } - inside | _frozen_alone(computation)
    for value, loss in backwards(computation):
        terms = [] if value.where.no_grad else [term for term, _ in addends(loss)]
        for term in terms if len(terms) > 1 else ():
            reached = list(reached_from(term))
            layers = list(_layers(reached))
            if not layers or any(id(one) in inside for one in reached) or any(id(layer) in inside or id(layer) in asked or layer.where.loops for layer in layers):
                continue
            if any(one.op == "run" and not (one.args and module(one.args[0]).op.startswith("torch.nn.")) for one in reached) or not any(id(layer) in inside for other in terms for layer in _layers(list(reached_from(other)))):
                continue
            yield Remark(value.node, f"{short(value.node)} gives the parameters of {short(layers[0].node)} (line {layers[0].line}) gradients by way of {short(term.node)} (line {term.line}), and no optimizer holds them")
            return


def _not_held(computation: Computation) -> Iterator[tuple[Value, Value, list[Source]]]:
    """Each backward whose loss is computed with a layer that no optimizer holds; the layer; and what the optimizers hold."""
    held: list[Source] = []
    made = optimizers(computation)
    for one in made:
        found = sources(one.argument("params", 0))
        if found is None:
            return
        held += found
    for added in computation.of("add_param_group"):
        found = sources(added.args[1]) if len(added.args) > 1 else None
        if found is None:
            return
        held += found
    steps = [value for value in computation.of("step") if value.args and not is_schedule(value.args[0])]
    if not held or not steps or not all(is_optimizer(one.args[0]) or one.args[0].op in ("@input", "@object") for one in steps):
        return
    inside = {id(part) for one in held for part in contents(one.of, computation)}
    asked = {
        id(part) for value in computation.of("parameters", "named_parameters", "requires_grad_", "state_dict", "load_state_dict", "modules", "children")
        for part in contents(module(value.args[0]), computation) if not _only_clipped(value, computation) and value.args
    } - inside | _frozen_alone(computation)
    reported: set[int] = set()
    for value, loss in backwards(computation):
        if value.where.no_grad:
            continue
        mine = owner(value, computation)
        if any(not any(owner(other, computation) is mine for other in made if other.node is one.node) for one in made):
            continue
        reached = list(reached_from(loss))
        for layer in (*_layers(reached), *(one for one in reached if _is_leaf(one, computation))):
            fresh = id(layer) not in inside and id(layer) not in asked and id(layer) not in reported
            at_home = owner(layer, computation) is mine or (mine is None and not layer.op.startswith("torch.nn."))
            if fresh and at_home and layer.where.loops == () and _is_joined(layer, inside, reached):
                reported.add(id(layer))
                yield value, layer, held


def _frozen_alone(computation: Computation) -> set[int]:
    """The layers whose weight is told whether it is trained: `emb.weight.requires_grad_(False)`."""
    told = [one.args[0] for one in computation.of("requires_grad_", "set_attribute") if one.args and (one.op == "requires_grad_" or one.data == "requires_grad")]
    return {id(module(one.args[0])) for one in told if one.op in ("weight", "bias") and one.args}


def _only_clipped(value: Value, computation: Computation) -> bool:
    """Whether parameters are asked for to clip or to give them to an optimizer."""
    users = computation.users(value)
    return value.op in ("parameters", "named_parameters") and bool(users) and all(one.op in _CLIPS or is_optimizer(one) for one in users)


def _layers(reached: list[Value]) -> Iterator[Value]:
    """The layers and parameters that values are computed with."""
    for one in reached:
        layer = module(one.args[0]) if one.op == "run" else one
        name = layer.op.rpartition(".")[2]
        frozen = constant(layer.named.get("requires_grad")) is False or layer.where.no_grad
        if layer.op.startswith("torch.nn.") and layer.op.count(".") == 2 and name.startswith(_WITH_PARAMETERS) and has_parameters(layer) and not frozen:
            yield layer


def _is_leaf(value: Value, computation: Computation) -> bool:
    """Whether a value is a tensor that asks for a gradient, belongs to no module, and is only computed with."""
    made = value.args[0] if value.op == "requires_grad_" and len(value.args) == 1 and not value.named else value
    asks = made is not value or constant(value.named.get("requires_grad")) is True
    if not asks or made.op not in _FILLED or value.where.no_grad or any(True for _ in computation.of("add_param_group")):
        return False
    waiting, seen = [value], {id(value)}
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            if user.op == "set_attribute" and user.args[0] is not at:
                continue
            if user.op not in _COMPUTED or (isinstance(user.node, ast.Call) and in_place(user)):
                return False
            holds = isinstance(user, (Many, Table)) or user.op in ("append", "zip", "enumerate", "items", "values", "unbind", "element")
            if holds and id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return True


def _is_joined(layer: Value, inside: set[int], reached: list[Value]) -> bool:
    """Whether a layer works on what a held network gives, or a held network on what the layer gives."""

    def held(value: Value) -> bool:
        return any((one.op == "run" and id(module(one.args[0])) in inside) or id(one) in inside for one in reached_from(value))

    def own(value: Value) -> bool:
        return any((one.op == "run" and module(one.args[0]) is layer) or one is layer for one in reached_from(value))

    for one in reached:
        if one.op == "run" and module(one.args[0]) is layer:
            if any(held(part) for part in one.args[1:]):
                return True
        elif one.op == "run" and id(module(one.args[0])) in inside:
            if any(own(part) for part in one.args[1:]):
                return True
        elif one.op in _JOINS and len(one.args) > 1 and (layer.op == "torch.nn.Parameter" or not layer.op.startswith("torch.nn.")):
            parts = [*one.args]
            if any(own(a) and held(b) for a in parts for b in parts if a is not b):
                return True
    return False


def _holds_neighbour(layer: Value, held: Value, computation: Computation) -> bool:
    """Whether an object of the program has both a layer and what is held in it."""
    for whole in computation.of("@object"):
        inside = {id(part) for part in contents(whole, computation)} if isinstance(whole, Instance) and whole.of is not None and computation.program.is_module_class(whole.of) else set()
        if id(layer) in inside and id(held) in inside and whole is not held:
            return True
    return False


def _left_out_by_name(computation: Computation) -> Iterator[Remark]:
    """Layers of a network whose names begin with none of the beginnings that the groups choose by."""
    for optimizer in optimizers(computation):
        given = groups(optimizer)
        found = [_beginning(one.entries.get("params")) for one in given or () if isinstance(one, Table)]
        chosen = [one for one in found if one is not None]
        if not found or len(chosen) != len(found):
            continue
        whole = chosen[0][0]
        if not isinstance(whole, Instance) or any(one[0] is not whole for one in chosen):
            continue
        words = [word for _, word in chosen]
        for name, part in whole.attributes.items():
            layers = [one for one in contents(part, computation) if one.op.startswith("torch.nn.") and one.op.rpartition(".")[2].startswith(_WITH_PARAMETERS)]
            if layers and not any(name.startswith(word.rstrip(".")) or word.startswith(name) for word in words):
                yield Remark(optimizer.node, f"{short(optimizer.node)} chooses by names that begin with {' or '.join(map(repr, words))}, and {name} (line {part.line}) is in no group")


def _beginning(value: Value | None) -> tuple[Value, str] | None:
    """The network, and how the names begin, of `[p for n, p in network.named_parameters() if n.startswith(word)]`."""
    found = sources(value)
    if found is None or len(found) != 1 or value is None or not isinstance(value.node, (ast.ListComp, ast.GeneratorExp)):
        return None
    tests = value.node.generators[0].ifs
    if len(value.node.generators) != 1 or len(tests) != 1 or not isinstance(test := tests[0], ast.Call):
        return None
    if isinstance(test.func, ast.Attribute) and test.func.attr == "startswith" and len(test.args) == 1 and isinstance(word := test.args[0], ast.Constant):
        return found[0].of, str(word.value)
    return None


# Copies and schedules ---------------------------------------------------------------


@FINDERS.add("copied-optimizer")
def _copied_optimizer(program: Program) -> Iterator[Remark]:
    """An optimizer is copied by itself and used: its copy holds copies of the parameters, which no network has."""
    computation = computation_of(program)
    for value in computation.of("deepcopy"):
        known = any(is_optimizer(one) for one in alternatives(value.args[0])) if value.args else False
        uses = {one.op for one in computation.users(value)}
        sets = [constant(one.args[1]) for group in _groups_in(value, computation) for one in computation.users(group) if one.op == "set_item"]
        steps = {"step", "zero_grad"} <= uses or (known and "step" in uses) or "lr" in sets
        if (steps or (known and "set_attribute" in uses)) and "params" not in sets and "add_param_group" not in uses and "parameters" not in uses:
            yield Remark(value.node, f"{short(value.node)} copies the parameters along with the optimizer: its steps change no network")


def _groups_in(optimizer: Value, computation: Computation) -> Iterator[Value]:
    """The groups of an optimizer that a program takes one by one."""
    for value in computation.users(optimizer):
        if value.op == "param_groups":
            yield from (one for one in computation.users(value) if one.op in ("element", "part"))


@FINDERS.add("schedule-of-the-other-optimizer")
def _schedule_of_the_other_optimizer(program: Program) -> Iterator[Remark]:
    """Two schedules of one kind are made for one optimizer, and none for the other one."""
    computation = computation_of(program)
    schedules = [value for value in computation.values if is_schedule(value)]
    joined = {id(one) for value in schedules for part in origins(value) for one in part.made_of() if is_schedule(one)}
    alone = [value for value in schedules if id(value) not in joined]
    steps = {id(value.args[0]) for value in computation.of("step") if value.args}
    rates = {id(one) for value in computation.of("param_groups") for one in value.args}
    for place, first in enumerate(alone):
        for second in alone[:place]:
            of, other = first.argument("optimizer", 0), second.argument("optimizer", 0)
            if of is None or of is not other or first.op != second.op or not is_optimizer(of):
                continue
            alike = len(first.args) == len(second.args) and all(same(a, b) or a is b for a, b in zip(first.args[1:], second.args[1:], strict=True))
            left = [
                one for one in optimizers(computation)
                if one is not of and runs(one) == runs(of) and id(one) in steps and id(one) not in rates and not any(value.argument("optimizer", 0) is one for value in schedules)
            ]
            if alike and left:
                yield Remark(first.node, f"{short(first.node)} is the second schedule of {short(of.node, 40)} (line {of.line}), and the optimizer of line {left[0].line} has none")


# Rates of groups -------------------------------------------------------------------------


def _set_rates(computation: Computation) -> Iterator[tuple[Value, Value, Value, Value]]:
    """Where a rate is set: what sets it, the group, its optimizer, and the rate."""
    for value in computation.of("set_item"):
        if constant(value.args[1]) == "lr" and (found := _group_of(value.args[0])) is not None:
            yield value, value.args[0], found, value.args[2]
    for value in computation.of("update"):
        rate = value.named.get("lr")
        if rate is None and len(value.args) > 1 and isinstance(value.args[1], Table):
            rate = value.args[1].entries.get("lr")
        if rate is not None and (found := _group_of(value.args[0])) is not None:
            yield value, value.args[0], found, rate


def _group_of(value: Value) -> Value | None:
    """The optimizer that a value is a group of."""
    inner = value.args[0] if value.op in ("element", "part") and value.args else None
    if inner is not None and inner.op in ("list", "reversed", "enumerate") and inner.args:
        inner = inner.args[0]
    return inner.args[0] if inner is not None and inner.op == "param_groups" and is_optimizer(inner.args[0]) else None


@FINDERS.add("rates-of-groups-lost")
def _rates_of_groups_lost(program: Program) -> Iterator[Remark]:
    """All groups are given one rate, and the optimizer is made with a rate of its own for each."""
    set_rates = list(_set_rates(computation_of(program)))
    for value, group, optimizer, rate in set_rates:
        given = groups(optimizer)
        alike = {constant(one.args[1]) for _, one, of, each in set_rates if of is optimizer and one.op == "part" and each is rate and len(one.args) == 2}
        every = (given is not None and alike >= set(range(len(given)))) or group.op == "element" or (group.op == "part" and group.args[1].op == "index")
        if given is None or len(given) < 2 or not every or value.where.under or not value.where.loops:
            continue
        rates = [one.entries.get("lr") for one in given if isinstance(one, Table)]
        known = [one for one in rates if one is not None]
        differ = len(known) != len(rates) or any(not same(one, known[0]) for one in known[1:])
        if known and differ and ((group.op == "part" and constant(group.args[1]) is not None) or not _of_the_group(rate, group, value)):
            yield Remark(value.node, f"{short(value.node)} is set to {short(rate.node)} for each group, and {short(optimizer.node)} (line {optimizer.line}) gives them different rates")
            if len(alike) > 1:
                return


def _of_the_group(rate: Value, group: Value, value: Value) -> bool:
    """Whether a rate depends on the group that it is set for: on what it holds, its place, or what is paired with it."""
    loop = value.where.loops[-1]
    return any(
        one is group or one.op in ("param_groups", "initial_lr", "base_lrs", "unknown", "get_last_lr") or (one.node is loop and one.op != "@constant") or (one.op == "either" and loop in one.where.loops)
        for one in origins(rate)
    )


@FINDERS.add("first-group-only")
def _first_group_only(program: Program) -> Iterator[Remark]:
    """A rate that changes is set in the first of several groups, and in no other one."""
    found = list(_set_rates(computation_of(program)))
    for value, group, optimizer, rate in found:
        given = groups(optimizer)
        if given is None or len(given) < 2 or group.op != "part" or constant(group.args[1]) != 0 or number(rate) is not None:
            continue
        if all(other.op == "part" and constant(other.args[1]) == 0 for _, other, of, _ in found if of.node is optimizer.node):
            yield Remark(value.node, f"{short(value.node)} sets the rate of the first of {len(given)} groups, and nothing sets that of the others")


@FINDERS.add("factors-multiplied-up")
def _factors_multiplied_up(program: Program) -> Iterator[Remark]:
    """In each pass, the rate that the last pass left is multiplied by a factor of the count, which is meant for the first."""
    for value, group, _, rate in _set_rates(computation_of(program)):
        factors = product(rate)
        old = [one for one in factors.above if one.op == "part" and constant(one.args[1]) == "lr" and one.args[0] is group]
        others = [one for one in factors.above if not any(one is each for each in old)]
        if len(old) != 1 or value.where.under or not others or not value.where.loops:
            continue
        counted = [one for one in others if any(_is_count(each, value) for each in origins(one))]
        if counted and not any(_is_count(each, value) for one in factors.below for each in origins(one)) and not any(one.op == "either" and number(one.args[-1]) == 1 for one in counted):
            yield Remark(value.node, f"{short(value.node)} multiplies the rate that the pass before left by {short(counted[0].node)}, which is meant for the first rate")


def _is_count(value: Value, where: Value) -> bool:
    """Whether a value counts the passes of a loop around another one."""
    return value.op == "index" and value.node in where.where.loops and bool(value.args) and not any(one.op in ("param_groups", "len") for one in origins(value.args[-1], stop=("index",)))

