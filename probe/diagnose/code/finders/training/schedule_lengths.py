"""How long schedules of the rate are, and in which unit they step; what ReduceLROnPlateau is given. Pure; standard library
only."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator, Sequence

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Instance, Many, Value, bare, constant, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import last_word, short
from probe.diagnose.code.traits.arithmetic import is_run_of_network, networks
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.updates import backwards, is_schedule, optimizer_of

FINDERS = Finders()
_LENGTHS = {"CosineAnnealingLR": ("T_max", 1), "OneCycleLR": ("total_steps", 2), "LinearLR": ("total_iters", 3), "PolynomialLR": ("total_iters", 1)}
"""The argument of a schedule that says how many steps it has, and its place."""
LEAST_RATIO, SOON = 1e-3, 1000
"""A rate that is a thousandth of the first one after a thousand batches trains nothing in all that follow."""
_PLATEAU = "torch.optim.lr_scheduler.ReduceLROnPlateau"


@FINDERS.add("wrong-way-round")
def _wrong_way(program: Program) -> Iterator[Remark]:
    """A schedule that waits for a score to rise is given one that falls as the model improves, or the other way round."""
    computation = computation_of(program)
    known = networks(computation)
    minimized = {core.node for _, loss in backwards(computation) for core in (bare(loss),) if core.op not in ("run", "part", "@input")}
    said: set[Value] = set()
    for value in computation.of("step"):
        schedule = value.args[0] if value.args else value
        if schedule.op != _PLATEAU or len(value.args) < 2 or schedule in said:
            continue
        given = schedule.argument("mode", 1)
        mode = "min" if given is None else constant(given)
        better = _direction(value.args[1], known) or ("falls" if bare(value.args[1]).node in minimized else None)
        if (better, mode) in (("falls", "max"), ("rises", "min")):
            said.add(schedule)
            yield Remark(value.node, f"{short(value.node)} gives a score that {better} as the model improves to a schedule in mode {mode!r}: the rate is cut while all goes well")


def _direction(value: Value, known: set[int], depth: int = 16) -> str | None:
    """Whether a score falls or rises as the model improves; None where that is unknown."""
    value = bare(value, "mean", "sum", "sqrt", "sum_of", "mul", "part" if constant(value.args[1] if len(value.args) > 1 else None) is not None else "mean")
    if depth == 0:
        return None
    if value.op in LOSSES and constant(value.named.get("reduction")) in (None, "mean", "sum"):
        return "falls"
    if value.op == "div" and len(value.args) == 2:
        return _direction(value.args[0], known, depth - 1)
    if value.op == "eq":
        return "rises" if any(bare(one).op in ("argmax", "max", "part", "gt", "ge") for one in value.args) else None
    if value.op == "add" and number(value.args[0]) == 0:
        return _direction(value.args[1], known, depth - 1)
    inner = bare(value.args[0]) if value.op in ("abs", "pow", "square") and value.args else None
    if inner is not None and inner.op == "sub" and any(is_run_of_network(bare(one), known) for one in inner.args):
        return "falls"
    return None


# How long a schedule is ---------------------------------------------------------------


@FINDERS.add("schedule-at-the-wrong-level")
def _another_unit(program: Program) -> Iterator[Remark]:
    """A schedule whose length counts batches steps once an epoch, or one whose length counts epochs steps with each batch."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("step"):
        schedule = value.args[0] if value.args else value
        if not is_schedule(schedule) or value.node in said or schedule.op == _PLATEAU:
            continue
        word = schedule.op.rpartition(".")[2]
        updates = [one for one in computation.of("step") if one.number < value.number and (held := optimizer_of(one)) is not None and held is schedule.argument("optimizer", 0)]
        loaders = {loop: over for one in updates for loop, over in loops_around(computation, one) if loop not in value.where.loops}
        counted = next((one for one in _lengths(schedule) for over in loaders.values() if counts_batches(one, over)), None)
        inside = any(one.node is value.node and any(loop in one.where.loops for loop in loaders) for one in computation.of("step"))
        if counted is not None and value.where.loops and not inside and not any(loop in value.where.loops for loop in loaders):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} runs once an epoch, and {word} is made for a number of batches: {short(counted.node)} (line {counted.line})")
            continue
        every = next((by for one in updates if one.where.loops == value.where.loops for by in only_every(one, value)), None)
        divided = next((one for one in _lengths(schedule) if every is not None and _is_share_of_passes(computation, value, one, every)), None)
        divided = divided or next((one for one in _lengths(schedule) for each in origins(one) if each.op in ("div", "floordiv", "ceil") and len(each.args) == 2 and every is not None and _counts_updates(computation, each.args[1], every, value)), None)
        if divided is not None:
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} runs in each pass, and the optimizer steps in one of {short(every.node) if every is not None else ''}: {word} is made for {short(divided.node)} (line {divided.line}) of those")
            continue
        by = next(one_in(value), None)
        whole = next((one for one in _lengths(schedule) for _, over in loops_around(computation, value) if by is not None and counts_batches(one, over, cut_at(computation, over))), None)
        if whole is not None and by is not None and (number(by) or 2) > 1 and not any(one.op in ("div", "floordiv", "ceil") and any(same(bare(part), by) for part in one.args) for one in origins(whole)):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} runs once in {short(by.node)} batches, and {word} is made for {short(whole.node)} (line {whole.line}), all batches")
            continue
        bound, epochs = _epochs_around(computation, value) or (None, None)
        length = next(iter(_lengths(schedule)), None)
        if word == "LambdaLR" and bound is not None:
            length = next((one for one, warm in told_length(schedule) if same(one, bound) or (warm is not None and number(one) is not None and (number(one) or 0) + warm == number(bound))), None)
            bound = bound if length is None else length
        if bound is not None and length is not None and word in (*_LENGTHS, "LambdaLR") and same(bare(length), bound) and (number(bound) or 2) > 1:
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} runs for each batch, and {word} is made for {short(length.node)}{' steps, the number' if word in _LENGTHS else ': it counts'} of epochs")
            continue
        if word == "SequentialLR" and bound is not None and (number(bound) or 0) > 2 and _ends_after(schedule) == number(bound):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} runs for each batch, and {short(schedule.node)} (line {schedule.line}) ends after {number(bound):g} steps, the number of epochs")
            continue
        size = schedule.argument("step_size", 1) if word == "StepLR" else schedule.argument("milestones", 1) if word == "MultiStepLR" else None
        if bound is not None and size is not None and epochs is not None and _is_share_of(size, bound, epochs):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} runs for each batch, and {short(size.node)} (line {size.line}), at which {word} lowers the rate, is a share of the number of epochs")


def gone_after(every: float, factor: float) -> int:
    """After how many steps a rate that is multiplied by a factor below 1 once in `every` steps is `LEAST_RATIO` of the
    first one."""
    return round(every * math.ceil(math.log(LEAST_RATIO) / math.log(factor)))


@FINDERS.add("schedule-at-the-wrong-level")
def _gone_in_a_few_batches(program: Program) -> Iterator[Remark]:
    """A schedule that is meant for epochs runs for each batch, and the rate is gone after some hundred of them."""
    computation = computation_of(program)
    for value in computation.of("step"):
        schedule = value.args[0] if value.args else value
        word = schedule.op.rpartition(".")[2]
        if word not in ("StepLR", "ExponentialLR") or not is_schedule(schedule) or value.where.under or len(value.where.loops) < 2:
            continue
        every = number(schedule.argument("step_size", 1)) if word == "StepLR" else 1.0
        given = schedule.argument("gamma", 2 if word == "StepLR" else 1)
        factor = 0.1 if given is None and word == "StepLR" else number(given)
        inner = list(loops_around(computation, value))[-1:]
        if every is None or factor is None or not 0 < factor < 1 or not inner or inner[0][1].op != "torch.utils.data.DataLoader":
            continue
        fallen = gone_after(every, factor)
        if fallen <= SOON:
            yield Remark(value.node, f"{short(value.node)} runs for each batch: {word} has brought the rate below a thousandth after {fallen} of them")
            return


@FINDERS.add("schedule-at-the-wrong-level")
def _as_long_as_there_are_samples(program: Program) -> Iterator[Remark]:
    """A schedule steps with each batch, and is as long as there are samples."""
    computation = computation_of(program)
    for value in computation.of("step"):
        schedule = value.args[0] if value.args else value
        if not is_schedule(schedule) or schedule.op == _PLATEAU or value.where.under:
            continue
        over = next((each for _, each in list(loops_around(computation, value))[-1:]), value)
        data = over.argument("dataset", 0) if over.op == "torch.utils.data.DataLoader" else None
        size = over.argument("batch_size", 1) if data is not None else over.args[2] if over.op == "range" and len(over.args) == 3 else None
        if size is None or number(size) == 1 or "batch_sampler" in over.named or (data is None and not any(one.op == "len" or one.op in ("size", "shape") for one in origins(over.args[1]))):
            continue
        for length in _lengths(schedule):
            found = list(origins(length, stop=("len", "part")))
            whole = next((one for one in found if _counts_samples(one, over, data)), None)
            if whole is not None and not any(one.op in ("div", "floordiv", "ceil") for one in found) and not any(same(bare(one), bare(size)) for one in found):
                yield Remark(value.node, f"{short(value.node)} runs once for each batch of {short(size.node)}, and {schedule.op.rpartition('.')[2]} is made for {short(length.node)} (line {length.line}): {short(whole.node)} counts samples")
                return


@FINDERS.add("schedule-at-the-wrong-level")
def _steps_in_two_places(program: Program) -> Iterator[Remark]:
    """A schedule steps in two places in each pass in which its optimizer steps once."""
    computation = computation_of(program)
    steps = [one for one in computation.of("step") if one.args and not one.where.under and one.where.loops]
    for first, second in itertools.combinations([one for one in steps if is_schedule(one.args[0]) and one.args[0].op != _PLATEAU], 2):
        if first.args[0] is second.args[0] and first.node is not second.node and first.where.loops == second.where.loops:
            updates = [one for one in computation.of("step") if (held := optimizer_of(one)) is not None and held is first.args[0].argument("optimizer", 0)]
            if len(updates) == 1 and updates[0].where.loops == first.where.loops:
                yield Remark(second.node, f"{short(second.node)} runs in each pass, and {short(first.node)} (line {first.line}) does too: the schedule moves on twice for each step of the optimizer (line {updates[0].line})")
                return


def _counts_samples(value: Value, over: Value, data: Value | None) -> bool:
    """Whether a value is the number of samples that a loop over batches goes through."""
    if data is None:
        return same(bare(value), bare(over.args[1]))
    of = bare(value.args[0]) if value.op == "len" and value.args else None
    return of is not None and (of is bare(data) or (of.op == "dataset" and bool(of.args) and of.args[0] is over))


@FINDERS.add("schedule-at-the-wrong-level")
def _steps_with_each_part(program: Program) -> Iterator[Remark]:
    """A schedule steps in each pass of an inner loop, the optimizer once for all of them, and the schedule is as long as the
    loop around them."""
    computation = computation_of(program)
    for value in computation.of("step"):
        schedule = value.args[0] if value.args else value
        if not is_schedule(schedule) or schedule.op == _PLATEAU or value.where.under or len(value.where.loops) < 2:
            continue
        around = list(loops_around(computation, value))
        updates = [one for one in computation.of("step") if (held := optimizer_of(one)) is not None and held is schedule.argument("optimizer", 0)]
        if [loop for loop, _ in around[-2:]] != list(value.where.loops[-2:]) or not updates:
            continue
        (outer, passes), (inner, parts) = around[-2:]
        bound, each = _passes_of(passes), _passes_of(parts)
        if bound is None or (each is not None and number(each) == 1) or not all(_is_once_in(one, value, inner, each) for one in updates):
            continue
        whole = next((one for one in _lengths(schedule) if _is_as_long(one, bound) and not (each is not None and any(same(bare(part), each) for part in origins(one)))), None)
        if whole is not None:
            yield Remark(value.node, f"{short(value.node)} runs in each pass of the loop of line {getattr(inner, 'lineno', 0)}, and the optimizer steps once for all of them: {schedule.op.rpartition('.')[2]} is made for {short(whole.node)} (line {whole.line}), the passes of the loop of line {getattr(outer, 'lineno', 0)}")
            return


def _passes_of(over: Value) -> Value | None:
    """How often a loop runs: `n` of `range(n)` and `range(1, n + 1)`, what `len` would give of a list."""
    if over.op != "range" or not over.args or len(over.args) > 2:
        return over if over.op in ("@input", "list", "tuple", "torch.utils.data.DataLoader") else None
    end = over.args[-1]
    if len(over.args) == 1 or number(over.args[0]) == 0:
        return bare(end)
    if number(over.args[0]) == 1 and end.op == "add" and len(end.args) == 2 and number(end.args[1]) == 1:
        return bare(end.args[0])
    first, last = number(over.args[0]), number(end)
    return None if first is None or last is None else Value("@constant", node=end.node, where=end.where, data=int(last - first))


def _is_as_long(length: Value, bound: Value) -> bool:
    """Whether a number of steps is that of the passes of a loop, or a multiple of it."""
    length = bare(length, "builtins.int")
    if length.op == "mul":
        return any(_is_as_long(one, bound) for one in length.args)
    known = number(length), number(bound)
    return (known[0] == known[1] if None not in known else same(length, bound)) or (length.op == "len" and bool(length.args) and length.args[0] is bound)


def _is_once_in(update: Value, step: Value, inner: ast.AST, passes: Value | None) -> bool:
    """Whether an optimizer steps once in all passes of an inner loop: after them, or in the last one."""
    if update.where.loops == step.where.loops[:-1]:
        return update.number > step.number and not update.where.under
    if update.where.loops != step.where.loops or passes is None:
        return False
    return any(holds and one.op == "eq" and len(one.args) == 2 and _is_last(one.args, inner, passes) for test, holds in update.where.under for one in origins(test))


def _is_last(sides: Sequence[Value], inner: ast.AST, passes: Value) -> bool:
    """Whether one of two numbers is that of a pass of a loop, and the other one that of its last."""
    for count, other in (sides, sides[::-1]):
        if not any(one.op == "index" and one.node is inner for one in origins(count)):
            continue
        known, end = number(passes), number(other)
        if count.op == "mod" and len(count.args) == 2:
            by = bare(count.args[1])
            return same(by, passes) or (number(by) == known if known is not None else by.op == "len" and by.args[0] is passes)
        if known is not None:
            return end is not None and end in (known - 1, known)
        return any(same(bare(one), passes) or (one.op == "len" and bool(one.args) and one.args[0] is passes) for one in origins(other))
    return False


@FINDERS.add("schedule-at-the-wrong-level")
def _as_long_as_another_loop(program: Program) -> Iterator[Remark]:
    """A schedule is as long as a loop around it runs, and steps once in several of its passes or several times in each; or
    it is as long as a loop within that one runs in all, and steps once in each pass."""
    computation = computation_of(program)
    for value in computation.of("step"):
        schedule = value.args[0] if value.args else value
        if not is_schedule(schedule) or schedule.op == _PLATEAU or not value.where.loops:
            continue
        steps = [one for one in computation.of("step") if one.args and one.args[0] is schedule]
        updates = [one for one in computation.of("step") if (held := optimizer_of(one)) is not None and held is schedule.argument("optimizer", 0)]
        around = [(loop, bound) for loop in value.where.loops for bound in (bound_of(computation, value, loop),)]
        word, line = schedule.op.rpartition(".")[2], getattr(around[-1][0], "lineno", 0)
        for length in whole_lengths(schedule) if len(steps) == 1 and updates else ():
            said = f"{word} is made for {short(length.node)} (line {length.line}) steps"
            last, by = around[-1][1], next(one_in(value), None)
            if last is not None and by is not None and (number(by) or 2) > 1 and _is_equal(length, last) and any(one.where.loops == value.where.loops and len(one.where.under) < len(value.where.under) for one in updates):
                yield Remark(value.node, f"{short(value.node)} runs once in {short(by.node)} passes of the loop of line {line}, and {said}, the number of all passes")
                return
            with_update = all(not holds or any(each.op == "mod" for each in origins(test)) for test, holds in value.where.under) and any(one.where.loops == value.where.loops and one.where.under == value.where.under for one in updates)
            if (with_update or not value.where.under) and any(bound is not None and (number(bound) or 2) > 1 and _is_equal(length, bound) and _runs_often(computation, value, place + 1) for place, (_, bound) in enumerate(around[:-1])):
                yield Remark(value.node, f"{short(value.node)} runs in each pass of the loop of line {line}, and {said}, the number of passes of a loop around it")
                return
            deeper = any(one.where.loops[: len(value.where.loops)] == value.where.loops and len(one.where.loops) > len(value.where.loops) for one in updates)
            if deeper and last is not None and not value.where.under and length.op == "mul" and any(_is_equal(one, last) and number(other) != 1 for one, other in (length.args, length.args[::-1])):
                yield Remark(value.node, f"{short(value.node)} runs once in each pass of the loop of line {line}, {short(last.node)} times in all, and {said}")
                return


def _is_equal(one: Value, other: Value) -> bool:
    """Whether two numbers of steps are equal."""
    known = number(one), number(other)
    return known[0] == known[1] if None not in known else same(bare(one), bare(other))


def whole_lengths(schedule: Value) -> Iterator[Value]:
    """How many steps a schedule has, with those of its warm-up."""
    word = schedule.op.rpartition(".")[2]
    if word in ("SequentialLR", "ChainedScheduler"):
        parts = schedule.argument("schedulers", 1 if word == "SequentialLR" else 0)
        for one in parts.parts[-1:] if isinstance(parts, Many) else ():
            yield from whole_lengths(one)
    found = [one for one, _ in told_length(schedule)] if word == "LambdaLR" else [given for name in [word] if name in _LENGTHS and (given := schedule.argument(*_LENGTHS[name])) is not None]
    for one in found:
        at = bare(one, "builtins.int")
        yield bare(at.args[0], "builtins.int") if at.op == "sub" and len(at.args) == 2 else at


def _ends_after(schedule: Value) -> float | None:
    """After how many steps the last of several schedules in a row ends."""
    parts, begins = schedule.argument("schedulers", 1), schedule.argument("milestones", 2)
    last = parts.parts[-1] if isinstance(parts, Many) and parts.parts else schedule
    name = last.op.rpartition(".")[2]
    length = number(last.argument(*_LENGTHS[name])) if name in _LENGTHS else None
    first = number(begins.parts[-1]) if isinstance(begins, Many) and begins.parts else None
    return None if length is None or first is None else first + length


def bound_of(computation: Computation, value: Value, loop: ast.AST) -> Value | None:
    """How often a loop around a value runs: `n` of `range(n)`, and of `while step < n`."""
    if isinstance(loop, ast.While):
        test = next((one for one in computation.of("lt") if one.node is loop.test and len(one.args) == 2), None)
        return None if test is None or test.args[0].op not in ("@constant", "count") else bare(test.args[1])
    over = next((over for node, over in loops_around(computation, value) if node is loop), None)
    return _passes_of(over) if over is not None and over.op == "range" else None


def _runs_often(computation: Computation, value: Value, place: int) -> bool:
    """Whether a loop around a value, from a place on, goes over batches or makes many passes."""
    for loop in value.where.loops[place:]:
        over = next((over for node, over in loops_around(computation, value) if node is loop), None)
        takes = isinstance(loop, ast.While) and any(isinstance(one, ast.Call) and last_word(one.func) == "islice" for one in ast.walk(loop.test))
        if takes or (over is not None and (over.op in ("torch.utils.data.DataLoader", "split") or isinstance(over, Instance) or _gives_many(over) or cut_at(computation, over) is not None)):
            return True
    return False


def _lengths(schedule: Value) -> Iterator[Value]:
    """What says how many steps a schedule has."""
    word = schedule.op.rpartition(".")[2]
    if word == "OneCycleLR" and "steps_per_epoch" in schedule.named:
        yield schedule.named["steps_per_epoch"]
    if word in _LENGTHS and (given := schedule.argument(*_LENGTHS[word])) is not None:
        yield given
    if word == "LambdaLR" and "factor" in schedule.named:
        yield from (one.args[1] for one in origins(schedule.named["factor"]) if one.op in ("div", "lt", "le", "gt", "ge") and len(one.args) == 2)


def told_length(schedule: Value) -> Iterator[tuple[Value, float | None]]:
    """What a LambdaLR divides the number of steps by, with the length of its warm-up. Of several, that of what falls: what is
    in a cosine, or taken from 1; the others are warm-ups."""
    found = list(_divisors(schedule))
    falls = [part for one in origins(schedule.named["factor"]) if one.op == "cos" or (one.op == "sub" and number(one.args[0]) == 1) or (one.op == "div" and (above := bare(one.args[0])).op == "sub" and bare(above.args[1]).op == "index") for part in origins(one)] if "factor" in schedule.named else []
    several = any(not same(one[0], found[0][0]) for one in found)
    yield from ((total, warm) for total, warm in found if not several or any(one.op == "div" and any(part is total for part in origins(one.args[1])) for one in falls))


def _divisors(schedule: Value) -> Iterator[tuple[Value, float | None]]:
    """What a LambdaLR divides the number of steps by, from the start or after a warm-up, with its length: `s / total`,
    `(s - warm) / (total - warm)`."""
    for one in origins(schedule.named["factor"]) if "factor" in schedule.named else ():
        if one.op != "div" or len(one.args) != 2:
            continue
        steps, total = (bare(part) for part in one.args)
        if total.op in ("max", "maximum", "builtins.max"):  # `max(1, total - warm)`
            total = max((bare(part) for part in total.args), key=lambda part: math.inf if (known := number(part)) is None else known)
        if steps.op == "mul":  # `pi * (s - warm) / (total - warm)`
            steps = next((bare(part) for part in steps.args if any(each.op == "index" for each in origins(part))), steps)
        if steps.op == "sub" and len(steps.args) == 2 and bare(steps.args[1]).op == "index" and total.op == "sub" and same(bare(steps.args[0]), bare(total.args[0])):
            yield bare(steps.args[0]), number(total.args[1])  # `(total - s) / (total - warm)`
        warm = bare(steps.args[1]) if steps.op == "sub" and len(steps.args) == 2 else None
        begun = steps if warm is None else bare(steps.args[0])
        if warm is not None and total.op == "sub" and len(total.args) == 2 and same(bare(total.args[1]), warm):
            total = bare(total.args[0])
        if begun.op == "index" and not begun.args:
            yield total, number(warm)


def _is_share_of(size: Value, whole: Value, counted: ast.AST) -> bool:
    """Whether a number, or each of a list, is a share of how often a loop runs: `epochs // 3`, `0.5 * epochs`."""
    if isinstance(size, Many):
        return bool(size.parts) and all(_is_share_of(one, whole, counted) for one in size.parts)
    size = bare(size)
    if size.op in ("floordiv", "div", "mul") and len(size.args) == 2:
        return any(same(bare(one), whole) for one in size.args) and any(number(one) is not None for one in size.args)
    share, number_of_all = number(size), number(whole)
    if share is None or number_of_all is None or not isinstance(size.node, (ast.BinOp, ast.Call)) or not isinstance(counted, (ast.For, ast.AsyncFor)):
        return False
    words = [{last_word(one) for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute))} for node in (size.node, counted.iter)]
    return bool((words[0] & words[1]) - {"range", "int", "self", "args", "cfg", "config"}) and share < number_of_all


def loops_around(computation: Computation, value: Value) -> Iterator[tuple[ast.AST, Value]]:
    """The loops around a value, each with what it goes over, without a count or a progress bar."""
    for loop in value.where.loops:
        found = [over for count, node, over in computation.passes if node is loop and count <= value.number]
        if found:
            at = found[-1]
            while at.op in ("enumerate", "tqdm", "tqdm.tqdm", "tqdm.auto.tqdm", "iter") and at.args:
                at = at.args[0]
            yield loop, at


def counts_batches(length: Value, over: Value, cut: Value | None = None) -> bool:
    """Whether a number is a multiple of the number of batches that a loop goes over: of the parts that `cut`, a range, says
    where to begin."""
    found = list(origins(length, stop=("len",)))
    if cut is not None:
        divided = [one for one in found if one.op in ("div", "floordiv") and len(one.args) == 2]
        return len(divided) == 1 and same(bare(divided[0].args[1]), bare(cut.args[2])) and any(same(one, bare(cut.args[1])) for one in origins(divided[0].args[0], stop=("len",)))
    return any(one.op == "len" and one.args and one.args[0] is over for one in found) and not any(
        one.op in ("div", "floordiv") and any(part.op == "len" for part in origins(one.args[1], stop=("len",))) for one in found
    )


def cut_at(computation: Computation, over: Value) -> Value | None:
    """The `range(0, n, size)` that a list of cuts of the data is made over."""
    if not isinstance(over, Many) or not over.grown or not isinstance(over.node, ast.ListComp) or len(over.node.generators) != 1 or over.node.generators[0].ifs:
        return None
    return next((each for _, node, each in computation.passes if node is over.node and each.op == "range" and len(each.args) == 3), None)


def _gives_many(over: Value) -> bool:
    """Whether a loop goes over what a generator of the program yields, over cuts of the data (`range(0, n, size)`), or makes
    many passes."""
    if over.op == "zip" and over.args:
        over = next((part for one in over.args[:1] if one.op == "star" for part in origins(one) if isinstance(part, Many) and part.grown), over.args[0])
    if over.op == "range":
        return len(over.args) == 3 or (len(over.args) == 1 and (number(over.args[0]) or 0) >= 20)
    return isinstance(over, Many) and over.grown and isinstance(over.node, ast.Call)


def only_every(step: Value, value: Value) -> Iterator[Value]:
    """In one of how many passes an optimizer steps, where another value is computed in all of them."""
    around = {id(test) for test, _ in value.where.under}
    for test, _ in step.where.under:
        if id(test) in around:
            continue
        yield from (bare(one.args[1]) for one in origins(test) if one.op == "mod" and len(one.args) == 2)


def _counts_updates(computation: Computation, divisor: Value, every: Value, value: Value) -> bool:
    """Whether a number of batches or of samples, divided by a number, is that of the updates, each made of `every` batches."""
    divisor = bare(divisor, "builtins.int")
    if same(divisor, every) or (divisor.op == "mul" and any(same(bare(one), every) for one in divisor.args)):
        return True
    samples, batches = number(divisor), number(every)
    if samples is None or batches is None or batches < 2:
        return False
    sizes = [over.argument("batch_size", 1) if over.op == "torch.utils.data.DataLoader" else over.args[2] if over.op == "range" and len(over.args) > 2 else None for _, over in list(loops_around(computation, value))[-1:]]
    return any((number(one) or 1) > 1 and (number(one) or 0) * batches == samples for one in sizes)


def _is_share_of_passes(computation: Computation, value: Value, length: Value, every: Value) -> bool:
    """Whether a number of steps, times `every`, is that of all passes of the loops around a value."""
    bounds, steps, each = [bound_of(computation, value, loop) for loop in value.where.loops], number(length), number(every)
    whole = math.prod(number(one) or 0.0 for one in bounds)
    return steps is not None and each is not None and each > 1 and whole > 0 and abs(steps * each - whole) < 0.02 * whole


def one_in(step: Value) -> Iterator[Value]:
    """In one of how many passes a step runs, by the rest of a count."""
    for test, holds in step.where.under:
        yield from (bare(one.args[1]) for one in origins(test) if one.op == "mod" and len(one.args) == 2 and holds)


def _epochs_around(computation: Computation, value: Value) -> tuple[Value, ast.AST] | None:
    """How often the loop around the loop over the batches runs, of a value in both, and that loop."""
    around = list(loops_around(computation, value))
    for (loop, outer), (_, inner) in itertools.pairwise(around):
        drawn = inner.op in ("view", "reshape", "chunk") and any(one.op == "randperm" for one in origins(inner))
        batches = drawn or inner.op in ("torch.utils.data.DataLoader", "split") or isinstance(inner, Instance) or _gives_many(inner)
        if batches and outer.op == "range" and outer.args:
            begin = outer.args[0] if len(outer.args) > 1 else None
            if begin is None or number(begin) == 0:
                return bare(outer.args[-1] if len(outer.args) < 3 else outer.args[1]), loop
    return None
