"""What an environment tells: the ends of episodes, through a store of transitions, to where they are used. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Many, Value, alternatives, bare, constant, is_none, number
from probe.diagnose.code.syntax import Function
from probe.diagnose.code.traits.arithmetic import complement_of
from probe.diagnose.code.traits.updates import is_optimizer, is_scaler, is_schedule, plain

_NEGATED = ("invert", "not")
_KEPT = ("builtins.float", "builtins.int", "builtins.bool", "bool", "float32", "element", "rows", "repeat", "columns")
_EITHER, _BOTH = ("or", "logical_or", "maximum", "max"), ("and", "logical_and", "minimum", "min")
_EQUAL = {"eq": True, "ne": False}
_ANY = ("any", "builtins.any", "max", "builtins.max")
_ARRAYS = ("zeros", "empty", "ones", "full", "zeros_like", "empty_like", "new_zeros")
_SAME_ARRAY = ("set_item", "either", "from_numpy", "as_tensor", "to", "flatten", "view", "reshape", "float", "bool", "swapaxes", "transpose")


class End(NamedTuple):
    """A value that tells whether an episode has ended: `sign` is 1 where it is true at an end, -1 where it is true
    before; `told` are the parts of what `step` gives that it is made of."""

    sign: int
    told: tuple[Value, ...]


def is_environment_step(value: Value) -> bool:
    """Whether a value is what an environment gives for an action: four or five parts, or three."""
    of = plain(value.args[0]) if value.args else None
    return value.op == "step" and len(value.args) == 2 and of is not None and not (is_optimizer(of) or is_scaler(of) or is_schedule(of))


def end_of(computation: Computation, value: Value, depth: int = 24) -> End | None:
    """What a value says of the end of an episode; None if it says nothing, or that is unknown."""
    if depth == 0:
        return None
    value = value if value.op == "either" else bare(value, *_KEPT)
    parts = value.parts if isinstance(value, Many) else list(alternatives(value)) if value.op == "either" else []
    if parts:
        return _joined([end_of(computation, one, depth - 1) for one in parts])
    if value.op == "part" and value.args[0].op == "step":
        place = constant(value.args[1])
        return End(1, (value,)) if place in (2, 3) and is_environment_step(value.args[0]) else None
    inner = complement_of(value) if value.op == "sub" else value.args[0] if value.op in _NEGATED and value.args else None
    if inner is not None:
        return _turned(end_of(computation, inner, depth - 1))
    if value.op in _EQUAL and len(value.args) == 2 and (known := number(value.args[1])) in (0, 1):
        found = end_of(computation, value.args[0], depth - 1)
        return found if (known == 1) == _EQUAL[value.op] else _turned(found)
    if value.op in (*_EITHER, *_BOTH) and len(value.args) == 2:
        joined = _joined([end_of(computation, one, depth - 1) for one in value.args])
        return joined if joined is not None and joined.sign == (1 if value.op in _EITHER else -1) else None
    if value.op in _ANY and len(value.args) == 1 and isinstance(flags := bare(value.args[0]), Many):
        joined = _joined([end_of(computation, one, depth - 1) for one in flags.parts])
        return joined if joined is not None and joined.sign == 1 else None
    if value.op == "part" and (kept := put_into(computation, value.args[0])):
        return _joined([end_of(computation, one, depth - 1) for one in kept])
    if value.op == "@input":
        given = list(_given(computation, value))
        return _joined([end_of(computation, one, depth - 1) for one in given]) if given else None
    return None


def array_of(value: Value) -> Value | None:
    """The array of the program's own that a value is, or is another shape of."""
    for _ in range(30):
        if value.op in _ARRAYS:
            return value
        if value.op not in _SAME_ARRAY or not value.args:
            return None
        value = value.args[0]
    return None


def put_into(computation: Computation, array: Value) -> list[Value]:
    """What a program writes into the places of an array of its own: by an index, or by `copy_` into one."""
    made = array_of(array)
    return _written(computation).get(id(made), []) if made is not None else []


@lru_cache(maxsize=1)
def _written(computation: Computation) -> dict[int, list[Value]]:
    """What is written into each array, by its identity."""
    found: dict[int, list[Value]] = {}
    for one in computation.of("set_item", "copy"):
        of = one.args[0] if one.op == "set_item" and len(one.args) == 3 else one.args[0].args[0] if one.op == "copy" and len(one.args) == 2 and one.args[0].op == "part" else None
        made = None if of is None else array_of(of)
        if made is not None:
            found.setdefault(id(made), []).append(one.args[-1])
    return found


def kept_as(computation: Computation, value: Value, depth: int = 30) -> Value:
    """What a value was when it was kept: before it was put into a list, a row of one, or an array of the program's own."""
    for _ in range(depth):
        inner = bare(value, *_KEPT)
        inner = inner.parts[0] if isinstance(inner, Many) and len(inner.parts) == 1 else inner
        if inner.op == "part" and len(inner.args) == 2 and isinstance(inner.args[1], Many) and all(is_none(each) for one in inner.args[1].parts for each in (one.args if one.op == "slice" else (one,))):
            inner = inner.args[0]  # `x[:, None]`
        if inner.op == "part" and (kept := put_into(computation, inner.args[0])) and len({id(one) for one in kept}) == 1:
            inner = kept[0]
        if inner is value:
            return value
        value = inner
    return value


def _turned(found: End | None) -> End | None:
    return None if found is None else End(-found.sign, found.told)


def _joined(found: list[End | None]) -> End | None:
    known = [one for one in found if one is not None]
    if len(known) < len(found) or len({one.sign for one in known}) != 1:
        return None
    return End(known[0].sign, tuple({id(part): part for one in known for part in one.told}.values()))


def _given(computation: Computation, value: Value) -> Iterator[Value]:
    """What calls by name give for a parameter of a method, where the program has one method of that name."""
    program = computation.program
    function = program.parent.get(program.parent.get(value.node)) if isinstance(value.node, ast.arg) else None  # type: ignore[arg-type]
    if not isinstance(function, Function) or len(program.functions.get(function.name, [])) != 1 or function.args.vararg or function.args.posonlyargs:
        return
    names = [one.arg for one in function.args.args]
    if value.data not in names or names[0] != "self":
        return
    place = names.index(value.data)
    for call in computation.of(function.name):
        if len(call.args) + len(call.named) >= 3 and (given := call.argument(value.data, place)) is not None:
            yield given
