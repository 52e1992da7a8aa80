"""The order of backward, clearing, clipping and step in a pass of a training. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, bare, comes_from, constant, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_call, last_word, short, text_of
from probe.diagnose.code.traits.backwards import layers_of, networks_in
from probe.diagnose.code.traits.held import contents, sources
from probe.diagnose.code.traits.updates import (
    always_with,
    backwards,
    between,
    by_count,
    clears,
    conditions,
    in_parts_of,
    is_clip,
    is_optimizer,
    is_scaler,
    may_call_back,
    modules,
    optimizer_of,
    parameters,
    plain,
    runs,
)

FINDERS = Finders()


def _steps(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Each step of an optimizer, and the optimizer."""
    for value in computation.of("step"):
        if (optimizer := optimizer_of(value)) is not None:
            yield value, optimizer


@FINDERS.add("stepped-twice")
def _stepped_twice(program: Program) -> Iterator[Remark]:
    """One optimizer steps twice, and nothing runs a backward in between."""
    computation = computation_of(program)
    last: dict[int, Value] = {}
    for value, optimizer in _steps(computation):
        before = last.get(id(optimizer))
        last[id(optimizer)] = value
        if before is None or before.node is value.node or not value.where.loops or not always_with(before, value):
            continue
        inner = between(computation, before, value)
        if any(may_call_back(one) or (one.op == "set_attribute" and one.data == "grad") for one in inner):
            continue
        if any(one.op == "backward" and always_with(one, before) for one in computation.values[: before.number]):
            yield Remark(value.node, f"{short(value.node)} is a second step for one backward: the first is in line {before.line}")


@FINDERS.add("stepped-twice")
def _both_step(program: Program) -> Iterator[Remark]:
    """Two optimizers that hold all parameters of one layer step after one backward: it is moved twice."""
    computation = computation_of(program)
    found = [(step, optimizer, given) for step, optimizer in _steps(computation) if (given := sources(parameters(optimizer))) and not any(one.chosen for one in given)]
    for place, (step, optimizer, given) in enumerate(found):
        for before, other, held in found[:place]:
            if other is optimizer or not step.where.loops or not always_with(before, step) or any(may_call_back(one) or one.op == "zero_grad" for one in between(computation, before, step)):
                continue
            inside = [{id(part): part for one in each for part in contents(one.of, computation)} for each in (given, held)]
            both = next((part for key, part in inside[0].items() if key in inside[1] and (part.op == "torch.nn.Parameter" or part.op.startswith(("torch.nn.Linear", "torch.nn.Conv", "torch.nn.Embedding")))), None)
            if both is not None and any(one.op == "backward" and runs(one) == runs(before) and one.where.loops[: len(before.where.loops)] == before.where.loops for one in computation.values[: before.number]):
                yield Remark(step.node, f"{short(step.node)} and {short(before.node)} (line {before.line}) both move the parameters of {short(both.node)} (line {both.line}): one backward is followed twice")
                return


@FINDERS.add("backward-twice")
def _backward_twice(program: Program) -> Iterator[Remark]:
    """One loss, or a part of it with no gradient taken back, runs backward twice before the gradients are cleared."""
    computation = computation_of(program)
    found = [(value, loss) for value, loss in backwards(computation) if loss.op != "@input"]
    for place, (value, loss) in enumerate(found):
        for before, earlier in found[:place]:
            if before.node is value.node or not always_with(before, value):
                continue
            part = earlier is loss or (earlier in _added(loss) and loss.op != "either")
            if part and not _between_clears(computation, before, value):
                said = "the same loss" if earlier is loss else f"{short(earlier.node)}, a part of what this line goes back from,"
                yield Remark(value.node, f"{said} has run backward in line {before.line} already: its gradient counts two times")


def _added(loss: Value) -> list[Value]:
    """The values that a loss is a sum of."""
    if loss.op in ("add", "sub") and len(loss.args) == 2:
        return [*_added(loss.args[0]), *_added(loss.args[1])]
    if loss.op in ("mul", "div") and len(loss.args) == 2:
        return [one for side in loss.args for one in _added(side)]
    return [loss]


def _between_clears(computation: Computation, first: Value, last: Value) -> bool:
    """Whether gradients may be cleared, or kept for something else, between two backwards."""
    for one in between(computation, first, last):
        if one.op in ("zero_grad", "step", "grad", "run_backward") or (one.op == "set_attribute" and one.data in ("grad", "requires_grad")):
            return True
        if one.op in ("requires_grad_", "no_sync"):
            return True
    return False


@FINDERS.add("cleared-before-step")
def _cleared_before_step(program: Program) -> Iterator[Remark]:
    """The gradients are cleared after the backward, and a step follows without another backward."""
    computation = computation_of(program)
    for step, optimizer in _steps(computation):
        for one in reversed(computation.values[: step.number]):
            if runs(one) != runs(step) or may_call_back(one) or (one.op == "step" and one is not step) or (
                one.op == "set_attribute" and one.data == "grad" and constant(one.args[1]) is None and one.args[1].op != "@constant"
            ):
                break
            if not clears(one, optimizer):
                continue
            alike = always_with(one, step) or (
                one.op == "set_attribute" and one.where.loops[: len(step.where.loops)] == step.where.loops and conditions(one) <= conditions(step)
            )
            before = [each for each in computation.of("backward") if each.number < one.number and always_with(each, step)]
            after_step = [each for each, other in _steps(computation) if other is optimizer and before and before[-1].number < each.number < one.number]
            if alike and before and not after_step:
                yield Remark(one.node, f"{short(one.node)} clears the gradients of line {before[-1].line} before {short(step.node)} (line {step.line}): the step finds none")
                break


@FINDERS.add("clipped-in-vain")
def _clipped_in_vain(program: Program) -> Iterator[Remark]:
    """Gradients are clipped after the step that used them, and cleared before the next backward."""
    computation = computation_of(program)
    for clip in computation.values:
        if not is_clip(clip):
            continue
        for one in reversed(computation.values[: clip.number]):
            if (one.op in ("backward", "manual_backward", "unscale_") and not _unscaled_before(computation, one, clip)) or runs(one) != runs(clip):
                break
            optimizer = optimizer_of(one)
            if optimizer is None or not _holds(optimizer, clip):
                continue
            same_pass = one.where.loops == clip.where.loops[: len(one.where.loops)] and bool(one.where.loops or one.where.functions)
            backward = [each for each in computation.of("backward") if each.number < one.number and always_with(each, one)]
            later = [each for each, other in _steps(computation) if other is optimizer and each.number > clip.number and runs(each) == runs(clip)]
            if same_pass and conditions(one) <= conditions(clip) and backward and not later and _is_cleared(computation, optimizer, backward[-1]):
                yield Remark(clip.node, f"{short(clip.node)} runs after {short(one.node)} (line {one.line}), which used the gradients as they were")
            break


@FINDERS.add("clipped-in-vain")
def _clipped_before_backward(program: Program) -> Iterator[Remark]:
    """Gradients are clipped after they were cleared and before the backward whose gradients the step uses."""
    computation = computation_of(program)
    for step, optimizer in _steps(computation):
        inside = [one for one in computation.values[: step.number] if runs(one) == runs(step) and one.where.loops[: len(step.where.loops)] == step.where.loops and step.where.loops]
        turn = max((place for place, one in enumerate(inside) if clears(one, optimizer) and always_with(one, step)), default=None)
        if turn is None or any(may_call_back(one) and one.op not in ("backward", "manual_backward") for one in inside[turn:]):
            continue
        backward = next((place for place, one in enumerate(inside[turn:], turn) if one.op in ("backward", "manual_backward")), None)
        clips = [(place, one) for place, one in enumerate(inside[turn:], turn) if is_clip(one)]
        if backward is not None and clips and all(place < backward for place, _ in clips) and _holds(optimizer, clips[0][1]):
            yield Remark(clips[0][1].node, f"{short(clips[0][1].node)} runs before backward (line {inside[backward].line}), when there is no gradient: {short(step.node)} (line {step.line}) uses gradients that are not clipped")
            return


@FINDERS.add("gradients-not-cleared")
def _nothing_is_cleared(program: Program) -> Iterator[Remark]:
    """An optimizer steps after the backward of each pass, and nothing in the program clears or sets a gradient."""
    computation = computation_of(program)
    cleared = [(getattr(one.node, "func", None), plain(one.args[0])) for one in computation.of("zero_grad") if one.args]
    known = {func for func, of in cleared if is_optimizer(of)}
    if any(isinstance(one, ast.Attribute) and (one.attr in ("zero_", "grad", "clear_grad", "autograd", "functional_call") or (one.attr == "zero_grad" and one not in known)) for one in program.everywhere(ast.Attribute)):
        return
    for step, optimizer in _steps(computation):
        if any(one is optimizer or {*map(id, modules(one))} & {*map(id, modules(optimizer))} or not modules(one) for _, one in cleared):
            continue
        backward = next((one for one in computation.of("backward") if always_with(one, step) and one.number < step.number and step.where.loops), None)
        made = optimizer.where.loops[: len(step.where.loops)] != step.where.loops and not step.where.apart
        if backward is not None and made and optimizer.op.startswith("torch.optim.") and not optimizer.op.endswith("LBFGS"):
            yield Remark(step.node, f"{short(step.node)} uses the sum of all gradients so far: {short(backward.node)} (line {backward.line}) adds to them in each pass, and nothing ever clears them")
            return


def _unscaled_before(computation: Computation, unscale: Value, clip: Value) -> bool:
    """Whether a step stands between the unscaling and the clip."""
    return unscale.op == "unscale_" and any(optimizer_of(one) is not None for one in between(computation, unscale, clip))


def _is_cleared(computation: Computation, optimizer: Value, part: Value) -> bool:
    """Whether the gradients of an optimizer are cleared in each pass that computes a value."""
    return any(clears(one, optimizer) and always_with(one, part) for one in computation.of("zero_grad", "set_attribute"))


def _holds(optimizer: Value, clip: Value) -> bool:
    """Whether what is clipped is what an optimizer holds."""
    given = parameters(optimizer)
    clipped = clip.args[0] if clip.args else None
    if given is None or clipped is None:
        return False
    if clip.op == "clamp":
        clipped = bare(clipped, shapes=False).args[0]
    held = {id(one) for one in modules(optimizer)}
    of = [plain(one.args[0]) for one in origins(clipped) if one.op in ("parameters", "named_parameters") and one.args]
    return bool(of and all(id(one) in held for one in of)) or given is clipped or any(one is optimizer for one in origins(clipped))


@FINDERS.add("clipped-in-each-part")
def _clipped_in_each_part(program: Program) -> Iterator[Remark]:
    """Gradients are clipped after each backward of those that one step adds up."""
    computation = computation_of(program)
    steps = list(_steps(computation))
    for clip in computation.values:
        if not is_clip(clip) or clip.op == "clamp":
            continue
        for step, optimizer in steps:
            if step.number < clip.number or not in_parts_of(clip, step) or not _holds(optimizer, clip):
                continue
            backward = [one for one in computation.of("backward") if one.number < clip.number and always_with(one, clip)]
            own = [one for one, other in steps if other is optimizer and one is not step and always_with(one, clip)]
            if backward and not own and not _is_cleared(computation, optimizer, clip):
                yield Remark(clip.node, f"{short(clip.node)} runs after each backward, and {short(step.node)} (line {step.line}) once for several of them")
                break


@FINDERS.add("cleared-in-micro-steps")
def _cleared_in_micro_steps(program: Program) -> Iterator[Remark]:
    """The gradients are cleared in every pass, and the step runs in every few by a count."""
    computation = computation_of(program)
    steps = list(_steps(computation))
    for step, optimizer in steps:
        for one in computation.of("zero_grad"):
            if not clears(one, optimizer) or one.where.loops != step.where.loops or not in_parts_of(one, step):
                continue
            backward = [each for each in computation.of("backward") if always_with(each, one) and always_with(one, each)]
            own = [each for each, other in steps if other is optimizer and each is not step and always_with(each, one)]
            rare = any(one.number < each.number < step.number and conditions(each) > conditions(one) for each in computation.of("backward"))
            if backward and not own and not rare:
                yield Remark(one.node, f"{short(one.node)} runs in every pass, and {short(step.node)} (line {step.line}) only in every few: the gradients of the passes between are thrown away")
                break


@FINDERS.add("batches-without-backward")
def _batches_without_backward(program: Program) -> Iterator[Remark]:
    """A loss with a graph is computed in each pass, and backward and step run in every few by a count."""
    computation = computation_of(program)
    for backward, loss in backwards(computation):
        for step, optimizer in _steps(computation):
            if not always_with(backward, step) or not always_with(step, backward) or loss.where.no_grad:
                continue
            known = conditions(loss)
            if runs(loss) != runs(backward) or loss.where.loops != backward.where.loops or not known < conditions(backward):
                continue
            more = [test for test, holds in backward.where.under if (id(test), holds) not in known]
            ends = [one for one in modules(optimizer) if any(each.op == "run" and plain(each.args[0]) is one for each in origins(loss))]
            if any(by_count(test) for test in more) and ends and not _carried(computation, loss, backward):
                yield Remark(backward.node, f"{short(backward.node)} runs only in every few passes, and {short(loss.node)} is computed in each: the other losses are thrown away")
                break


def _carried(computation: Computation, loss: Value, backward: Value) -> bool:
    """Whether a loss may hold what earlier passes have added to it, or be run backward elsewhere."""
    if _hands_on(backward):
        return True
    if any(one.op in ("add", "append", "sum_of") and one.where.loops != loss.where.loops for one in origins(loss)):
        return True
    if any(one is not backward and one.op in ("backward", "manual_backward") and comes_from(one, loss) for one in computation.of("backward", "manual_backward")):
        return True
    starts = [one for one in origins(loss, ("run",)) if one.op == "add" and any(constant(part) == 0 or part.op == "count" for part in one.args)]
    grown = [one for one in computation.users(loss) if one.op == "append"]
    return bool(starts or grown)


def _hands_on(value: Value) -> bool:
    """Whether a pass gives a state to the next one: `h = cell(x, h)`."""
    for around in (*value.where.loops[-1:], *value.where.functions[-1:]):
        for node in ast.walk(around):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                set_here = {ast.unparse(one) for target in node.targets for one in (target.elts if isinstance(target, ast.Tuple) else [target])}
                given = {ast.unparse(one) for one in (*node.value.args, *(word.value for word in node.value.keywords))}
                if set_here & given:
                    return True
    return False


@FINDERS.add("scaler-passed-by")
def _scaler_passed_by(program: Program) -> Iterator[Remark]:
    """A scaled loss runs backward, and the optimizer steps by itself without unscaled gradients."""
    computation = computation_of(program)
    for value in computation.of("backward"):
        scaled = value.args[0] if value.args else None
        if scaled is None or scaled.op != "scale" or not scaled.args or not is_scaler(plain(scaled.args[0])):
            continue
        for one in computation.values[value.number + 1 :]:
            if runs(one) != runs(value) or one.op in ("backward", "unscale_"):
                break
            if one.op == "step" and len(one.args) > 1:
                break
            if one.op == "step" and len(one.args) == 1 and is_optimizer(one.args[0]) and conditions(one) <= conditions(value) and one.where.loops == value.where.loops:
                yield Remark(one.node, f"the loss is scaled in line {scaled.line}, and {short(one.node)} steps past the scaler")
                break


@FINDERS.add("sum-over-micro-steps")
def _sum_over_micro_steps(program: Program) -> Iterator[Remark]:
    """Gradients of mean losses add up over passes that one step follows, and the loss is not divided."""
    computation = computation_of(program)
    for step, optimizer in _steps(computation):
        for backward, loss in backwards(computation):
            if not in_parts_of(backward, step) or not _is_mean(loss):
                continue
            if (step.where.loops != backward.where.loops and not _takes_the_next(computation, backward)) or not _feels_size(computation, optimizer) or _trains_another(loss, optimizer):
                continue
            if any(clears(one, optimizer) and always_with(one, backward) for one in computation.of("zero_grad", "set_attribute")):
                continue
            if any(other is optimizer and one is not step and always_with(one, backward) for one, other in _steps(computation)):
                continue
            if any((one.op == "set_attribute" and one.data in ("grad", "lr")) or (one.op in ("mul", "div") and bare(one.args[0]).op == "grad") or one.op.startswith("_foreach") for one in computation.of("set_attribute", "mul", "div", "_foreach_div_", "_foreach_mul_")):
                continue
            yield Remark(backward.node, f"{short(backward.node)} adds up the gradients of several batches for {short(step.node)} (line {step.line}), and nothing divides by their number")
            return


def _takes_the_next(computation: Computation, backward: Value) -> bool:
    """Whether the innermost loop around a backward counts its passes, and takes the next batch of a stream in each."""
    loop = backward.where.loops[-1]
    over = next((over for _, node, over in computation.passes if node is loop), None)
    return over is not None and over.op == "range" and any(is_call(one, "next") for one in ast.walk(loop))


def _trains_another(loss: Value, optimizer: Value) -> bool:
    """Whether a loss is known to be computed by networks of which an optimizer holds none: a function runs once more for each."""
    held, inside = {id(each) for one in modules(optimizer) for each in layers_of(one)}, networks_in(loss)
    return bool(held and inside) and not held & inside


def _feels_size(computation: Computation, optimizer: Value) -> bool:
    """Whether a step depends on the size of the gradients: that of SGD, or of what is clipped."""
    return optimizer.op.endswith(".SGD") or any(is_clip(one) and _holds(optimizer, one) for one in computation.values)


def _is_mean(loss: Value) -> bool:
    """Whether a loss is the mean over a batch, by the reduction of a loss of torch, and nothing divides it."""
    loss = bare(loss)
    reduction = constant(loss.named.get("reduction")) or "mean"
    return (loss.op in _MEANS and reduction == "mean") or loss.op == "mean"


_MEANS = frozenset({
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy", "nll_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "ctc_loss",
})


@FINDERS.add("clipped-while-scaled")
def _clipped_while_scaled(program: Program) -> Iterator[Remark]:
    """Gradients of a scaled loss are clipped before anything has unscaled them."""
    computation = computation_of(program)
    if any(user.op in ("div", "mul", "pow") for one in computation.of("get_scale") for user in computation.users(one)):
        return
    for clip in computation.values:
        if not is_clip(clip) and not _limits_by_norm(clip):
            continue
        for one in reversed(computation.values[: clip.number]):
            if runs(one) != runs(clip) or one.op == "unscale_" or optimizer_of(one) is not None:
                break
            if one.op == "backward" and one.args:
                scaled = one.args[0].op == "scale" and one.args[0].args and is_scaler(plain(one.args[0].args[0]))
                if scaled and constant(plain(one.args[0].args[0]).named.get("enabled")) is not False:
                    yield Remark(clip.node, f"{short(clip.node)} runs while the gradients are still multiplied by the scaler's factor (line {one.args[0].line})")
                break


def _limits_by_norm(value: Value) -> bool:
    """Whether a value is a gradient times a limit over the norm of gradients, where that is less than 1: it clips by hand."""
    if value.op != "mul" or len(value.args) != 2:
        return False
    factor = next((other for one, other in (value.args, value.args[::-1]) if bare(one, shapes=False).op == "grad"), None)
    if factor is None or not any(one.op == "div" and len(one.args) == 2 and _is_norm(one.args[1]) for one in origins(factor, stop=("grad",))):
        return False
    at_most_one = any(one.op in ("clamp", "min", "minimum") for one in origins(factor, stop=("div", "grad")))
    return at_most_one or any(test.op in ("gt", "ge", "lt", "le") and any(_is_norm(one) for one in test.args) for test, _ in value.where.under)


def _is_norm(value: Value) -> bool:
    """Whether a value is made of a norm of gradients."""
    seen = list(origins(value, stop=("grad",)))
    return any(one.op in ("norm", "vector_norm", "sqrt") for one in seen) and any(one.op == "grad" for one in seen)


@FINDERS.add("gradients-not-cleared")
def _gradients_not_cleared(program: Program) -> Iterator[Remark]:
    """Of two optimizers in one pass one clears its gradients, and nothing clears those of the other."""
    computation = computation_of(program)
    cleared = [one for one in computation.of("zero_grad") if one.args]
    if not cleared or not all(is_optimizer(plain(one.args[0])) for one in cleared) or any(one.data == "grad" for one in computation.of("set_attribute")):
        return
    for step, optimizer in _steps(computation):
        other = [one for one in cleared if always_with(one, step) and not clears(one, optimizer)]
        if not other or any(_shares(plain(one.args[0]), optimizer) for one in cleared) or any(part.op == "grad" for one in computation.of("zero") for part in origins(one)):
            continue
        if any(always_with(one, step) and one.number < step.number for one in computation.of("backward")) and _is_alone(optimizer, computation):
            yield Remark(step.node, f"{short(step.node)} uses gradients that nothing clears: those of all passes before are added up in them")
            return


def _shares(one: Value, other: Value) -> bool:
    """Whether two optimizers hold parameters of one network."""
    return one is other or any(a is b for a in modules(one) for b in modules(other))


def _is_alone(optimizer: Value, computation: Computation) -> bool:
    """Whether an optimizer is in no list that something may be done on which is not seen."""
    for one in computation.users(optimizer):
        if isinstance(one, Many) and not one.grown and one.op in ("list", "tuple"):
            if not all(user.op == "zip" or (isinstance(user, Many) and _is_alone(one, computation)) for user in computation.users(one)):
                return False
        elif isinstance(one, Table) and not one.others:
            if not all(user.op in ("items", "values", "keys") for user in computation.users(one)):
                return False
        elif one.op in ("list", "tuple", "dict", "zip"):
            return False
    return True


@FINDERS.add("gradients-not-cleared")
def _cleared_nowhere(program: Program) -> Iterator[Remark]:
    """Gradients are scaled by hand before each step, and nothing in the program ever clears them."""
    written = [one for one in program.everywhere(ast.Attribute) if one.attr == "zero_grad" or (one.attr == "grad" and not isinstance(one.ctx, ast.Load))]
    around = [program.parent.get(one) for one in program.everywhere(ast.Attribute) if one.attr == "grad" and text_of(one.value) != "torch.autograd"]
    touched = [one for one in around if isinstance(one, ast.Attribute)]
    scaled = all(one.attr in _SCALES for one in touched) and all(isinstance(one, (ast.Attribute, ast.Compare)) for one in around)
    if written or not touched or not scaled or any(last_word(one.func) in ("setattr", "zero_grad") for one in program.calls()):
        return
    computation = computation_of(program)
    for step, optimizer in _steps(computation):
        mine = [one for one in computation.of("backward") if runs(one) == runs(step) and one.number < step.number and one.where.loops[: len(step.where.loops)] == step.where.loops]
        if step.where.loops and mine and _is_alone(optimizer, computation):
            yield Remark(step.node, f"{short(step.node)} uses gradients that nothing in the program clears: those of all passes before are added up in them")
            return


@FINDERS.add("gradients-not-cleared")
def _cleared_outside_the_loop(program: Program) -> Iterator[Remark]:
    """Backward and step run in each pass of a loop, and the gradients are cleared before or after it alone."""
    computation = computation_of(program)
    cleared = [one for one in computation.of("zero_grad") if one.args]
    if not cleared or any(one.data == "grad" for one in computation.of("set_attribute")) or any(any(part.op == "grad" for part in origins(one)) for one in computation.of("zero", "fill")):
        return
    unseen = sum(isinstance(one.func, ast.Attribute) and one.func.attr == "zero_grad" for one in program.calls()) > len({one.node for one in cleared})
    for step, optimizer in _steps(computation) if not unseen else ():
        loops = step.where.loops
        mine = [one for one in cleared if clears(one, optimizer) and runs(one) == runs(step)]
        if not loops or not mine or not all(one.where.loops == loops[: len(one.where.loops)] and len(one.where.loops) < len(loops) for one in cleared if runs(one) == runs(step)):
            continue
        if loops[-1] in optimizer.where.loops or any(loops[-1] in one.where.loops for one in origins(optimizer, ("parameters",))) or _ends_in_one_pass(loops[-1]):
            continue
        back = [one for one in computation.of("backward") if always_with(one, step) and conditions(one) == conditions(step) and one.number < step.number]
        if back and _is_alone(optimizer, computation) and not any(may_call_back(one) and one.op != "backward" for one in computation.of("unknown") if loops[-1] in one.where.loops):
            yield Remark(mine[0].node, f"{short(mine[0].node)} runs once for the whole loop of line {getattr(loops[-1], 'lineno', 0)}, and {short(step.node)} (line {step.line}) in each of its passes: the gradients pile up")
            return


def _ends_in_one_pass(loop: ast.AST) -> bool:
    """Whether a loop is left at the end of its first pass."""
    body = getattr(loop, "body", None)
    return isinstance(body, list) and bool(body) and isinstance(body[-1], (ast.Break, ast.Return))


_SCALES = frozenset({"div_", "mul_", "norm", "clamp_", "is_sparse", "dtype", "device", "square", "pow", "abs"})
"""What only scales gradients or looks at them."""


@FINDERS.add("gradients-read-after-clearing")
def _gradients_read_after_clearing(program: Program) -> Iterator[Remark]:
    """Gradients are read after they were cleared, and before the next backward."""
    computation = computation_of(program)
    steps = list(_steps(computation))
    for read in computation.of("grad"):
        if not read.args or bare(read.args[0], "part").op != "element" or not any(one.op not in ("is", "is_not", "zero", "set_attribute", "list", "tuple") for one in computation.users(read)):
            continue
        for one in reversed(computation.values[: read.number]):
            if runs(one) != runs(read) or may_call_back(one) or (one.op == "set_attribute" and one.data == "grad"):
                break
            held = next((optimizer for _, optimizer in steps if clears(one, optimizer)), None)
            if held is None:
                continue
            own = [plain(each.args[0]) for each in origins(read) if each.op in ("parameters", "named_parameters") and each.args]
            inside = read.where.loops[: len(one.where.loops)] == one.where.loops and conditions(one) <= conditions(read)
            if inside and own and all(any(each is of for of in modules(held)) for each in own) and _had_gradients(computation, one):
                yield Remark(read.node, f"{short(read.node)} reads the gradients after {short(one.node)} (line {one.line}) has cleared them")
            break


def _had_gradients(computation: Computation, clear: Value) -> bool:
    """Whether a backward stands before the clearing in its pass, so that it is not the one that a new pass begins with."""
    return any(one.number < clear.number and always_with(one, clear) for one in computation.of("backward"))
