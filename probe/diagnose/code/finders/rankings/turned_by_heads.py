"""Rotations by the numbers of heads, and not by the places of words. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, constant, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import view_sizes
from probe.diagnose.code.traits.uses import made_from

_WAVES = ("cos", "sin", "polar")
_Sizes = list[Value | None]


def turned_by_heads(program: Program) -> Iterator[Remark]:
    """As many angles as there are heads turn what a layer gives: each head by its own number, and all words of it alike."""
    computation = computation_of(program)
    for count in computation.of("part", "size"):
        of, place = _sized(count)
        sizes = None if of is None else _sizes(of)
        if of is None or sizes is None or place is None or len(sizes) != 4 or not -4 <= place < 4:
            continue
        at = place % 4
        others = [one for axis, one in enumerate(sizes) if axis in (1, 2) and axis != at]
        heads = sizes[at]
        if at not in (1, 2) or heads is None or number(heads) is None or not all(one is None or _sized(one)[0] is not None for one in others):
            continue
        table = next((one for one in computation.users(count) if _counts_angles(computation, one)), None)
        if table is not None and any(one.op == "run" for one in origins(of)) and _multiplies(computation, of, table):
            shown = next((one for one in computation.users(table) if one.op == "part"), table) if table.op == "slice" else table
            yield Remark(shown.node, f"{short(shown.node)} has an angle for each of the {number(heads):g} heads, as {short(count.node)} is their number in {short(of.node)} (line {of.line}): each head is turned by one angle, whatever the place of a word")
            return


def _sized(count: Value) -> tuple[Value | None, int | None]:
    """Whose size a value is, and along which axis."""
    place = constant(count.args[-1]) if len(count.args) == 2 else None
    of = count.args[0] if count.op == "size" else count.args[0].args[0] if count.args and count.args[0].op in ("shape", "size") and len(count.args[0].args) == 1 else None
    return (of, place) if isinstance(place, int) else (None, None)


def _sizes(value: Value, depth: int = 12) -> _Sizes | None:
    """The sizes of a value's axes, None for each that is not known; None where not even their number is."""
    if depth == 0:
        return None
    if value.op in ("view", "reshape"):
        return list(view_sizes(value)) or None
    if value.op == "unflatten" and len(value.args) == 3 and number(value.args[1]) in (-1, 2) and isinstance(value.args[2], Many):
        return [None, None, *value.args[2].parts]
    if value.op in KEPT and value.args and not isinstance(value, Many):
        return _sizes(value.args[0], depth - 1)
    if value.op in ("transpose", "swapaxes") and len(value.args) == 3:
        inner, axes = _sizes(value.args[0], depth - 1), [constant(one) for one in value.args[1:]]
        if inner is None or not all(isinstance(one, int) and -len(inner) <= one < len(inner) for one in axes):
            return None
        inner[axes[0]], inner[axes[1]] = inner[axes[1]], inner[axes[0]]
        return inner
    if value.op == "permute" and len(value.args) > 1:
        inner, axes = _sizes(value.args[0], depth - 1), [constant(one) for one in view_sizes(value)]
        return [inner[one] for one in axes] if inner is not None and len(axes) == len(inner) and all(isinstance(one, int) and one < len(inner) for one in axes) else None
    if value.op == "part" and len(value.args) == 2 and isinstance(constant(value.args[1]), int):
        on = value.args[0]
        if on.op in ("chunk", "split"):
            return None
        inner = _sizes(on.args[0] if on.op == "unbind" and on.args else on, depth - 1)
        gone = constant(on.args[1]) if on.op == "unbind" and len(on.args) > 1 else 0
        return inner[:gone] + inner[gone + 1 :] if inner is not None and isinstance(gone, int) and 0 <= gone < len(inner) else None
    return None


def _counts_angles(computation: Computation, value: Value) -> bool:
    """Whether a value is a row of numbers that angles are made of, or what a table of waves is cut by."""
    if value.op == "slice":
        return is_none(value.args[0]) and any(one.op == "part" and any(part.op in _WAVES for part in origins(one.args[0], stop=("run",))) for one in computation.users(value))
    return value.op == "arange" and len(value.args) == 1 and any(one.op in _WAVES for one in made_from(computation, value, frozenset({"part", "mul", "div", "outer", "einsum", "float", "to", "unsqueeze", "view", "cat", "repeat", "tuple", "list", "matmul"}), 60))


def _multiplies(computation: Computation, of: Value, table: Value) -> bool:
    """Whether what was turned is multiplied by waves of the table."""
    return any(one.op == "mul" and any(part is of for part in origins(one)) for one in made_from(computation, table, None, 120))
