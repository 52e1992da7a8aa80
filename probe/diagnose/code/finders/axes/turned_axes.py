"""Axes that are counted anew where they should be turned. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import at_least, last, rank

FINDERS = Finders()
_ALIKE = frozenset({"add", "sub", "mul", "div", "relu", "clamp", "float", "contiguous", "astype", "ascontiguousarray"}) | KEPT
"""Operations whose result has the axes of what they are done on."""


@FINDERS.add("view-mixes-axes")
def _mixes(program: Program) -> Iterator[Remark]:
    """A tensor is given its own sizes in another order: its numbers are counted anew, and no axis is turned."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        sizes = [one for given in value.args[1:] for one in (given.parts if isinstance(given, Many) else [given])]
        places = [place for one in sizes if (place := _place(one, value.args[0])) is not None]
        if len(places) > 1 and places != sorted(places) and value.node not in said and len(set(places)) == len(places):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} gives {short(bare(value.args[0]).node)} its own sizes in another order: it counts its numbers anew, and turns no axis")


def _place(size: Value, of: Value) -> int | None:
    """Which axis of a tensor a size is that of."""
    size = bare(size)
    found = size.args[0] if size.op == "part" and len(size.args) == 2 and size.args[0].op in ("shape", "size") else None
    place = constant(size.args[1]) if found is not None else number(size.args[1]) if size.op == "size" and len(size.args) == 2 else None
    owner = found.args[0] if found is not None else size.args[0] if place is not None else None
    if owner is None or place is None or place < 0 or _same(owner) is not _same(of):
        return None
    return int(place)


def _same(value: Value) -> Value:
    """What has the axes of a value, before operations that keep them."""
    for _ in range(30):
        if value.op not in _ALIKE or not value.args or isinstance(value, Many):
            return value
        value = value.args[0]
    return value


@FINDERS.add("view-mixes-axes")
def _split_before_its_axis(program: Program) -> Iterator[Remark]:
    """A new axis is put before one that keeps its length: its numbers come from the axes after that one, and it cuts
    through it."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        sizes = [one for given in value.args[1:] for one in (given.parts if isinstance(given, Many) else [given])]
        places = [_place(one, value.args[0]) for one in sizes]
        if value.node in said or -1 in [number(one) for one in sizes]:
            continue
        for at, place in enumerate(places):
            before = sizes[:at]
            free = [one for one, of in zip(before, places[:at], strict=True) if of is None]
            if place and set(range(place)) == set(places[:at]) - {None} and len(free) == 1 and number(free[0]) != 1 and not _divides(free[0]):
                said.add(value.node)
                yield Remark(value.node, f"{short(value.node)} puts {short(free[0].node)} before axis {place} of {short(bare(value.args[0]).node)}, which keeps its length: it counts its numbers anew, and turns no axis")
                break


def _divides(size: Value) -> bool:
    """Whether a size is made of another one, so that two of them may be one axis."""
    return any(one.op in ("floordiv", "div", "shape", "size", "len") for one in origins(size))


@FINDERS.add("view-mixes-axes")
def _last_put_second(program: Program) -> Iterator[Remark]:
    """What has its channels last is given as many channels in its second axis: its numbers are counted anew."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        sizes = [one for given in value.args[1:] for one in (given.parts if isinstance(given, Many) else [given])]
        channels = last(value.args[0])
        if len(sizes) < 3 or channels is None or channels < 2 or value.node in said or at_least(value.args[0]) != len(sizes):
            continue
        if number(sizes[1]) == channels and number(sizes[-1]) not in (1, channels):
            said.add(value.node)
            whole = "its batch" if isinstance(value.args[0].node, (ast.Tuple, ast.For)) else short(value.args[0].node)
            yield Remark(value.node, f"{short(value.node)} puts {channels} in the second axis, and the last one of {whole} has that length: it counts its numbers anew, and turns no axis")


def over_another_axis(program: Program) -> Iterator[Remark]:
    """Two sequences of vectors are compared by their cosine, which runs over axis 1 where no axis is named."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("cosine_similarity"):
        if value.named.get("dim") is not None or len(value.args) != 2 or value.node in said:
            continue
        said.add(value.node)
        if all(rank(one) == 3 and last(one) not in (None, 1) for one in value.args):
            yield Remark(value.node, f"{short(value.node)} runs over axis 1, and {short(value.args[0].node)} has its {last(value.args[0])} features in axis 2")
