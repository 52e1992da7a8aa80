"""The training loop: the order and the level of backward, clip, step and zero_grad. Pure.

Losses, schedules, settings, and states have files of their own.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Iterator, Sequence

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import alternatives
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.step_calls import Event, calls_in, events_of, goes_over, optimized
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    Function,
    Loop,
    is_attribute,
    is_binary,
    is_method,
    is_name,
    mentions,
    names_read,
    names_set,
    own,
    short,
    walk,
)

RULES = Rules("loop")
_ORDER = "each update is made of other gradients than those of its batches"


def bodies(program: Program) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    """What runs as one pass: bodies of loops, functions, files and branches."""
    for node in program.everywhere(ast.For, ast.While, ast.FunctionDef, ast.AsyncFunctionDef, ast.Module, ast.If):
        if isinstance(node, Loop | Function | ast.Module | ast.If):  # all are: this tells the type checker
            yield node, node.body
        if isinstance(node, ast.If) and node.orelse:
            yield node, node.orelse


def _clears(flow: Flow, event: Event, optimizer: Key | None, alone: bool) -> bool:
    """Whether a zero_grad is that of an optimizer, or of the module whose parameters it holds."""
    if event.what != "zero":
        return False
    return event.of == optimizer or (event.of is not None and event.of == optimized(flow, optimizer)) or (
        alone and is_method(event.node) and flow.program.family(event.node.func.value) == "module"
    )


def _backward_inside(flow: Flow, events: list[Event], first: int, last: int, body: list[ast.stmt]) -> bool:
    """Whether a function of the program that is called between two events may run backward."""
    start, end = events[first].node.lineno, events[last].node.lineno
    return any(
        _runs(flow.program, node, "backward")
        for statement in body for node in walk(statement) if isinstance(node, ast.Call)
        and (start <= node.lineno <= end if start <= end else node.lineno >= start or node.lineno <= end)
    )


def _runs(program: Program, node: ast.AST, name: str) -> bool:
    """Whether a node calls a function of the program that has an attribute of that name."""
    local = program.local_function(node) if isinstance(node, ast.Call) else None
    return local is not None and mentions(local, name)


@RULES.add("cleared-before-step", "no parameter changes (momentum and weight decay aside)", "zero_grad, backward, step: in this order")
def _cleared_before_step(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for _, body in bodies(program):
        events = [event for event in events_of(flow, body) if event.what in ("zero", "backward", "step")]
        if not any(event.what == "backward" and event.always for event in events):
            continue
        stepped = {event.of for event in events if event.what == "step"}
        for number, event in enumerate(events):
            if event.what != "step" or not event.always or event.of is None or (event.node.args and not event.scaled):
                continue
            back = number - 1
            while back > number - len(events):
                before = events[back]
                if before.what == "backward" or (before.what == "step" and before.of == event.of):
                    break
                if before.always and _clears(flow, before, event.of, len(stepped) == 1):
                    if not _backward_inside(flow, events, back, number, body):
                        cleared, stepper = short(before.node), short(event.node)
                        yield Remark(before.node, f"{cleared} runs between backward and {stepper}: the step finds no gradient")
                    break
                back -= 1


@RULES.add("stepped-twice", "the rate is twice what it says, and moments are counted twice", "step once for each backward")
def _stepped_twice(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for _, body in bodies(program):
        events = [event for event in events_of(flow, body) if event.what in ("backward", "step", "zero")]
        for number, event in enumerate(events):
            if event.what != "step" or not event.always or event.of is None or (event.node.args and not event.scaled):
                continue
            if not any(one.what == "backward" for one in events[:number]) or not _of_torch(flow, event.of):
                continue
            for later in events[number + 1 :]:
                if later.what in ("backward", "zero"):
                    break
                if later.what == "step" and later.always and later.of == event.of and (later.scaled or not later.node.args):
                    first = f"lines {event.node.lineno} and {later.node.lineno}"
                    yield Remark(later.node, f"{short(later.node)} runs twice for one backward ({first}): each update is made two times")
                    break


def _of_torch(flow: Flow, key: Key | None) -> bool:
    made = flow.made(flow.origin(key))
    return made is not None and flow.program.called(made).startswith("torch.optim.")


@RULES.add("backward-twice", "its gradient is twice as large", "call backward once")
def _backward_twice(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for _, body in bodies(program):
        seen: dict[Key, ast.Call] = {}
        for statement in body:
            written = names_set(statement)
            seen = {key: call for key, call in seen.items() if key[1] not in written}
            for event in events_of(flow, [statement]):
                func = event.node.func
                if event.what in ("zero", "step"):
                    seen = {}
                elif event.what == "backward" and isinstance(func, ast.Attribute) and event.always:
                    key = flow.key(func.value)
                    again = key is not None and key in seen and not event.node.args
                    if key is not None and again:
                        yield Remark(event.node, f"{key[1]}.backward() runs twice (lines {seen[key].lineno} and {event.node.lineno}): its gradient counts two times")
                    elif key is not None and not event.node.args:
                        seen[key] = event.node


@RULES.add("clipped-in-vain", "the clip has no effect", "clip after backward (and unscale_), before step")
def _clipped_in_vain(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for _, body in bodies(program):
        events = [event for event in events_of(flow, body) if event.what in ("zero", "backward", "step", "clip")]
        if not any(event.what == "backward" for event in events):
            continue
        for number, event in enumerate(events):
            if event.what != "clip":
                continue
            others = [one for one in events[number + 1 :] + events[:number] if one.what != "clip"]
            if len(others) < 2 or not any(one.what == "step" for one in others):
                continue
            before, after = others[-1], others[0]
            if before.what in ("step", "zero") and after.what in ("zero", "backward") and before.always and after.always:
                if _backward_inside(flow, events, events.index(before), number, body):
                    continue
                when = "after the step that used the gradients" if before.what == "step" else "before backward, when there is no gradient"
                yield Remark(event.node, f"{short(event.node.func)} runs {when}: the step is made with gradients that are not clipped")


@RULES.add("clipped-in-each-part", "what the first parts of a batch have added is cut again and again: the step follows the last part most", "clip once, right before the step")
def _clipped_in_each_part(program: Program) -> Iterator[Remark]:
    """A loop that clips after each backward, and steps after several of them."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        events = events_of(flow, loop.body)
        steps = [one for one in events if one.what == "step"]
        counted = [one for one in steps if not one.always and _counts(program, one.node, loop)]
        if not steps or len(counted) < len(steps):
            continue
        called = (program.local_function(call) for statement in loop.body for call, always in calls_in(statement) if always)
        inner = [event for function in called if function is not None for event in events_of(flow, function.body)]
        if any(one.what == "step" for one in inner):
            continue
        always = [one for one in (*events, *inner) if one.always]
        clip = next((one for one in always if one.what == "clip"), None)
        if clip is not None and any(one.what == "backward" for one in always):
            yield Remark(clip.node, f"{short(clip.node)} runs after each backward, and {short(steps[0].node)} (line {steps[0].node.lineno}) once for several of them")


def _counts(program: Program, call: ast.Call, loop: ast.For) -> bool:
    """Whether a call runs in each n-th turn of a loop."""
    around = [one for one in program.parents(call) if isinstance(one, ast.If) and loop in program.parents(one)]
    return any(is_binary(part, ast.Mod) for one in around for part in walk(one.test))


@RULES.add("clipped-while-scaled", "the bound is compared with gradients that are thousands of times too large, so that nearly nothing is left of them", "call scaler.unscale_(optimizer) before the clip")
def _clipped_scaled(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    yield from _clipped_in_a_part(program, flow)
    for owner, body in bodies(program):
        if isinstance(owner, ast.Module):
            continue
        events = events_of(flow, body)
        for number, event in enumerate(events):
            if event.what != "clip":
                continue
            before = [one for one in events[:number] if one.what in ("backward", "unscale", "step")]
            after = [one for one in events[number:] if one.what in ("step", "backward")]
            if before and after and before[-1].what == "backward" and before[-1].scaled and before[-1].always and after[0].scaled and after[0].what == "step" and (
                after[0].always or event.always
            ) and not _unscaled_by_hand(body, before[-1].node, after[0].node):
                yield Remark(event.node, f"{short(event.node.func)} runs while the gradients are still multiplied by the scaler's factor: unscale_ is missing before it")


def _clipped_in_a_part(program: Program, flow: Flow) -> Iterator[Remark]:
    """A function that runs the scaled backward and clips, in a program that never divides by the factor; the step is
    made elsewhere."""
    told = {"unscale_", "get_scale", "_scale"}
    if any(one.attr in told for one in program.everywhere(ast.Attribute) if isinstance(one, ast.Attribute)):
        return
    if not any(is_method(one, "step") and program.family(one.func.value) == "scaler" for one in program.calls()):
        return
    for owner, body in bodies(program):
        events = events_of(flow, body) if isinstance(owner, (ast.FunctionDef, ast.AsyncFunctionDef)) else []
        whats = [one.what for one in events]
        if "step" in whats or "clip" not in whats or "backward" not in whats[: whats.index("clip")]:
            continue
        clip, backward = events[whats.index("clip")], events[whats.index("backward")]
        if backward.scaled and backward.always:
            yield Remark(clip.node, f"{short(clip.node.func)} runs while the gradients are still multiplied by the scaler's factor: unscale_ is called nowhere")


def _unscaled_by_hand(body: list[ast.stmt], backward: ast.Call, step: ast.Call) -> bool:
    """Whether the lines from a backward to its step read gradients, but to clamp them, or the scaler's factor."""
    nodes = [one for statement in body for one in walk(statement)]
    clamped = {part for one in nodes if is_method(one, "clamp_") for part in walk(one.func.value)}
    asked = {part for one in nodes if isinstance(one, ast.If) for part in walk(one.test)}
    return any(
        is_attribute(one, "grad", "get_scale", "_scale") and backward.lineno <= one.lineno <= step.lineno
        for one in nodes if one not in clamped and one not in asked
    )


def _is_scaled(program: Program, backward: ast.AST) -> bool:
    """Whether a scaler has scaled the loss of a backward, wherever that is done."""
    losses = (one.args[0] for one in computation_of(program).of("backward") if one.node is backward and one.args)
    return any(each.op == "scale" for loss in losses for each in alternatives(loss))


@RULES.add("scaler-passed-by", "updates are made with gradients that are wrong by the scaler's factor (65536 at first)", "scaler.scale(loss).backward(), scaler.step(optimizer), scaler.update()")
def _scaler_passed_by(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for _, body in bodies(program):
        events = [one for one in events_of(flow, body) if one.what in ("backward", "step", "unscale") and one.always]
        for before, event in itertools.pairwise(events):
            if before.what != "backward" or event.what != "step" or before.scaled == event.scaled:
                continue
            if before.scaled and not _unscaled_by_hand(body, before.node, event.node):
                yield Remark(event.node, f"the loss is scaled in line {before.node.lineno}, and {short(event.node)} steps past the scaler: the gradients are never unscaled")
            elif not before.scaled and program.family(event.node.func.value if is_method(event.node) else None) == "scaler" and not _is_scaled(program, before.node):
                yield Remark(event.node, f"{short(before.node)} is not scaled, and {short(event.node)} divides its gradients by the scaler's factor")


@RULES.add("scaler-not-updated", "after an overflow every step is left out", "call update() after step")
def _scaler_never_updated(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    for key, calls in flow.calls.items():
        steps = [call for call in calls if is_method(call, "step")]
        kind = program.family(calls[0].func.value) if is_method(calls[0]) else None
        if kind == "scaler" and steps and not any(is_method(call, "update") for call in calls) and (
            not flow.escapes(key) and flow.made(key) is not None
        ):
            yield Remark(steps[0], f"{key[1]}.update() is never called: a step whose gradients overflow is left out, and the scale never falls")


@RULES.add("cleared-in-micro-steps", _ORDER, "clear the gradients only after a step")
def _cleared_in_micro_steps(program: Program) -> Iterator[Remark]:
    """zero_grad in every pass, step only in some of them, or only after all of them."""
    flow = flow_of(program)
    for owner, body in bodies(program):
        if not isinstance(owner, Loop):
            continue
        events = events_of(flow, body)
        zeros = [one for one in events if one.what == "zero" and one.always]
        backwards = [one for one in events if one.what == "backward" and one.always]
        if not zeros or len(backwards) != 1:
            continue
        steps = [one for one in events if one.what == "step"]
        for zero in zeros:
            if any(one.what == "backward" and not one.always for one in events):
                continue  # each network has a backward of its own
            mine = [one for one in steps if _clears(flow, zero, one.of, len({step.of for step in steps}) == 1)]
            if mine and not any(one.always for one in mine) and all(_every_few(program, one.node, owner) for one in mine):
                yield Remark(zero.node, f"{short(zero.node)} runs in every pass, and {short(mine[0].node)} only in every few: the gradients of all passes but the last are thrown away")
        if steps:
            continue
        after = program.after(owner)
        events_after = [one for one in events_of(flow, after) if one.what in ("step", "zero", "backward")]
        step = events_after[0] if events_after else None
        given = any(isinstance(one, ast.Attribute) and one.attr == "grad" and isinstance(one.ctx, ast.Store) for statement in after for one in walk(statement))
        if step is not None and step.what == "step" and step.always and (step.scaled or not step.node.args) and not given:
            for zero in zeros:
                if _clears(flow, zero, step.of, True) and not any(_runs(program, one, "step") for statement in body for one in walk(statement)):
                    yield Remark(step.node, f"{short(step.node)} stands after the loop in which {short(zero.node)} runs in every pass: only the gradients of the last pass are used")


def _every_few(program: Program, node: ast.AST, loop: ast.AST) -> bool:
    """Whether a node runs only in passes that a remainder picks."""
    for around in program.parents(node):
        if around is loop:
            return False
        if isinstance(around, ast.If) and any(is_binary(one, ast.Mod) for one in walk(around.test)):
            return True
    return False


@RULES.add("batches-without-backward", "most batches are computed for nothing: only those of the pass with backward train the model", "call (loss / every).backward() in each pass, and step and zero_grad in every few")
def _without_backward(program: Program) -> Iterator[Remark]:
    """A loss that each pass over a loader computes, and backward and step that only every few passes run."""
    flow = flow_of(program)
    for loop in program.everywhere(ast.For):
        given = names_set(loop.target)
        for branch in loop.body:
            if not isinstance(branch, ast.If) or branch.orelse or not any(is_binary(one, ast.Mod) for one in walk(branch.test)):
                continue
            events = events_of(flow, branch.body)
            back = next((one.node for one in events if one.what == "backward"), None)
            loss = back.func.value if is_method(back) else None
            once = not any(one.what == "backward" for one in events_of(flow, [one for one in loop.body if one is not branch]))
            if not isinstance(loss, ast.Name) or not once or not any(one.what == "step" for one in events):
                continue
            assigned: list[ast.Assign | ast.AugAssign] = [*own(loop, ast.Assign), *own(loop, ast.AugAssign)]
            made = [one for one in assigned if loss.id in names_set(one)]
            if back is None or len(made) != 1 or made[0] not in loop.body:
                continue
            parts = list(flow.origins(made[0].value))
            carried = {name for one in assigned for name in names_set(one) if isinstance(one, ast.AugAssign) or name in names_read(one.value)}
            called = any(isinstance(one, ast.Call) and program.family(one.func) == "module" and names_read(one) & given for one in parts)
            if called and not any(isinstance(one, ast.Name) and one.id in carried for one in parts):
                yield Remark(back, f"{short(back)} runs only if {short(branch.test)}, and {short(made[0])} in each pass: the other losses are thrown away")


@RULES.add("gradients-not-cleared", _ORDER, "call zero_grad before each backward of a new step")
def _never_cleared(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    zeroed = [call for call in program.calls() if is_method(call, "zero_grad")]
    by_hand = any(
        isinstance(node.ctx, ast.Store) or isinstance(program.parent.get(node), ast.Attribute)
        for node in program.everywhere(ast.Attribute) if node.attr == "grad"
    )
    for call in program.calls() if not zeroed and not by_hand else ():
        given = call.args[0] if is_method(call, "step") and len(call.args) == 1 and _of_torch(flow, flow.key(call.func.value)) else None
        closures = program.functions.get(given.id, []) if isinstance(given, ast.Name) else []
        if len(closures) == 1 and mentions(closures[0], "backward"):
            yield Remark(call, f"{short(call)} runs {closures[0].name}() again and again, and nothing in it clears the gradients: each of its backwards adds to all before")
    for owner, body in bodies(program):
        if not isinstance(owner, Loop):
            continue
        events = events_of(flow, body)
        if not any(one.what == "backward" for one in events):
            continue
        for step in (one for one in events if one.what == "step" and one.always and not (one.node.args and not one.scaled)):
            key = flow.origin(step.of)
            if not _of_torch(flow, key) or by_hand or key is None or any(one.what == "zero" and one.of == step.of for one in events):
                continue
            above = [around for around in flow.loops(step.node) if around is not owner]
            cleared = {call: flow.origin(flow.key(call.func.value)) for call in zeroed}
            net = optimized(flow, key)
            own = [call for call, of in cleared.items() if of == key or (of is not None and net is not None and is_part(net, of))]
            if not zeroed:
                yield Remark(step.node, f"nothing clears the gradients before or after {short(step.node)}: each step uses the sum of all gradients so far")
            elif not own and _others_cleared(flow, events, key, cleared.values()) and not _escapes(flow, key) and all(flow.made(of) is not None for of in cleared.values()):
                yield Remark(step.node, f"{key[1]}.zero_grad() is never called, nor that of its network: each of its steps uses the sum of all its gradients so far")
            elif own and above and not any(one.what == "zero" for one in events) and all(
                owner not in (around := set(program.parents(call))) and around & {*above} for call in own
            ):
                yield Remark(own[0], f"{short(own[0])} runs once for a whole inner loop, and {short(step.node)} in each of its passes: the gradients pile up")


def is_part(net: Key, of: Key) -> bool:
    """Whether a network is another one, or an attribute of it."""
    return net[0] is of[0] and f"{net[1]}.".startswith(f"{of[1]}.")


def _others_cleared(flow: Flow, events: Sequence[Event], key: Key, cleared: Iterable[Key | None]) -> bool:
    """Whether what is cleared cannot hold an optimizer's parameters: it is another network, or all of it is an
    optimizer, one of which makes its own step beside this one's."""
    if optimized(flow, key) is not None:
        return True
    beside = {flow.origin(one.of) for one in events if one.what == "step"} - {key}
    known = list(cleared)
    return bool(beside.intersection(known)) and all(flow.program.family(flow.made(of)) == "optimizer" for of in known)


def _escapes(flow: Flow, key: Key) -> bool:
    """Whether a variable is read where more may be done with it than a schedule or a scaler does."""
    for node in flow.escapes(key):
        call = flow.program.parent.get(node)
        if isinstance(call, ast.keyword):
            call = flow.program.parent.get(call)
        if not isinstance(call, ast.Call):
            return True
        made = flow.program.family(call) == "scheduler" and flow.program.local_function(call) is None
        if not made and not is_method(call, "step", "unscale_"):
            return True
    return False


@RULES.add("gradients-read-after-clearing", "what is logged of the gradients is 0, or nothing, whatever they were", "read them after backward, before zero_grad")
def _read_after_clearing(program: Program) -> Iterator[Remark]:
    """The gradients of a model that are looked at between zero_grad and the next backward."""
    flow = flow_of(program)
    remarked: set[ast.AST] = set()
    for _, body in bodies(program):
        cleared: Event | None = None
        seen = False
        for statement in body:
            events = events_of(flow, [statement])
            reads = next(_gradients_read(program, statement), None)
            if cleared is not None and seen and reads is not None and not events and statement not in remarked:
                remarked.add(statement)
                yield Remark(reads, f"{short(reads)} reads the gradients after {short(cleared.node)} (line {cleared.node.lineno}) has cleared them")
            for event in events:
                seen = seen or event.what == "backward"
                if event.what in ("backward", "zero"):
                    whole = event.what == "zero" and event.always and len(events) == 1
                    cleared = event if whole else None
            if any(_runs(program, one, "backward") for one in walk(statement)):
                cleared = None


def _gradients_read(program: Program, statement: ast.stmt) -> Iterator[ast.AST]:
    """Where a statement, or a function of the program that it calls, takes a norm of the gradients of a model."""
    for node in walk(statement):
        if (is_method(node, "norm", "abs", "item", "mean", "max") and is_attribute(node.func.value, "grad") and goes_over(program, node.func.value.value, "parameters", "named_parameters")) or (is_method(node, "norm", "abs", "mean", "max") and is_attribute(node.func.value, "grad") and any(isinstance(one, ast.comprehension) and is_method(one.iter, "parameters") for one in walk(statement))):
            yield node
        local = program.local_function(node) if isinstance(node, ast.Call) and node.args else None
        if local is not None and not mentions(local, "backward", "step"):
            inside = [one for one in walk(local) if is_attribute(one, "grad") and not program.called(program.parent.get(one))]
            if inside and all(isinstance(one.ctx, ast.Load) for one in inside) and any(is_method(one, "norm") for one in walk(local)) and any(isinstance(one, ast.Return) for one in walk(local)):
                yield node


@RULES.add("never-stepped", "it has no effect on the training", "call its step, or delete it")
def _never_stepped(program: Program) -> Iterator[Remark]:
    flow = flow_of(program)
    backward = any(is_attribute(node, "backward") for node in program.everywhere(ast.Attribute))
    for key in flow.bound:
        made = flow.made(key)
        family = program.family(made)
        if made is None or not backward or family not in ("optimizer", "scheduler") or not program.kind_name(made).startswith("torch.optim."):
            continue
        read_elsewhere = flow.attributes.get(key[1].removeprefix("self."), 0) > len(flow.reads.get(key, []))
        if key[1].startswith("self.") and (read_elsewhere or _has_bases(key)):
            continue
        stepped = any(is_method(program.parent.get(node), "step") for node in flow.escapes(key))
        if stepped or "step" in flow.called_on(key) or _escapes(flow, key):
            continue
        if isinstance(key[0], ast.Module) and not flow.calls.get(key) and family == "optimizer":
            continue
        what = "no parameter of it ever changes" if family == "optimizer" else "the rate never changes"
        yield Remark(made, f"{key[1]} is made and never stepped: {what}")


def _has_bases(key: Key) -> bool:
    return isinstance(key[0], ast.ClassDef) and any(not is_name(base, "object") for base in key[0].bases)
