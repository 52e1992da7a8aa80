"""Scores of classes that a picture does not show. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import without_small
from probe.diagnose.code.traits.weights import in_place

FINDERS = Finders()
_BOTH = ("and", "logical_and", "mul")


def absent_class(program: Program) -> Iterator[Remark]:
    """The overlap of each class is computed for each picture or batch, with a small number in the divisor alone, and the mean is
    taken over all classes, also those that neither side shows."""
    computation = computation_of(program)
    for value in computation.of("div"):
        below = value.args[1] if len(value.args) == 2 else value
        rest = without_small(below)
        loops = value.where.loops
        if rest is bare(below) or len(loops) < 2 or not value.where.no_grad:
            continue
        shared, turn = _shared(value.args[0])
        if shared is None or turn is None or loops[-1] not in turn.where.loops:
            continue
        sizes = [one for one in origins(rest) if one.op in ("eq", "or", "logical_or")]
        few = any((number(one) or 3) < 3 for one in turn.args[-1:])
        asked = any(any(each.op in ("sum", "any", "eq", "unique") for each in origins(test)) for test, _ in value.where.under)
        judged = _is_judged_in(shared, loops[:-1])
        kept = [user for user in computation.users(value) if user.op in ("append", "add", "item", "list") or isinstance(user, Many)]
        if sizes and judged and kept and not few and not asked and not any(one.op in ("isnan", "where", "nanmean") for one in computation.values if value in origins(one)):
            yield Remark(value.node, f"{short(value.node)} is 0 for a class that is in neither side of a picture, and the mean over the classes counts it as missed")
            return


@FINDERS.add("absent-class-counts-as-missed")
def _in_each_picture(program: Program) -> Iterator[Remark]:
    """The overlaps of all classes come from one table of counts for each picture, or an overlap of 0 is written down where a class is
    in neither side; the mean is taken over all classes, and then over the pictures."""
    computation = computation_of(program)
    for value in computation.of("div"):
        below = value.args[1] if len(value.args) == 2 else value
        below, own = bare(below), _diagonal(value.args[0])
        table = bare(own.args[0]) if own is not None else None
        rest = below.args[0] if below.op in ("clamp", "maximum") and number(below.argument("min", 1)) == 1 else without_small(below)
        if table is None or rest is below or not value.where.loops or not any(one.op == "sum" and bare(one.args[0]) is table for one in origins(rest)):
            continue
        picture = _of_one_picture(computation, table, value)
        whole = next((one for one in computation.users(value) if one.op == "mean"), None)
        small = [number(one) for one in table.args[1:]] + ([number(one) for one in table.args[1].parts] if len(table.args) > 1 and isinstance(table.args[1], Many) else [])
        changed = any(one.op in ("set_item", "where", "masked_fill") for one in computation.users(value))
        if picture and whole is not None and not changed and not any(one is not None and one < 3 for one in small):
            yield Remark(value.node, f"{short(value.node)} is 0 for a class that is in neither side of a picture, and {short(whole.node)} (line {whole.line}) counts it as missed")
            return
    for value in computation.of("append", "either"):
        found = _zero_beside(value)
        loops = value.where.loops
        if found is None or len(loops) < 2:
            continue
        zero, overlap = found
        shared, turn = _shared(overlap.args[0])
        few = turn is not None and any((number(one) or 3) < 3 for one in turn.args[-1:])
        if shared is None or turn is None or few or loops[-1] not in turn.where.loops or not _has_both(overlap.args[1], shared):
            continue
        asked = any(any(each.op in ("sum", "any", "unique") for each in origins(test)) and not _has_both(test, shared) for test, _ in overlap.where.under)
        kept = value.op == "append" or any(user.op in ("append", "add") or isinstance(user, Many) for user in computation.users(value))
        if kept and not asked and _is_judged_in(shared, loops[:-1]):
            yield Remark(zero.node, f"{short(value.node)} writes 0 down for a class that is in neither side of a picture, where {short(overlap.node)} has none, and the mean over the classes counts it as missed")
            return


def _is_judged_in(value: Value, loops: tuple[ast.AST, ...]) -> bool:
    """Whether a value is made of what a network gives in the innermost of its loops, and that is one of these."""
    return any(one.op == "run" and {*one.where.loops[-1:]} & {*loops} for one in origins(value))


def _zero_beside(value: Value) -> tuple[Value, Value] | None:
    """A 0 that is put into a list, or given, where a fraction is in all other cases."""
    if value.op == "either":
        rest = [bare(one) for one in value.args]
    elif len(value.args) == 2 and isinstance(value.args[0], Many) and value.args[0].where.loops:
        rest = [bare(one) for one in value.args[0].parts]
        if number(value.args[1]) != 0:
            return None
    else:
        return None
    zero = next((one for one in rest if number(one) == 0), None)
    overlap = next((one for one in rest if one.op == "div" and len(one.args) == 2), None)
    return (zero, overlap) if zero is not None and overlap is not None and len(rest) == 2 else None


def _has_both(value: Value, shared: Value) -> bool:
    """Whether a value is made of the size of a union, or of those of both sides."""
    parts = list(origins(value))
    return any(one.op in ("or", "logical_or") for one in parts) or all(any(one.op == "sum" and one.args and bare(one.args[0]) is bare(side) for one in parts) for side in shared.args)


def _diagonal(value: Value) -> Value | None:
    """The diagonal of a table that a value is, of that of a Dice score its double."""
    value = bare(value)
    if value.op == "mul" and len(value.args) == 2:
        value = next((bare(one) for one in value.args if number(one) is None), value)
    return value if value.op in ("diag", "diagonal") and value.args else None


def _of_one_picture(computation: Computation, table: Value, value: Value) -> bool:
    """Whether a table of counts is made anew in the loop in which a network judges pictures, and nothing adds up those of several."""
    counted = table.op in ("bincount", "reshape", "view", "histogram2d") or "confusion_matrix" in table.op
    loop = value.where.loops[-1]
    written = any(one.op == "add" and in_place(one) and bare(one.args[0]) is table for one in computation.of("add"))
    return counted and not written and loop in table.where.loops and _is_judged_in(table, value.where.loops)


def _shared(value: Value) -> tuple[Value | None, Value | None]:
    """What both sides give one class, and the number of the turn that is the class; nothing where a small number is added to it."""
    value = bare(value)
    if value.op == "mul" and len(value.args) == 2:  # the 2 of a Dice score
        value = next((bare(one) for one in value.args if number(one) is None), value)
    both = bare(value.args[0]) if value.op == "sum" and value.args else value
    if both.op not in _BOTH or len(both.args) != 2:
        return None, None
    sides = [bare(one) for one in both.args]
    turns = [one for side in sides if side.op == "eq" and len(side.args) == 2 for one in side.args if one.op == "index"]
    return (both, turns[0]) if len(turns) == 2 and turns[0] is turns[1] else (None, None)
