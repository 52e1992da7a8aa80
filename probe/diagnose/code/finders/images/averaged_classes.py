"""Maps of class numbers that are resized or moved by averaging neighbours. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, constant
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_WHOLE = ("int64", "long", "int32", "int", "uint8")
_AVERAGING = ("bilinear", "bicubic", "linear", "trilinear", "area")
_MODES = {"interpolate": (3, "nearest"), "grid_sample": (2, "bilinear"), "upsample": (3, "nearest")}
"""The place of the mode among the arguments, and what it is if it is not given."""


@FINDERS.add("classes-interpolated")
def _averaged(program: Program) -> Iterator[Remark]:
    """What was resized by averaging neighbours is made whole, without a comparison."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("long", "int", "to", "type", "astype"):
        made = _resized(value.args[0]) if value.args and _is_whole(value) and value.node not in said else None
        if made is not None:
            said.add(value.node)
            yield Remark(made.node, f"{short(made.node)} averages class numbers of neighbours, and {short(value.node, 30)} takes the result for classes")


def _is_whole(value: Value) -> bool:
    if value.op in ("long", "int"):
        return True
    given = [str(one.data).rpartition(".")[2] for one in (*value.args[1:], *value.named.values()) if one.op in ("@library", "@constant")]
    return any(one in _WHOLE for one in given)


def _resized(value: Value) -> Value | None:
    """The resize, by averaging neighbours, that a value is, as far as no numbers are changed."""
    value = bare(value, "part", "element", "rows", "flip", "clamp")  # of two classes, rounded means are classes
    if value.op not in _MODES or not value.args:
        return None
    place, default = _MODES[value.op]
    mode = value.argument("mode", place)
    return value if (default if mode is None else constant(mode)) in _AVERAGING else None
