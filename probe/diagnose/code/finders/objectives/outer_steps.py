"""Steps of two levels: towards what was adapted, several from one point, and gradients that a closure adds up. Pure;
standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Code, Many, Table, Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import Function, is_read, names_read, short
from probe.diagnose.code.traits.backwards import layers_of
from probe.diagnose.code.traits.basic import LOSSES, losses
from probe.diagnose.code.traits.updates import is_optimizer, modules, optimizer_of, plain


def away_from_the_adapted(program: Program) -> Iterator[Remark]:
    """The weights of a network move by what they are more than those of a copy that was trained on a task: away from it."""
    computation = computation_of(program)
    held = [(plain(each), one) for one in computation.values if is_optimizer(one) for each in modules(one)]
    for update in computation.of("add", "sub", "set_attribute"):
        if update.op == "set_attribute":
            if update.data != "grad" or len(update.args) < 2:
                continue
            share, at = -1.0, update.args[0]
            change = bare(update.args[1])
        else:
            if len(update.args) < 2 or (not update.where.no_grad and not _is_data(update.args[0])):
                continue
            share, at = (1.0 if update.op == "add" else -1.0), bare(update.args[0])
            change = bare(update.args[1])
            scale = update.named.get("alpha")
            share *= 1.0 if scale is None or (number(scale) or 1.0) > 0 else -1.0
        while change.op in ("mul", "div") and len(change.args) == 2:
            factors = [number(one) for one in change.args]
            if change.op == "div" or factors[0] is None:
                share *= -1.0 if (factors[1] or 1.0) < 0 else 1.0
                change = bare(change.args[0])
            else:
                share *= -1.0 if factors[0] < 0 else 1.0
                change = bare(change.args[1])
        if change.op != "sub" or len(change.args) != 2:
            continue
        first, second = bare(change.args[0]), bare(change.args[1])
        slow, fast = _network(at), _network(first)
        sign = -1.0
        if fast is slow:
            fast, sign = _network(second), 1.0
        elif _network(second) is not slow:
            continue
        if slow is None or fast is None or fast is slow or sign * share < 0:
            continue
        adapts = next((one for each, one in held if each is fast), None)
        own = any(each is slow and any(user.op == "step" for user in computation.users(one)) for each, one in held)
        if adapts is None or not _is_copy_of(computation, fast, slow) or own is (update.op != "set_attribute") or any("maximize" in one.named for _, one in held) or not _steps_before(computation, adapts, update):
            continue
        yield Remark(update.node, f"{short(update.node)} moves the weights away from those that {short(adapts.node)} (line {adapts.line}) has adapted to the task: {short(change.node)} points from the adapted weights to the old ones")
        return


def _is_data(value: Value) -> bool:
    return value.op == "data"


def _network(value: Value) -> Value | None:
    """The network whose parameter a value is."""
    value = bare(value, "part")
    if value.op != "element" or not value.args or value.args[0].op not in ("parameters", "named_parameters", "items", "values"):
        return None
    return plain(value.args[0].args[0]) if value.args[0].op in ("parameters", "named_parameters") else None


def _is_copy_of(computation: Computation, value: Value, of: Value) -> bool:
    """Whether a network was made as a copy of another one, or got its weights."""
    if isinstance(value.node, ast.Call) and ast.unparse(value.node.func).split(".")[-1] in ("deepcopy", "clone"):
        return True
    return any(
        len(one.args) > 1 and plain(one.args[0]) is value and any(part.op == "state_dict" and plain(part.args[0]) is of for part in origins(one.args[1]))
        for one in computation.of("load_state_dict")
    )


def _steps_before(computation: Computation, optimizer: Value, update: Value) -> bool:
    """Whether an optimizer steps before a value is computed."""
    return any(one.op == "step" and one.number < update.number for one in computation.users(optimizer))


def steps_from_one_point(program: Program) -> Iterator[Remark]:
    """Each pass of a loop takes the gradient at the weights from before the loop, and makes new ones that no pass reads."""
    computation = computation_of(program)
    for target, given in computation.stored.items():
        loops = [one for one in program.parents(target) if isinstance(one, ast.For)]
        if not loops:
            continue
        loop = loops[0]
        steps = [one for value in given for one in _stepped(value) if loop in one.where.loops]
        step = next((one for one in steps if _gradient(one) is not None), None)
        gradient = _gradient(step) if step is not None else None
        if step is None or gradient is None or not _several(computation, loop):
            continue
        read = any(isinstance(one, ast.Name) and one.id == target.id and isinstance(one.ctx, ast.Load) for one in ast.walk(loop))
        held = [one for one in origins(gradient.args[1]) if one.op in ("parameters", "named_parameters")] if len(gradient.args) > 1 else []
        changed = any(one.op in ("load_state_dict", "set_attribute", "copy", "step") and loop in one.where.loops for one in computation.of("load_state_dict", "set_attribute", "copy", "step"))
        if not read and held and all(loop not in one.where.loops for one in held) and not changed and loop in gradient.where.loops and not _leaves(loop):
            yield Remark(gradient.node, f"{short(gradient.node)} is the gradient at {short(held[0].node)} (line {held[0].line}) in each pass of the loop of line {loop.lineno}, and no pass reads {target.id}, which is what it makes of them: all steps are the first one")
            return


def _stepped(value: Value) -> Iterator[Value]:
    """The differences that new weights hold."""
    found = value.parts if isinstance(value, Many) else list(value.made_of()) if isinstance(value, Table) else [value]
    for one in found:
        yield from (each for each in (one.parts if isinstance(one, Many) else [one]) if each.op == "sub" and len(each.args) == 2)


def _gradient(value: Value) -> Value | None:
    """The gradient that weights are stepped by."""
    return next((one for one in origins(value.args[1], ("torch.autograd.grad",)) if one.op == "torch.autograd.grad" and one.args), None)


def _several(computation: Computation, loop: ast.For) -> bool:
    """Whether a loop counts to more than 1."""
    passes = next((one for one in computation.of("range") if one.node is loop.iter), None)
    return passes is not None and len(passes.args) == 1 and number(passes.args[0]) != 1


def _leaves(loop: ast.For) -> bool:
    """Whether a loop keeps what each pass makes, or ends before its count."""
    return any(isinstance(one, (ast.Break, ast.Return, ast.Yield)) for one in ast.walk(loop))


def closure_adds_up(program: Program) -> Iterator[Remark]:
    """LBFGS calls a closure several times in one step, and the closure does not clear the gradients that it adds to."""
    computation = computation_of(program)
    for step in computation.of("step"):
        if len(step.args) != 2 or not step.args[0].op.endswith(".LBFGS") or not isinstance(step.args[1], Code):
            continue
        function, most = step.args[1].function, step.args[0].argument("max_iter", 2)
        if not isinstance(function, Function) or (most is not None and number(most) == 1):
            continue
        calls = [one for one in ast.walk(function) if isinstance(one, ast.Call)]
        back = next((one for one in calls if isinstance(one.func, ast.Attribute) and one.func.attr == "backward"), None)
        inside = [one for one in computation.values if function in one.where.functions]
        clears = any(one.op in ("zero_grad", "zero", "grad") or (one.op == "set_attribute" and one.data == "grad") for one in inside) or any("zero_grad" in ast.unparse(one) for one in calls)
        if back is not None and not clears and not any(isinstance(one, ast.Attribute) and one.attr == "grad" for one in ast.walk(function)):
            yield Remark(back, f"{short(back)} runs several times in {short(step.node)} (line {step.line}), and {function.name} clears no gradients: each is added to those before it")
            return


def judged_on_its_support(program: Program) -> Iterator[Remark]:
    """Weights that were adapted by the loss of some samples are judged by the same samples, and those that came with them
    are not read."""
    computation = computation_of(program)
    found = [loss for _, loss in losses(computation)] + [one.args[0] for one in computation.of("torch.autograd.grad") if one.args]
    compared = [one for loss in found for one in _compared(loss)]
    for outer in compared:
        inner = next((one for one in _adapting(computation, outer, compared) if same(one.args[1], outer.args[1]) and one.args[0] is not outer.args[0]), None)
        left = _left_unread(program, outer.node) if inner is not None else []
        if inner is not None and left:
            yield Remark(outer.node, f"{short(outer.node)} judges the adapted weights by the samples that {short(inner.node)} (line {inner.line}) has adapted them to, and {' and '.join(left)} {'is' if len(left) == 1 else 'are'} read nowhere")
            return


def _compared(loss: Value) -> Iterator[Value]:
    """The losses of a network's outputs and targets that a loss is made of, but not what gradients were taken of on the way."""
    yield from (one for one in origins(loss, stop=("torch.autograd.grad", *LOSSES)) if one.op in LOSSES and len(one.args) == 2)


def _adapting(computation: Computation, outer: Value, compared: list[Value]) -> Iterator[Value]:
    """The losses that the weights behind a loss were adapted by: by a derivative that is subtracted, or by an optimizer that
    is made for the task."""
    for one in origins(outer.args[0]):
        if one.op == "sub" and len(one.args) == 2:
            for gradient in origins(one.args[1], stop=("torch.autograd.grad",)):
                if gradient.op == "torch.autograd.grad" and gradient.args:
                    yield from (each for each in origins(gradient.args[0], stop=LOSSES) if each.op in LOSSES and len(each.args) == 2)
    networks = {id(one.args[0]) for one in origins(outer.args[0]) if one.op == "run" and one.args}
    for optimizer in (one for one in computation.values if is_optimizer(one) and one.where.loops and one.number < outer.number and one.where.loops == outer.where.loops[: len(one.where.loops)]):
        held = {id(layer) for each in modules(optimizer) for layer in layers_of(each)}
        steps = [one for one in computation.of("step") if optimizer_of(one) is optimizer and one.number < outer.number]
        if held & networks and steps:
            yield from (one for one in compared if one.number < steps[-1].number and one.number > optimizer.number)


def _left_unread(program: Program, node: ast.AST) -> list[str]:
    """The names that are given together with what an expression reads, two and two, and read nowhere."""
    frame, read = program.frame(node), names_read(node)
    groups = [[one.id for one in ast.walk(target) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)] for target in ast.walk(frame) if isinstance(target, ast.Tuple) and isinstance(target.ctx, ast.Store)]
    if isinstance(frame, ast.FunctionDef):
        groups.append([one.arg for one in frame.args.args])
    everywhere = [one.id for one in ast.walk(frame) if is_read(one)]
    for group in groups:
        left = [name for name in group if name not in everywhere and not name.startswith("_")]
        if len(left) == 2 and len(read & set(group)) >= 1 and len(group) >= 4:
            return left
    return []
