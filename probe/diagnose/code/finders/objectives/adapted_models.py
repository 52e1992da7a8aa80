"""Models that are adapted to one task after another. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Instance,
    Many,
    Table,
    Value,
    alternatives,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import last_word, short
from probe.diagnose.code.traits.backwards import NUMBERS, flows, has_gradient, layers_of
from probe.diagnose.code.traits.updates import backwards, is_optimizer, modules, optimizer_of, plain, runs

FINDERS = Finders()


@FINDERS.add("cut-off-from-the-loss")
def _adapted_apart(program: Program) -> Iterator[Remark]:
    """An optimizer steps a network, and each loss is one of a copy of it, or of copies of its parameters without their graph."""
    computation = computation_of(program)
    found = list(backwards(computation))
    stepped = {id(made): made for one in computation.of("step") if (made := optimizer_of(one)) is not None}
    if not found or any(one.data == "grad" for one in computation.of("set_attribute")) or any(True for one in computation.of("grad") if len(one.args) == 1):
        return
    for optimizer in stepped.values():
        held = modules(optimizer)
        if len(held) != 1 or any(plain(one.args[0]) is held[0] for one in computation.of("load_state_dict")):
            continue
        of, begins = held[0], _starts(held[0])
        if any(flows(part, begins) for call, loss in found for part in (loss, *call.args)) or not any(has_gradient(loss) or any(one.op == "requires_grad_" for one in origins(loss)) for _, loss in found):
            continue
        for call, loss in found:
            copied = next((one for one in _parents(loss, computation) if _is_copy(computation, one, of) and flows(loss, _starts(one))), None)
            cut = next((one for one in origins(loss) if one.op in NUMBERS and one.args and any(begins(part) for part in origins(one.args[0]))), None)
            if copied is not None:
                yield Remark(call.node, f"{short(call.node)} gives gradients to {short(copied.node)} (line {copied.line}) alone, and the optimizer of line {optimizer.line} steps the network that it is a copy of: it gets none")
                return
            if cut is not None:
                yield Remark(cut.node, f"{short(cut.node)} is cut off from what the optimizer of line {optimizer.line} steps, and {short(call.node)} (line {call.line}) gives no gradient to it on another way")
                return
        step = next((one for one in computation.of("step") if optimizer_of(one) is optimizer and one.where.loops), None)
        last = next((one for one, _ in reversed(found) if step is not None and one.number < step.number and one.where.loops == step.where.loops and runs(one) == runs(step)), None)
        if step is not None and last is not None and computation.complete and _is_known(of) and len(found) > 1 and of.op in ("@object", "torch.nn.Sequential") and not any(one.op.endswith(("functional_call", "clip_coef")) for one in computation.values):
            yield Remark(step.node, f"{short(step.node)} steps {short(of.node)} (line {of.line}), and no loss is computed with it: {short(last.node)} (line {last.line}) gives gradients to others alone")
            return


def _starts(network: Value) -> Callable[[Value], bool]:
    """Whether a value is a parameter of a network, or what one of its layers gives."""
    inside = {id(one) for one in layers_of(network)}
    return lambda one: (one.op == "torch.nn.Parameter" and id(one) in inside) or (one.op in _OF_LAYERS and bool(one.args) and id(plain(one.args[0])) in inside)


_OF_LAYERS = ("parameters", "named_parameters", "run", "weight", "bias")


def _is_known(network: Value) -> bool:
    """Whether all layers of a network are known: none is in a list of unknown length."""
    held = [each for one in layers_of(network) if one.op in _CONTAINERS for part in one.args for each in alternatives(part)]
    held += [each for one in held if isinstance(one, (Many, Table)) for part in one.made_of() for each in alternatives(part)]
    return all(isinstance(one, (Instance, Table)) or (isinstance(one, Many) and not one.grown) or one.op.startswith("torch.nn.") for one in held)


_CONTAINERS = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")


def _parents(loss: Value, computation: Computation) -> Iterator[Value]:
    """The networks whose layers a loss is computed by."""
    layers = {id(plain(one.args[0])) for one in origins(loss) if one.op == "run" and one.args}
    for one in computation.values:
        if (isinstance(one, Instance) or one.op == "torch.nn.Sequential") and any(id(each) in layers for each in layers_of(one)):
            yield one


def _is_copy(computation: Computation, value: Value, of: Value) -> bool:
    """Whether a network is a copy of another one, or gets its weights."""
    if value is of:
        return False
    if any(len(one.args) > 1 and plain(one.args[0]) is value and one.args[1].op == "state_dict" and plain(one.args[1].args[0]) is of for one in computation.of("load_state_dict")):
        return True
    if isinstance(value, Instance):
        return value.data is of
    return isinstance(value.node, ast.Call) and last_word(value.node.func) == "deepcopy" and value.op == of.op and len(value.args) == len(of.args)


def adapted_from_task_to_task(program: Program) -> Iterator[Remark]:
    """A trained model is adapted to each task by an optimizer of its own, scored on it, and goes into the next task as it is."""
    computation = computation_of(program)
    made = [one for one in computation.values if is_optimizer(one)]
    for optimizer in made:
        held = modules(optimizer)
        loop = optimizer.where.loops[-1] if optimizer.where.loops else None
        if len(held) != 1 or loop is None or optimizer.where.maybe or loop in held[0].where.loops or held[0].op == "@input":
            continue
        steps = [one for one in computation.of("step") if optimizer_of(one) is optimizer]
        begins = _starts(held[0])
        scored = next((one for one in computation.of("run") if begins(one) and one.where.no_grad and loop in one.where.loops and steps and one.number > steps[-1].number), None)
        losses_here = [loss for call, loss in backwards(computation) if loop in call.where.loops and flows(loss, begins)]
        if scored is None or not losses_here or not _drawn_for_each(losses_here[0], loop) or not _drawn_for_each(scored, loop):
            continue
        inside = {id(one) for one in layers_of(held[0])}
        if not _averaged(computation, scored, loop) or _restored(computation, loop, inside) or not _trained_before(computation, optimizer, loop, inside, made):
            continue
        yield Remark(optimizer.node, f"{short(optimizer.node)} adapts the model itself to each task of the loop of line {getattr(loop, 'lineno', 0)}, and {short(scored.node)} (line {scored.line}) scores it: nothing brings its weights back before the next task")
        return


@FINDERS.add("adapted-from-task-to-task")
def _trained_from_client_to_client(program: Program) -> Iterator[Remark]:
    """One model is trained on each of several parts by an optimizer of its own, its weights are listed after each, and their
    average is loaded into it: each part went on from the weights that the one before had left."""
    computation = computation_of(program)
    for optimizer in [one for one in computation.values if is_optimizer(one)]:
        held = modules(optimizer)
        if len(held) != 1 or not optimizer.where.loops or held[0].op == "@input":
            continue
        for kept in computation.of("append"):
            state = next((one for one in origins(kept.args[1], stop=("state_dict",)) if one.op == "state_dict"), None) if len(kept.args) == 2 else None
            loops = [loop for loop in kept.where.loops if loop in optimizer.where.loops and loop not in held[0].where.loops]
            if state is None or state is kept.args[1] or not loops or plain(state.args[0]) is not held[0] or kept.number < optimizer.number or optimizer.where.maybe:
                continue
            loop = loops[-1]
            loaded = [one for one in computation.of("load_state_dict") if one.args and plain(one.args[0]) is held[0]]
            averaged = next((one for one in loaded if loop not in one.where.loops and len(one.args) > 1 and one.number > kept.number and any(part is kept.args[0] or part is state for part in origins(one.args[1], stop=("state_dict",)))), None)
            own = _over_objects(computation, loop) or any(loop in call.where.loops and _drawn_for_each(loss, loop) for call, loss in backwards(computation))
            if averaged is not None and own and not _restored(computation, loop, {id(one) for one in layers_of(held[0])}):
                yield Remark(optimizer.node, f"{short(optimizer.node)} trains the model itself in each pass of the loop of line {getattr(loop, 'lineno', 0)}, and {short(averaged.node)} (line {averaged.line}) loads the average of all: nothing brings its weights back before the next pass")
                return


def _over_objects(computation: Computation, loop: ast.AST) -> bool:
    """Whether a loop goes over objects of a class of the program, or loaders, each with data of its own."""
    return any(node is loop and isinstance(over, Many) and any(isinstance(one, Instance) or one.op in _LOADERS for one in over.parts) for _, node, over in computation.passes)


_LOADERS = ("torch.utils.data.DataLoader", "torch.utils.data.Subset", "torch.utils.data.TensorDataset")


def _averaged(computation: Computation, scored: Value, loop: ast.AST) -> bool:
    """Whether what a loop scores is averaged over its passes."""
    after = [one for one in computation.of("mean", "nanmean", "median", "div") if one.number > scored.number and loop not in one.where.loops]
    return any(any(part is scored for part in origins(one)) for one in after)


def _drawn_for_each(value: Value, loop: ast.AST) -> bool:
    """Whether a value is made of data that each pass of a loop gets anew, at its own level."""
    return any(one.where.loops[-1:] == (loop,) and one.op not in ("run", "@object") and one.op not in _MADE_HERE for one in origins(value, stop=("parameters",)) if not one.op.startswith("torch."))


_MADE_HERE = frozenset({"zeros", "ones", "range", "index", "count", "len", "tuple", "list", "slice", "add", "mul", "div", "sub", "relu", "tanh", "no_grad"})


def _restored(computation: Computation, loop: ast.AST, inside: set[int]) -> bool:
    """Whether the weights of a network are set in a loop, by what is not an optimizer."""
    for one in computation.of("load_state_dict", "copy", "set_attribute", "lerp", "set_item", "load", "restore", "reset", "reset_parameters"):
        if loop in one.where.loops and one.args and (one.op not in ("copy", "set_attribute", "lerp", "set_item", "load") or one.data == "data" or one.op in ("copy", "lerp")):
            return True
        if loop in one.where.loops and one.args and id(plain(one.args[0])) in inside:
            return True
    return False


def _trained_before(computation: Computation, optimizer: Value, loop: ast.AST, inside: set[int], made: list[Value]) -> bool:
    """Whether a network was trained, or its weights were read, before a loop."""
    for other in made:
        if other is not optimizer and other.number < optimizer.number and loop not in other.where.loops and any(id(one) in inside for held in modules(other) for one in layers_of(held)):
            return True
    for one in computation.of("load_state_dict", "parameters", "named_parameters"):
        if one.number < optimizer.number and loop not in one.where.loops and one.args and id(plain(one.args[0])) in inside:
            changed = one.op == "load_state_dict" or any(each.op in ("add", "sub", "copy", "lerp") and each.where.no_grad and any(part is one for part in origins(each)) for each in computation.of("add", "sub", "copy", "lerp"))
            if changed:
                return True
    return False
