"""Positions in numbers of 16 bits. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.numberings import contents
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_EXACT_UP_TO = {"bfloat16": 256, "half": 2048, "float16": 2048}
"""The largest whole number up to which a type holds all of them: 2 to the number of bits of its mantissa plus 1."""
_ALONG = frozenset({"unsqueeze", "part", "view", "reshape", "mul", "div", "outer", "einsum", "matmul", "float", "to", "expand", "repeat", "cat", "stack", "t", "transpose"})
_TURNED = frozenset({"unsqueeze", "part", "view", "reshape", "float", "to", "type_as", "expand", "repeat", "t", "transpose", "matmul", "bmm", "einsum"})
"""What is done with positions before they are multiplied."""


def positions_rounded(program: Program) -> Iterator[Remark]:
    """Positions whose angles are computed are counted in a type of 16 bits, which cannot tell neighbours apart."""
    computation = computation_of(program)
    for value in computation.of("arange"):
        count = number(value.args[1 if len(value.args) > 1 else 0]) if value.args else None
        for one, kind in _rounded(computation.users(value), value):
            if count is None or count <= _EXACT_UP_TO[kind]:
                continue
            angle = next((each for each in made_from(computation, one, _ALONG, 60) if each.op in ("sin", "cos")), None)
            if angle is not None:
                yield Remark(one.node, f"{short(one.node)} counts {count:g} positions in {kind}, which holds whole numbers up to {_EXACT_UP_TO[kind]} alone: beyond, neighbours have one angle in {short(angle.node)} (line {angle.line})")
                return


@FINDERS.add("positions-rounded")
def _positions_cast(program: Program) -> Iterator[Remark]:
    """Positions whose angles are computed are multiplied as matrices where autocast rounds both to 16 bits."""
    computation = computation_of(program)
    for value in computation.of("arange"):
        count = number(value.args[1 if len(value.args) > 1 else 0]) if value.args else None
        for one in made_from(computation, value, _TURNED, 40):
            if one.op not in ("matmul", "bmm", "einsum") or not one.where.cast or (count is not None and count <= _EXACT_UP_TO[one.where.cast]):
                continue
            angle = next((each for each in made_from(computation, one, _ALONG, 40) if each.op in ("sin", "cos")), None)
            if angle is not None:
                yield Remark(one.node, f"{short(one.node)} multiplies positions (line {value.line}) where autocast rounds matrices to {one.where.cast}, which holds whole numbers up to {_EXACT_UP_TO[one.where.cast]} alone, and {short(angle.node)} (line {angle.line}) makes angles of it")
                return


@FINDERS.add("positions-rounded")
def _data_rounded(program: Program) -> Iterator[Remark]:
    """Whole numbers of the data (hours, places) become numbers of 16 bits by hand, and angles are made of them."""
    computation = computation_of(program)
    for value in computation.of("to", "type", "bfloat16", "half"):
        for one, kind in _rounded([value], value.args[0]) if value.args else ():
            rows = bare(one.args[0])
            if rows.op not in ("rows", "part", "stack", "element"):
                continue
            counted = next((each for each in contents(computation, rows) if each.op == "arange" and (_most(each) or 0) > _EXACT_UP_TO[kind]), None)
            angle = next((each for each in made_from(computation, one, _ALONG, 60) if each.op in ("sin", "cos")), None) if counted is not None else None
            if counted is not None and angle is not None:
                yield Remark(one.node, f"{short(one.node)} rounds whole numbers (up to {_most(counted):g}, line {counted.line}) to {kind}, which holds them up to {_EXACT_UP_TO[kind]} alone: beyond, neighbours have one angle in {short(angle.node)} (line {angle.line})")
                return


def _most(value: Value, depth: int = 8) -> float | None:
    """The largest number that a count, or an end of one, comes to, where that is known."""
    known = number(value)
    if known is not None or depth == 0 or not value.args:
        return known
    if value.op in ("arange", "range"):
        return _most(value.args[1 if len(value.args) > 1 else 0], depth - 1)
    if value.op == "index":
        return _most(value.args[min(1, len(value.args) - 1)], depth - 1)
    if value.op in ("element", "tolist", "int", "list", "item"):
        return _most(value.args[0], depth - 1)
    parts = [_most(one, depth - 1) for one in value.args]
    if value.op in ("add", "sub") and len(parts) == 2 and parts[0] is not None and parts[1] is not None:
        return parts[0] + parts[1] if value.op == "add" else parts[0] - parts[1]
    return None


def _rounded(users: list[Value], value: Value) -> Iterator[tuple[Value, str]]:
    """Where positions become numbers of 16 bits, and of which type."""
    for one in (value, *(user for user in users if user.op in ("to", "type", "bfloat16", "half"))):
        given = [one.named.get("dtype"), *(one.args[1:] if one is not value else ())]
        named = [str(each.data).rpartition(".")[2] for each in given if each is not None and each.op == "@library"]
        kind = one.op if one is not value and one.op in _EXACT_UP_TO else next((name for name in named if name in _EXACT_UP_TO), None)
        if kind is not None:
            yield one, kind
