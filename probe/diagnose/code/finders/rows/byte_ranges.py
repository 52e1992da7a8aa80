"""Pictures whose numbers leave 0…255 before they are made bytes, or in bytes. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice, product

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    SHAPED,
    Many,
    Value,
    alternatives,
    number,
    origins,
)
from probe.diagnose.code.finders.rows.byte_differences import holds_bytes, says_bytes
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import rank
from probe.diagnose.code.traits.pictures import is_bytes

FINDERS = Finders()
_LARGEST = 255
_ALIKE = SHAPED | {
    "to", "float", "double", "half", "long", "int", "short", "astype", "type", "float32", "float64", "float16", "int16", "int32", "int64", "array", "asarray", "from_numpy", "numpy", "tensor",
    "as_tensor", "copy", "clone", "contiguous", "ascontiguousarray", "round", "rint", "floor", "trunc", "flip", "fliplr", "flipud", "transpose", "permute", "roll", "cpu", "cuda", "item", "detach",
}
"""Operations that keep the numbers they are done on, or all but their fractions."""
_DRAWS = ("uniform", "randint", "integers", "randrange", "normal", "gauss", "rand", "random", "randn", "standard_normal", "randn_like", "rand_like")
_GENERATORS = ("default_rng", "RandomState", "numpy.random.RandomState", "numpy.random.Generator", "Random", "random.Random", "numpy.random.default_rng")
_MOST = 6
"""Pictures and draws in one expression of which the numbers are tried."""
_CHECKED = ("lt", "gt", "le", "ge", "clamp", "minimum", "maximum")


@FINDERS.add("bytes-wrap-around")
def _cast(program: Program) -> Iterator[Remark]:
    """A picture of bytes is made brighter, darker or noisy in wider numbers, and made bytes again without a cut."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("astype", "to", "type", "uint8", "byte", "array", "asarray"):
        if value.node in said or not value.args or not (value.op in ("uint8", "byte") or says_bytes(value)):
            continue
        found = _leaves(value.args[0])
        if found is not None and _is_checked(computation, value.args[0]):
            continue
        beyond = _beyond(value.args[0], found) if found is not None else None
        if beyond is not None:
            said.add(value.node)
            passes = f"passes {_LARGEST} or falls below 0" if beyond == (True, True) else f"passes {_LARGEST}" if beyond[1] else "falls below 0"
            yield Remark(value.node, f"{short(value.node)} makes unsigned 8-bit numbers of what was not cut to 0…{_LARGEST}: what {passes} wraps around")


@FINDERS.add("bytes-wrap-around")
def _in_bytes(program: Program) -> Iterator[Remark]:
    """Bytes are added to a picture of bytes, whose sums pass 255."""
    computation = computation_of(program)
    for value in computation.of("add"):
        if len(value.args) != 2 or not all(map(holds_bytes, value.args)) or _is_checked(computation, value):
            continue
        found = _leaves(value)
        beyond = _beyond(value, found) if found is not None else None
        if beyond is not None and beyond[1]:
            yield Remark(value.node, f"{short(value.node)} is computed in unsigned 8-bit numbers: what passes {_LARGEST} wraps around to 0")
            return


def _is_checked(computation: Computation, value: Value) -> bool:
    """Whether a value is compared, or cut, by something else, as one that may wrap around and is seen to."""
    return any(user.op in _CHECKED for user in computation.users(value))


def _beyond(value: Value, leaves: dict[int, tuple[float, ...]]) -> tuple[bool, bool] | None:
    """Whether a value falls below 0, and whether it passes 255, for numbers that its pictures and draws may have; None if
    it does neither."""
    low = high = 0.0
    for numbers in product(*leaves.values()):
        result = _number_of(value, dict(zip(leaves, numbers, strict=True)))
        if result is None:
            return None
        low, high = min(low, result), max(high, result)
    found = (low <= -1, high >= _LARGEST + 1)
    return found if any(found) else None


def _leaves(value: Value) -> dict[int, tuple[float, ...]] | None:
    """The pictures of bytes and the draws that a value is computed of, each with some numbers that it may have; None where
    that is more, or there is no picture or nothing that changes it."""
    found: dict[int, tuple[float, ...]] = {}
    waiting, pictures, seen = [value], 0, set[int]()
    while waiting:
        at = waiting.pop()
        if id(at) in seen or number(at) is not None:
            continue
        seen.add(id(at))
        inner = (_picture(at) or _filled(at)) if at is not value else None
        drawn = _drawn(at)
        if inner is not None:
            pictures += 1
            found[id(at)] = inner
        elif drawn is not None:
            found[id(at)] = drawn
        elif at.op == "mean" and at.args and any(_picture(one) is not None for one in islice(origins(at.args[0]), 30)):
            found[id(at)] = (100.0,)
        elif at.op in ("add", "sub", "mul", "div", "neg", "either") or (at.op in _ALIKE and not isinstance(at, Many)):
            waiting += at.args if at.op in ("add", "sub", "mul", "div", "either") else at.args[:1]
            if not at.args:
                return None
        elif at.op == "part" and len(at.args) == 2:
            waiting.append(at.args[0])
        else:
            return None
    return found if pictures and len(found) <= _MOST else None


def _picture(value: Value, depth: int = 2) -> tuple[float, ...] | None:
    """Numbers that a picture of bytes may have, where it is one: what files hold, and what is made bytes after a cut to
    0…255 or a product with 255."""
    at = value
    for _ in range(40):
        if at.op == "either":
            found = {_picture(one, depth - 1) for one in alternatives(at)} if depth else {None}
            return found.pop() if len(found) == 1 else None
        if _is_read_as_bytes(at) or _is_full_range(at):
            return (0.0, 128.0, 255.0)
        if (at.op in SHAPED or at.op in ("part", "element", "rows", "copy", "clone", "from_numpy", "stack", "cat", "pad", "fliplr", "flipud", "rot90", "roll", "repeat", "flip", "permute", "transpose", "ascontiguousarray", "set_item", "cpu", "cuda", "to", "pin_memory")) and not says_bytes(at):
            if not at.args:
                return None
            at = at.args[0]
        elif isinstance(at, Many) and at.parts:
            at = at.parts[0]
        else:
            return None
    return None


def _filled(value: Value) -> tuple[float, ...] | None:
    """The numbers that a picture of bytes was filled with, as far as they are written down."""
    found: list[float] = []
    for _ in range(40):
        if value.op in ("full", "zeros", "ones") and says_bytes(value):
            given = {"zeros": 0.0, "ones": 1.0}.get(value.op, number(value.argument("fill_value", 1)))
            return None if given is None else (*found, given)
        if isinstance(value, Many) or not value.args or not (value.op in SHAPED or value.op in ("part", "element", "rows", "copy", "clone", "from_numpy", "set_item", "cpu", "cuda", "pin_memory")):
            return None
        if value.op == "set_item" and (written := number(value.args[-1])) is not None:
            found.append(written)
        value = value.args[0]
    return None


def is_read_to_255(value: Value) -> bool:
    """Whether a value holds the numbers of pictures of bytes as they were read, of whatever type now."""
    for _ in range(40):
        if _picture(value) is not None or (_is_drawn_to_255(value) and (rank(value) or 0) > 2):
            return True
        if value.op == "either" or not value.args or not (value.op in _ALIKE or value.op == "part") or number(value.args[0]) is not None:
            return False
        value = value.args[0]
    return False


def _is_read_as_bytes(value: Value) -> bool:
    """Whether a value is a picture as it was read."""
    return value.op in ("array", "asarray", "cv2.imread", "torchvision.io.read_image", "torchvision.io.decode_image") and is_bytes(value)


def _is_full_range(value: Value) -> bool:
    """Whether a value is made bytes of numbers that were cut to 0…255, or multiplied by 255; or is drawn from all bytes."""
    if value.op in ("randint", "integers") and says_bytes(value):
        return _is_drawn_to_255(value)
    if not value.args or not (value.op in ("uint8", "byte") or (value.op in ("astype", "to", "type", "array", "asarray") and says_bytes(value))):
        return False
    at = value.args[0]
    while at.op in _ALIKE and at.args:
        at = at.args[0]
    if at.op in ("clamp", "minimum"):
        return any(number(one) == _LARGEST for one in (*at.args[1:], *at.named.values()))
    return _is_drawn_to_255(at) or (at.op == "mul" and any(number(one) == _LARGEST for one in at.args))


def _is_drawn_to_255(value: Value) -> bool:
    """Whether a value is whole numbers that are drawn from 0…255."""
    return value.op in ("randint", "integers") and any(number(one) in (255, 256) for one in (*value.args, value.named.get("high")) if one is not None)


def _drawn(value: Value) -> tuple[float, ...] | None:
    """Numbers that a draw may give, where its bounds are known."""
    if value.op not in _DRAWS:
        return None
    args = list(value.args[1:] if value.args and value.args[0].op in _GENERATORS else value.args)
    if value.op in ("randn", "standard_normal", "randn_like"):
        return (-2.0, 0.0, 2.0)
    if value.op in ("rand", "random", "rand_like"):
        return (0.0, 0.5, 1.0)
    names = ("loc", "scale") if value.op in ("normal", "gauss") else ("low", "high")
    given = [value.named.get(name) or (args[place] if place < len(args) else None) for place, name in enumerate(names)]
    bounds = [number(one) for one in given]
    if value.op in ("normal", "gauss"):
        if len(args) > 1 and bounds[0] == 0 and bounds[1] is None:
            return (-2.0, 0.0, 2.0)  # of unknown width: in pictures of 0…255 seldom below 1
        return None if bounds[0] is None or bounds[1] is None else (bounds[0] - 2 * bounds[1], bounds[0], bounds[0] + 2 * bounds[1])
    if value.op in ("randint", "integers", "randrange") and bounds[1] is None and bounds[0] is not None and (given[1] is None or isinstance(given[1], Many)):
        bounds = [0.0, bounds[0]]
    if bounds[0] is None or bounds[1] is None or bounds[0] >= bounds[1]:
        return None
    if value.op != "uniform":
        bounds[1] -= 1
    return (bounds[0], (bounds[0] + bounds[1]) / 2, bounds[1])


def _number_of(value: Value, known: dict[int, float]) -> float | None:
    """The number that a value is, where its pictures and draws are known; kept in `known`."""
    if id(value) in known:
        return known[id(value)]
    found = number(value)
    if found is None and value.op in ("add", "sub", "mul", "div") and len(value.args) == 2:
        left, right = (_number_of(one, known) for one in value.args)
        if left is None or right is None or (value.op == "div" and right == 0):
            return None
        found = {"add": left + right, "sub": left - right, "mul": left * right, "div": left / (right or 1)}[value.op]
    elif found is None and value.args:
        found = _number_of(value.args[0], known)
        found = -found if found is not None and value.op == "neg" else found
    if found is not None:
        known[id(value)] = found
    return found
