"""Differences of unsigned numbers. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import SHAPED, Many, Value, alternatives
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_SAME_TYPE = SHAPED | {
    "part", "element", "rows", "set_item", "from_numpy", "numpy", "stack", "cat", "copy", "clone", "contiguous", "ascontiguousarray", "flip", "fliplr", "flipud",
    "rot90", "roll", "transpose", "permute", "repeat", "cpu", "cuda", "detach", "clip", "clamp", "list", "tuple", "next", "pin_memory", "asarray", "array", "tensor", "as_tensor",
}
"""Operations that give numbers of the type that they are given."""
_TYPED = ("astype", "to", "type", "asarray", "array", "tensor", "as_tensor", "zeros", "full", "empty", "randint", "integers")
_WIDER = ("float", "double", "half", "int", "long", "astype", "to", "type", "div", "mean", "abs", "pow", "square")


@FINDERS.add("bytes-wrap-around")
def _difference(program: Program) -> Iterator[Remark]:
    """The difference of two pictures of bytes, which is made a wider number only afterwards."""
    computation = computation_of(program)
    for value in computation.of("sub"):
        if len(value.args) == 2 and all(holds_bytes(one) for one in value.args) and _is_widened(computation, value):
            yield Remark(value.node, f"{short(value.node)} is computed in unsigned 8-bit numbers: what is below 0 wraps around to 255")
            return


def holds_bytes(value: Value, depth: int = 24) -> bool:
    """Whether a value is known to hold unsigned 8-bit numbers."""
    if depth == 0:
        return False
    if value.op in _TYPED and _types(value):
        return says_bytes(value)
    if value.op in ("uint8", "byte"):
        return True
    if value.op == "either":
        return all(holds_bytes(one, depth - 1) for one in alternatives(value))
    if isinstance(value, Many):
        return bool(value.parts) and all(holds_bytes(one, depth - 1) for one in value.parts)
    return value.op in _SAME_TYPE and bool(value.args) and holds_bytes(value.args[0], depth - 1)


def _types(value: Value) -> list[str]:
    """The types that an operation is told to give."""
    return [str(one.data).rpartition(".")[2] for one in value.made_of() if one.op == "@library" or (one.op == "@constant" and isinstance(one.data, str))]


def says_bytes(value: Value) -> bool:
    """Whether an operation is told to give unsigned 8-bit numbers."""
    return any(one in ("uint8", "ubyte") for one in _types(value))


def _is_widened(computation: Computation, value: Value) -> bool:
    """Whether a value is made a wider number later."""
    waiting, seen = [value], {id(value)}
    while waiting:
        for user in computation.users(waiting.pop()):
            if (user.op in _WIDER or (user.op in ("tensor", "as_tensor", "array", "asarray") and _types(user))) and not holds_bytes(user):
                return True
            if user.op in _SAME_TYPE and id(user) not in seen:
                seen.add(id(user))
                waiting.append(user)
    return False
