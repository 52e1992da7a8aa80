"""Scores of classes that a picture does not show. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import without_small

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
        judged = any(one.op == "run" and {*loops[:-1]} & {*one.where.loops} for one in origins(shared))
        kept = [user for user in computation.users(value) if user.op in ("append", "add", "item", "list") or isinstance(user, Many)]
        if sizes and judged and kept and not few and not asked and not any(one.op in ("isnan", "where", "nanmean") for one in computation.values if value in origins(one)):
            yield Remark(value.node, f"{short(value.node)} is 0 for a class that is in neither side of a picture, and the mean over the classes counts it as missed")
            return


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
