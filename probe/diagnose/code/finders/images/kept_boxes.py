"""Which boxes are left after one has been kept. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, alternatives, bare, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_SIDES = ("minimum", "min", "clamp", "torchvision.ops.box_iou", "torchvision.ops.boxes.box_iou")


def overlapping_kept(program: Program) -> Iterator[Remark]:
    """Of the boxes that are left, those go on that overlap the one that was kept, and the others are thrown away."""
    computation = computation_of(program)
    tests = [one for one in computation.of("gt", "ge", "lt", "le") if len(one.args) == 2]
    for value in computation.of("part"):
        index = bare(value.args[1]) if len(value.args) == 2 else value
        shifted = index.op == "add" and len(index.args) == 2 and number(index.args[1]) == 1
        test = bare(index.args[0] if shifted else index, "where", "nonzero", "squeeze", "part") if len(value.args) == 2 else value
        inverted = test.op in ("invert", "logical_not")
        test = bare(test.args[0]) if inverted and test.args else test
        if test.op not in ("gt", "ge", "lt", "le") or len(test.args) != 2 or (test.op in ("gt", "ge")) == inverted or not _is_overlap(test.args[0]):
            continue
        left = bare(value.args[0])
        rest = shifted or (left.op == "part" and len(left.args) == 2 and left.args[1].op == "slice" and number(left.args[1].args[0]) == 1)
        ordered = any(one.op in ("argsort", "sort") for each in alternatives(value.args[0]) for one in origins(each, stop=("run",)))
        both = any(one is not test and one.op[0] != test.op[0] and same(one.args[0], test.args[0]) for one in tests)
        merged = any(user.op in ("mean", "sum", "mul", "matmul") for user in computation.users(value))
        if rest and ordered and not both and not merged:
            yield Remark(value.node, f"{short(value.node)} goes on with the boxes that overlap the one that was kept by more than {short(test.args[1].node)}, and throws away those that show something else")
            return


def _is_overlap(value: Value) -> bool:
    """Whether a value is an intersection over a union."""
    value = bare(value, "part")
    if value.op in _SIDES[3:]:
        return True
    if value.op != "div" or len(value.args) != 2:
        return False
    above = list(origins(value.args[0]))
    return any(one.op in ("minimum", "min", "clamp", "maximum", "max") for one in above) and any(one.op == "sub" for one in origins(value.args[1]))
