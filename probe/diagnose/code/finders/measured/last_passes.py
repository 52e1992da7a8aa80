"""What a loop over folds, runs or columns leaves behind: a list of its last pass alone, and columns that stay mixed. Pure;
standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_MEANS = ("mean", "std", "statistics.mean", "statistics.stdev", "statistics.fmean", "nanmean", "median", "sem")
_ORDERS = ("randperm", "permutation", "shuffle")


def list_of_the_last_pass(program: Program) -> Iterator[Remark]:
    """A list is made in each pass of a loop and gets one value there, and its mean is taken after the loop."""
    computation = computation_of(program)
    for mean in computation.of(*_MEANS):
        kept = mean.args[0] if mean.args else mean
        while kept.op in ("tensor", "array", "asarray", "as_tensor", "float") and kept.args:
            kept = kept.args[0]
        if not isinstance(kept, Many) or kept.op != "list" or not kept.where.loops or kept.parts == []:
            continue
        loops = kept.where.loops
        added = [one for one in computation.of("append") if one.args[0] is kept]
        inside = mean.where.loops[: len(loops)] == loops
        if inside or mean.where.functions != kept.where.functions or loops[: len(mean.where.loops)] != mean.where.loops or len(loops) != len(mean.where.loops) + 1:
            continue
        if added and all(one.where.loops == loops and one.where.functions == kept.where.functions and not one.where.under for one in added) and len(added) == len(kept.parts) == 1 and not _is_grown_otherwise(computation, kept):
            yield Remark(mean.node, f"{short(mean.node)} is taken of what line {added[0].line} adds to a list that line {kept.line} makes anew in each pass: it holds one value, that of the last pass")
            return


def _is_grown_otherwise(computation: Computation, kept: Value) -> bool:
    """Whether a list is handed on in the loop, or joined to others."""
    return any(user.op not in ("append", "array", "asarray", "tensor", *_MEANS, "len", "min", "max") for user in computation.users(kept))


def columns_left_shuffled(program: Program) -> Iterator[Remark]:
    """In each pass of a loop over columns one is put into another order and a network judged, and it is not put back."""
    computation = computation_of(program)
    written = list(computation.of("set_item"))
    for value in written:
        place, given = (value.args[1], value.args[2]) if len(value.args) == 3 else (value, value)
        turn = _column(place)
        loops = value.where.loops
        if turn is None or not loops or loops[-1] not in turn.where.loops or loops[-1] in value.args[0].where.loops:
            continue
        mixed = [one for one in origins(given) if one.op in _ORDERS]
        own = any(one.op == "part" and len(one.args) == 2 and _column(one.args[1]) is turn for one in origins(given))
        judged = next((one for one in computation.of("run") if one.number > value.number and loops[-1] in one.where.loops and any(part is value for part in origins(one))), None)
        back = any(one is not value and one.number > value.number and loops[-1] in one.where.loops and len(one.args) == 3 and _column(one.args[1]) is turn for one in written)
        if mixed and own and judged is not None and not back:
            yield Remark(value.node, f"{short(value.node)} mixes one column more in each pass of the loop of line {getattr(loops[-1], 'lineno', 0)}, and none is put back: each is judged with all before it mixed too")
            return


def _column(index: Value) -> Value | None:
    """The number of a turn that is the column of an index: `[:, j]`, `[order, j]`."""
    parts = index.parts if isinstance(index, Many) else []
    return parts[1] if len(parts) == 2 and parts[1].op == "index" else None


def first_stretch_alone(program: Program) -> Iterator[Remark]:
    """A data set has as many samples as windows that do not overlap, and its windows begin one place after the other."""
    computation = computation_of(program)
    lengths = [one for one in computation.returned.get("__len__", ()) if one.op in ("floordiv", "int", "sub") and one.args]
    sizes = [size for one in lengths for size in (_divisor(one),) if size is not None]
    for value in computation.of("part") if sizes else ():
        index = value.args[1] if len(value.args) == 2 else value
        if index.op != "slice" or len(index.args) < 2 or index.args[0].op != "index" or "__getitem__" not in [getattr(one, "name", "") for one in value.where.functions]:
            continue
        begin, end = index.args[:2]
        size = next((one for one in end.args if one is not begin), None) if end.op == "add" and len(end.args) == 2 and any(one is begin for one in end.args) else None
        found = next((one for one in sizes if size is not None and (one is size or (number(one) is not None and number(one) == number(size)))), None)
        if found is not None:
            yield Remark(value.node, f"{short(value.node)} begins one place after the window before, and __len__ counts windows that do not overlap (line {found.line}): all but the beginning of the data is never seen")
            return


def _divisor(value: Value) -> Value | None:
    """What a length is divided by."""
    for _ in range(4):
        if value.op == "floordiv" and len(value.args) == 2:
            return value.args[1]
        if value.op == "int" and value.args and value.args[0].op == "div" and len(value.args[0].args) == 2:
            return value.args[0].args[1]
        if value.op not in ("sub", "int") or not value.args:
            return None
        value = value.args[0]
    return None
