"""Steps of time: hazards after the end, and changes that are taken for states. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_read, short
from probe.diagnose.code.traits.arithmetic import complement_of, computed_by_none, of_one_layer
from probe.diagnose.code.traits.basic import LOSSES, losses, without_small

FINDERS = Finders()
_ENTROPIES = ("binary_cross_entropy_with_logits", "binary_cross_entropy")


def hazards_after_the_end(program: Program) -> Iterator[Remark]:
    """The hazard of each interval is asked for, also of those after an event or a cut-off: the target is a one-hot of the last
    interval, and nothing leaves out the rest."""
    computation = computation_of(program)
    survived = [bare(inner) for one in computation.of("cumprod", "cumsum", "prod") if one.args and (inner := _hazard(one.args[0])) is not None]
    for loss in [one for _, whole in losses(computation) for one in origins(whole)] if survived else ():
        if loss.op not in _ENTROPIES or len(loss.args) < 2 or loss.named.keys() & {"weight"}:
            continue
        target = bare(loss.args[1])
        marked = [bare(one) for one in target.args] if target.op == "mul" and len(target.args) == 2 else [target]
        last = next((one for one in marked if one.op == "one_hot"), None)
        scores = bare(loss.args[0], "sigmoid")
        if last is None or not any(of_one_layer(scores, one) for one in survived) or any(_is_masked(user, loss) for user in computation.users(loss)):
            continue
        yield Remark(loss.node, f"{short(loss.node)} asks for a hazard of 0 in all intervals but that of {short(last.node)} (line {last.line}), also in those after it, in which nobody was seen")
        return


def _hazard(value: Value) -> Value | None:
    """What a network gives of whose sigmoid 1 less is taken."""
    value = bare(value)
    value = bare(value.args[0]) if value.op == "log" and value.args else value
    inner = complement_of(without_small(value))
    inner = bare(inner) if inner is not None else None
    if inner is None and value.op in ("logsigmoid", "sigmoid") and value.args and bare(value.args[0]).op == "neg":
        return bare(value.args[0]).args[0]
    return inner.args[0] if inner is not None and inner.op == "sigmoid" and inner.args else None


def _is_masked(user: Value, loss: Value) -> bool:
    """Whether the losses of intervals are multiplied by a mask, or chosen by one."""
    return (user.op in ("mul", "masked_select") or (user.op == "part" and user.args[0] is loss)) and any(one is not loss and number(one) is None for one in user.args)


def change_for_the_state(program: Program) -> Iterator[Remark]:
    """A network that is trained on the change from one state to the next gives, in a loop, the next state itself."""
    computation = computation_of(program)
    changes = []
    for loss in [one for _, whole in losses(computation) for one in origins(whole)]:
        sides = loss.args[:2] if loss.op in LOSSES or loss.op == "sub" else ()
        for made, target in (sides, sides[::-1]) if len(sides) == 2 else ():
            run, change = bare(made), _difference(target)
            if run.op == "run" and change is not None and _reads(run, change.args[1]):
                changes.append((run, change))
    for name, given in computation.stored.items() if changes else ():
        for value in given:
            step = _unscaled(value)
            learned = next(((run, change) for run, change in changes if step.op == "run" and step is not run and of_one_layer(step, run)), None)
            if learned is None or not value.where.no_grad or not value.where.loops or not _goes_on(computation, name, value.where.loops[-1]):
                continue
            yield Remark(value.node, f"{short(value.node)} is given to the network as the next state, and it is trained on {short(learned[1].node)} (line {learned[1].line}): the change from the state before, which is not added")
            return


def _difference(value: Value) -> Value | None:
    """The difference of two rows that a target is, but for its scale."""
    for _ in range(12):
        value = bare(value)
        if value.op == "sub" and len(value.args) == 2:
            if bare(value.args[1]).op in ("mean", "min", "median", "@constant"):
                value = value.args[0]
                continue
            return value if all(computed_by_none(one) for one in value.args) else None
        if value.op in ("div", "part", "rows", "mul") and value.args:
            value = value.args[0]
        else:
            return None
    return None


def _reads(run: Value, state: Value) -> bool:
    """Whether a network is given the state that a change is counted from."""
    return any(one is bare(state) for one in origins(run))


def _unscaled(value: Value) -> Value:
    """What a network gives, without a scale and a mean that are put back."""
    for _ in range(6):
        value = bare(value)
        if value.op in ("add", "mul") and len(value.args) == 2 and bare(value.args[1]).op in ("std", "mean", "@constant", "part"):
            value = value.args[0]
        else:
            return value
    return value


def _goes_on(computation: Computation, target: ast.Name, loop: ast.AST) -> bool:
    """Whether a name, which a loop gives what a network gives, is what the network was given."""
    parents = list(computation.program.parents(target))
    given = next((one for one in parents if isinstance(one, ast.Assign)), None)
    return loop in parents and given is not None and target.id in names_read(given.value)


def popularity_added(program: Program) -> Iterator[Remark]:
    """The logarithm of how often each item is drawn is added to the scores of items that are opponents by being in the batch."""
    computation = computation_of(program)
    for loss in [one for _, whole in losses(computation) for one in origins(whole)]:
        if loss.op != "cross_entropy" or len(loss.args) < 2 or bare(loss.args[1]).op != "arange":
            continue
        scores = bare(loss.args[0])
        scores = bare(scores.args[0]) if scores.op in ("masked_fill", "where") and scores.args else scores
        for one, other in (scores.args, scores.args[::-1]) if scores.op == "add" and len(scores.args) == 2 else ():
            share = _frequency(other)
            if share is not None and any(part.op == "matmul" for part in (bare(one), *bare(one).args)):
                yield Remark(scores.node, f"{short(scores.node)} adds {short(share.node)} (line {share.line}), the logarithm of how often an item occurs, to its score: as opponents of a batch, frequent items are drawn that much more often already")
                return


def _frequency(value: Value) -> Value | None:
    """The logarithm of counts, or of shares of counts, that a value is rows of."""
    value = bare(value)
    for _ in range(6):
        if value.op == "part" and value.args:
            value = bare(value.args[0])
    if value.op != "log" or not value.args or constant(value.args[0]) is not None:
        return None
    made = list(origins(value.args[0], stop=("bincount",)))
    return value if any(one.op == "bincount" for one in made) and not any(one.op == "run" for one in made) else None


@FINDERS.add("future-among-inputs")
def _turned_back(program: Program) -> Iterator[Remark]:
    """A column of the input is a series that is moved so far back that it holds the value that is asked for."""
    computation = computation_of(program)
    for loss in computation.of(*LOSSES):
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        ahead = _ahead(loss.args[1])
        for one in origins(loss.args[0]) if ahead is not None else ():
            back = number(one.argument("shift", 1) or one.argument("shifts", 1)) if one.op == "roll" and one.args else None
            if ahead is None or back is None or back >= 0 or -back < ahead[1] or bare(one.args[0]) is not ahead[0] or any(each.op == "run" for each in origins(one)):
                continue
            yield Remark(one.node, f"{short(one.node)} puts the value {-back:.0f} further on into each row of the input, and {short(loss.node)} (line {loss.line}) asks for the one {ahead[1]:.0f} further on")
            return


@FINDERS.add("future-among-inputs")
def _lagged_the_wrong_way(program: Program) -> Iterator[Remark]:
    """Columns of the input are the target's own series, all moved back: each row holds values that come after the one that is
    asked for, and none that came before it."""
    computation = computation_of(program)
    rolls = [one for one in computation.of("roll") if one.args]
    for loss in computation.of(*LOSSES) if rolls else ():
        if len(loss.args) < 2 or loss.where.no_grad:
            continue
        series = {id(one) for one in _rows_of(loss.args[1])}
        moved = [one for one in origins(loss.args[0]) if one.op == "roll" and one.args and id(bare(one.args[0])) in series and not any(each.op == "run" for each in origins(one))]
        back = [_is_back(one.argument("shift", 1) or one.argument("shifts", 1)) for one in moved]
        if moved and all(one is True for one in back):
            yield Remark(moved[0].node, f"{short(moved[0].node)} puts values of {short(moved[0].args[0].node)} that come later into each row of the input, and {short(loss.node)} (line {loss.line}) asks for the one of the row itself")
            return


def _rows_of(value: Value) -> Iterator[Value]:
    """Targets, and what they were before rows were taken of them, and their numbers scaled; not rolled or shifted by a place."""
    for _ in range(40):
        value = bare(value)
        yield value
        if value.op == "part" and len(value.args) == 2:
            index = value.args[1]
            end = number(index.args[1]) if index.op == "slice" and len(index.args) > 1 else None
            if end is not None and end < 0 and is_none(index.args[0]):
                return  # y[:-1], beside inputs that begin later
        if value.op not in ("part", "rows", "sub", "div") or not value.args:
            return
        value = value.args[0]


def _is_back(shift: Value | None) -> bool | None:
    """Whether rows are moved towards the start by a shift: by a negative number, or the number of a turn with a minus."""
    known = number(shift)
    if known is not None:
        return known < 0
    return True if shift is not None and shift.op == "neg" and bare(shift.args[0]).op in ("index", "element") else None


def _ahead(value: Value) -> tuple[Value, float] | None:
    """The series that targets are of, and how many places further on than their row they stand: y[1:], or y rolled back."""
    for _ in range(40):
        value = bare(value)
        if value.op == "part" and len(value.args) == 2:
            index = value.args[1]
            start = number(index.args[0]) if index.op == "slice" and index.args else None
            if start is not None and 0 < start <= 48 and is_none(index.args[1]):
                return bare(value.args[0]), start
            value = value.args[0]
        elif value.op == "roll" and value.args:
            back = number(value.argument("shift", 1) or value.argument("shifts", 1))
            return (bare(value.args[0]), -back) if back is not None and back < 0 else None
        elif value.op in ("sub", "div", "rows", "mul") and value.args:
            value = value.args[0]
        else:
            return None
    return None


@FINDERS.add("smoothed-with-the-future")
def _smoothed_around(program: Program) -> Iterator[Remark]:
    """Windows that end where the value begins that is asked for are cut of a series that was smoothed to both sides."""
    computation = computation_of(program)
    parts = [one for one in computation.of("part") if len(one.args) == 2] if any(True for _ in computation.of("convolve", *_AVERAGES, *_SMOOTHERS)) else []
    asked = {id(at) for one in parts for loss in computation.of(*LOSSES) if len(loss.args) > 1 for at in origins(loss.args[1], ("len", "size", "shape", "randperm", "permutation"))} if parts else set()
    for window in parts:
        smooth = next((one for one in _columns(window.args[0]) if _to_both_sides(one)), None)
        end = _place(window.args[1].args[1]) if window.args[1].op == "slice" else None
        if end is None or smooth is None:
            continue
        for later in parts:
            index = later.args[1].args[0] if later.args[1].op == "slice" else later.args[1]
            begin = _place(index)
            if begin is None or later is window or id(later) not in asked or not same(begin[0], end[0]) or begin[1] - end[1] < 0 or later.where.functions != window.where.functions:
                continue
            if id(window) not in asked:
                yield Remark(smooth.node, f"{short(smooth.node)} takes as many values after each one as before it, and {short(later.node)} (line {later.line}) is to be forecast")
                return


_SMOOTHERS = ("scipy.signal.savgol_filter", "scipy.signal.filtfilt", "scipy.ndimage.gaussian_filter1d", "scipy.ndimage.uniform_filter1d", "scipy.signal.medfilt", "scipy.signal.convolve", "scipy.ndimage.convolve1d", "scipy.ndimage.median_filter")


_AVERAGES = ("conv1d", "avg_pool1d")
_FIXED = ("ones", "full", "hann_window", "hamming_window", "exp", "tensor", "softmax")


def _columns(value: Value, depth: int = 6) -> Iterator[Value]:
    """The series that windows are cut of: one, or several side by side, also scaled."""
    value = bare(value)
    yield value
    inner = value.parts if isinstance(value, Many) else [part for one in value.args for part in (one.parts if isinstance(one, Many) else [one])] if value.op in ("cat", "concatenate", "column_stack") else list(value.args[:1]) if value.op in ("sub", "div") or _is_whole(value) else []
    for one in inner if depth else ():
        yield from _columns(one, depth - 1)


def _is_whole(value: Value) -> bool:
    """Whether a value is all of another one, with a new axis: `x[:, None]`."""
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else value
    return isinstance(index, Many) and all(is_none(one) or (one.op == "slice" and all(map(is_none, one.args))) for one in index.parts)


def _reaches_both_ways(value: Value) -> bool:
    """Whether an average of neighbours goes over a series that is filled up at both ends."""
    width = value.argument("kernel_size", 1) if value.op == "avg_pool1d" else value.argument("weight", 1)
    step = value.argument("stride", 2 if value.op == "avg_pool1d" else 3)
    if width is None or (value.op == "conv1d" and not any(one.op in _FIXED for one in origins(width))) or any(one.op in ("torch.nn.Parameter", "flip", "tril", "set_item", "cat") for one in origins(width)):
        return False
    if (step is None) == (value.op == "avg_pool1d") or (step is not None and number(step) != 1):
        return False
    given, padded = value.argument("padding", 3 if value.op == "avg_pool1d" else 4), bare(value.args[0])
    if given is not None and number(given) != 0:
        return number(given) is not None or constant(given) == "same" or given.op == "floordiv"
    sides = padded.argument("pad", 1) if padded.op == "pad" else None
    return isinstance(sides, Many) and len(sides.parts) == 2 and not any(number(one) == 0 for one in sides.parts) and same(sides.parts[0], sides.parts[1])


def _to_both_sides(value: Value) -> bool:
    """Whether a value is a series that was smoothed by windows around each value."""
    if value.op in _AVERAGES and value.args and not any(getattr(one, "name", "") == "forward" for one in value.where.functions):
        return _reaches_both_ways(value)
    if value.op in ("convolve", "scipy.signal.convolve"):
        kernel = list(origins(value.args[1])) if len(value.args) > 1 else []
        return constant(value.argument("mode", 2)) == "same" and any(one.op in ("ones", "full", "hanning", "hamming") for one in kernel) and not any(one.op in ("set_item", "cat", "zeros") for one in kernel)
    return value.op in _SMOOTHERS and "origin" not in value.named


def _place(value: Value) -> tuple[Value, float] | None:
    """The number of a turn, and how far from it a place is; what is added and is no number counts as one that stands for itself."""
    away = 0.0
    for _ in range(10):
        if value.op == "index":
            return value, away
        known = [number(one) for one in value.args] if value.op in ("add", "sub") and len(value.args) == 2 else []
        if len(known) == 2 and known[1] is not None:
            away += known[1] if value.op == "add" else -known[1]
            value = value.args[0]
        elif len(known) == 2 and known[0] is not None and value.op == "add":
            away += known[0]
            value = value.args[1]
        else:
            return (value, away) if value.op == "add" else None
    return None
