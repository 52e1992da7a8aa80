"""Losses that are multiplied by a factor before backward, and what is done before it is taken out of the gradients. Pure;
standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import is_clip, is_scaler, never_both, optimizer_of, plain, runs

FINDERS = Finders()


@FINDERS.add("clipped-while-scaled")
def _clipped_while_multiplied(program: Program) -> Iterator[Remark]:
    """A loss is multiplied by a factor, its gradients are clipped, and divided by the same factor after that."""
    computation = computation_of(program)
    for clip in computation.values:
        back = next((one for one in reversed(computation.values[: clip.number]) if one.op == "backward"), None) if is_clip(clip) else None
        if back is None or not back.args or runs(back) != runs(clip) or back.args[0].op != "mul":
            continue
        for after in computation.values[clip.number + 1 :]:
            if after.op == "backward" or optimizer_of(after) is not None or runs(after) != runs(clip):
                break
            factor = _taken_out(after)  # the number itself, or 1 by it
            times = None if factor is None else next((one for one in back.args[0].args if same(one, factor) or (number(one) or 0) * (number(factor) or 0) == 1), None)
            if times is not None and number(times) not in (0, 1):
                yield Remark(clip.node, f"{short(clip.node)} runs while the gradients are still multiplied by {short(times.node)} (line {back.line}): {short(after.node)} (line {after.line}) comes after it")
                break


@FINDERS.add("clipped-while-scaled")
def _clipped_before_its_mean(program: Program) -> Iterator[Remark]:
    """Gradients of a sum are clipped, and divided by the number of what was summed after that, before the step."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for step in computation.of("step"):
        before = computation.values[: step.number] if optimizer_of(step) is not None else []
        last = next((one.number for one in reversed(before) if one.op == "backward" and runs(one) == runs(step)), None)
        learned = {loop for one in before if one.op == "backward" for loop in one.where.loops}
        since = [one for one in before[last:] if runs(one) == runs(step) and not _in_loops_of(one, step, learned)] if last is not None else []
        for clip in since:
            if not is_clip(clip) or clip.node in said:
                continue
            divided = next((one for one in since if one.number > clip.number and not is_clip(one) and (by := _taken_out(one)) is not None and (number(by) or 2) > 1), None)
            by = _taken_out(divided) if divided is not None else None
            if divided is not None and by is not None and not never_both(clip, divided):
                said.add(clip.node)
                yield Remark(clip.node, f"{short(clip.node)} compares its bound with sums: {short(divided.node)} (line {divided.line}) divides the gradients by {short(by.node)} after it, and the step follows what is left")


def _in_loops_of(value: Value, step: Value, learned: set[ast.AST]) -> bool:
    """Whether a value is computed in a loop that a step is not in, with a backward in it; or outside of the loops of the step."""
    deep = len(step.where.loops)
    return value.where.loops[:deep] != step.where.loops or any(loop in learned for loop in value.where.loops[deep:])


def _taken_out(value: Value) -> Value | None:
    """What a gradient is divided by."""
    if value.op.rpartition(".")[2] == "_foreach_div_" and len(value.args) == 2:
        return value.args[1] if any(one.op == "grad" for one in origins(value.args[0])) else None
    if value.op not in ("div", "mul") or len(value.args) != 2 or bare(value.args[0], shapes=False).op != "grad":
        return None
    other = value.args[1]
    if value.op == "div":
        return other
    return other.args[1] if other.op == "div" and number(other.args[0]) == 1 else other if number(other) is not None else None


def scaler_updated_between(program: Program) -> Iterator[Remark]:
    """Two optimizers step by one scaler in a pass, and the scaler is updated between the two, with no backward after that."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for update in computation.of("update"):
        if not update.args or not is_scaler(plain(update.args[0])) or update.node in said:
            continue
        first = _step_of(update, reversed(computation.values[: update.number]))
        later = _step_of(update, iter(computation.values[update.number + 1 :]))
        if first is None or later is None or optimizer_of(first) is optimizer_of(later) or never_both(first, later):
            continue
        if first.where.loops == later.where.loops == update.where.loops and first.where.loops:
            said.add(update.node)
            yield Remark(update.node, f"{short(update.node)} stands between {short(first.node)} (line {first.line}) and {short(later.node)} (line {later.line}): the second step divides by the new factor gradients that were multiplied by the old one")


def _step_of(update: Value, values: Iterator[Value]) -> Value | None:
    """The next step by the scaler of an update, where no backward and no other update comes first."""
    for one in values:
        if one.op == "backward" or runs(one) != runs(update) or (one.op == "update" and one.args and is_scaler(plain(one.args[0]))):
            return None
        if one.op == "step" and len(one.args) > 1 and plain(one.args[0]) is plain(update.args[0]):
            return one if optimizer_of(one) is not None else None
    return None


@FINDERS.add("scaler-not-updated")
def _updated_after_many(program: Program) -> Iterator[Remark]:
    """A scaler steps in each pass of a loop, and is updated after the loop."""
    computation = computation_of(program)
    for step in computation.of("step"):
        scaler = plain(step.args[0]) if len(step.args) > 1 else None
        updates = [one for one in computation.of("update") if one.args and plain(one.args[0]) is scaler] if scaler is not None and is_scaler(scaler) else []
        outside = [one for one in updates if len(one.where.loops) < len(step.where.loops) and step.where.loops[: len(one.where.loops)] == one.where.loops and runs(one) == runs(step)]
        if outside and len(outside) == len(updates):
            yield Remark(outside[0].node, f"{short(outside[0].node)} stands outside of the loop of line {getattr(step.where.loops[-1], 'lineno', 0)}, in each pass of which {short(step.node)} steps: after an overflow, all steps until its end are left out")
            return
