"""Places of words in their sequence, as they are told to attention: by rotation, by waves, by distance. Pure; standard
library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_HALVES, _PAIRS = "halves", "pairs"
_MOVED = frozenset({"transpose", "permute", "part", "rows", "buffer", "index_select", "unsqueeze", "repeat", "cos", "sin", "polar"}) | KEPT | SHAPED
_WHERE = {_HALVES: "the two halves of a row", _PAIRS: "neighbours in a row"}


def _turned(value: Value) -> tuple[Value, Value, Value] | None:
    """Of `x * cos + turned(x) * sin`: the first factor of each product, and the angle of the cosine."""
    value = bare(value)
    if value.op != "add" or len(value.args) != 2:
        return None
    found: dict[str, tuple[Value, Value]] = {}
    for one in value.args:
        if bare(one).op != "mul":
            return None
        for factor, wave in (bare(one).args, bare(one).args[::-1]):
            kind = _wave(wave)
            if kind is not None:
                found[kind.op] = (factor, kind)
    if found.keys() != {"cos", "sin"}:
        return None
    return found["cos"][0], found["sin"][0], found["cos"][1].args[0]


def _wave(value: Value) -> Value | None:
    """The cosine or sine that a value is a part of."""
    for _ in range(20):
        if value.op in ("cos", "sin"):
            return value
        if value.op not in _MOVED or not value.args:
            return None
        value = value.args[0]
    return None


def _angles(value: Value) -> str | None:
    """Which numbers of a row get one angle."""
    for _ in range(20):
        if value.op == "cat" and isinstance(value.args[0], Many):
            parts = value.args[0].parts
            return _HALVES if len(parts) == 2 and same(parts[0], parts[1]) and number(value.argument("dim", 1)) in (-1, 1) else None
        if value.op == "repeat_interleave":
            return _PAIRS if number(value.argument("repeats", 1)) == 2 and number(value.argument("dim", 2)) in (-1, 1) else None
        if value.op in ("flatten", "reshape", "view") and value.args[0].op == "stack":
            inner = value.args[0].args[0]
            return _PAIRS if isinstance(inner, Many) and len(inner.parts) == 2 and same(inner.parts[0], inner.parts[1]) and number(value.args[0].argument("dim", 1)) == -1 else None
        if value.op not in _MOVED or not value.args:
            return None
        value = value.args[0]
    return None


def _turn(value: Value) -> str | None:
    """Which numbers of a row a quarter turn exchanges."""
    inner = value.args[0] if value.op == "cat" and value.args else None
    if isinstance(inner, Many) and len(inner.parts) == 2 and bare(inner.parts[0]).op == "neg":
        cuts = [_step(one) for one in (bare(inner.parts[0]).args[0], inner.parts[1])]
        return _HALVES if None not in cuts and set(cuts) == {1.0} else None
    stacked = value.args[0] if value.op in ("flatten", "reshape", "view", "view_as", "reshape_as") and value.args else value
    inner = stacked.args[0] if stacked.op == "stack" and stacked.args and number(stacked.argument("dim", 1)) == -1 else None
    if isinstance(inner, Many) and len(inner.parts) == 2 and bare(inner.parts[0]).op == "neg":
        cuts = [_step(one) for one in (bare(inner.parts[0]).args[0], inner.parts[1])]
        return _PAIRS if set(cuts) == {2.0} else None
    return None


def _step(value: Value) -> float | None:
    """How far apart the numbers of a part of the last axis are."""
    if value.op == "part" and value.args[0].op in ("chunk", "split", "tensor_split") and isinstance(constant(value.args[1]), int):
        return 1.0
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    cut = index.parts[-1] if isinstance(index, Many) and index.parts else None
    if cut is None or cut.op != "slice":
        return None
    return 1.0 if is_none(cut.args[2]) else number(cut.args[2])


def turned_by_anothers_angle(program: Program) -> Iterator[Remark]:
    """A rotation exchanges neighbours, and its angles are laid out for halves; or the other way round."""
    for value in computation_of(program).of("add"):
        found = _turned(value)
        kinds = (_turn(found[1]), _angles(found[2])) if found is not None else (None, None)
        if found is not None and kinds[0] is not None and kinds[1] is not None and kinds[0] != kinds[1]:
            yield Remark(value.node, f"{short(value.node)} turns {_WHERE[kinds[0]]} against each other, and {short(found[2].node)} (line {found[2].line}) gives one angle to {_WHERE[kinds[1]]}")
            return


def rotated_on_one_side(program: Program) -> Iterator[Remark]:
    """Queries are turned by their places and keys are not, or the other way round."""
    for value in computation_of(program).of("scaled_dot_product_attention", "matmul"):
        if len(value.args) < 2 or (value.op == "matmul" and bare(value.args[1]).op not in ("transpose", "permute", "mT", "T")):
            continue
        sides = [_unmoved(one) for one in value.args[:2]]
        turned = [_is_turned(one) for one in sides]
        plain = [one.op == "run" and one.args[0].op == "torch.nn.Linear" for one in sides]
        for at in (0, 1):
            if turned[at] and plain[1 - at]:
                yield Remark(value.node, f"{short(value.node)}: {('the queries', 'the keys')[at]} are turned by their places (line {sides[at].line}), and {('the keys', 'the queries')[at]} are not (line {sides[1 - at].line}): their product tells no distance")
                return


def _is_turned(value: Value) -> bool:
    """Whether a value is turned by the waves of its places: by cosines and sines, or as complex numbers."""
    found = _turned(value)
    if found is not None:
        return _turn(found[1]) is not None
    inner = bare(value)
    while inner.op == "type_as" and inner.args:
        inner = bare(inner.args[0])
    halves = inner.args[0] if inner.op == "cat" and inner.args else None
    if isinstance(halves, Many) and len(halves.parts) == 2 and {bare(one).op for one in halves.parts} == {"add", "sub"}:
        inner = Value("set_item", (inner, inner, halves.parts[0]), node=inner.node, where=inner.where)
    if inner.op == "set_item" and len(inner.args) == 3 and bare(inner.args[2]).op in ("add", "sub"):
        waves = [{kind.op for factor in bare(one).args if (kind := _wave(factor)) is not None} for one in bare(inner.args[2]).args if bare(one).op == "mul"]
        return sorted(waves, key=str) == [{"cos"}, {"sin"}]
    product = bare(inner.args[0]) if inner.op == "view_as_real" and inner.args else inner
    return product.op == "mul" and len(product.args) == 2 and any(bare(one).op == "view_as_complex" for one in product.args)


def _unmoved(value: Value) -> Value:
    """A value before its axes were turned, cut or counted anew."""
    while value.args and (value.op in ("transpose", "permute", "mT", "T", "rows", "chunk", "split", "unbind") or value.op in KEPT or value.op in SHAPED or (value.op == "part" and (value.args[0].op in ("chunk", "split", "unbind") or _is_cut(value.args[1]))) or (value.op == "unflatten")):
        value = value.args[0]
    return value


def _is_cut(index: Value) -> bool:
    return index.op in ("slice", "@constant") or (isinstance(index, Many) and all(one.op in ("slice", "@constant") for one in index.parts))


@FINDERS.add("whole-division")
def _rounded_exponent(program: Program) -> Iterator[Remark]:
    """The step between the exponents of waves is rounded down to a whole number."""
    computation = computation_of(program)
    for value in computation.of("floordiv"):
        inner = value.args[0]
        if inner.op != "div" or not any(one.op == "log" for one in origins(inner.args[0], ("run",))):
            continue
        for user in computation.users(value):
            if user.op == "mul" and any(one.op == "exp" for one in computation.users(user)):
                yield Remark(value.node, f"{short(value.node)} divides from left to right, and // rounds the quotient down to a whole number before exp: waves of two lengths may be all that is left")
                return


def distance_rewarded(program: Program) -> Iterator[Remark]:
    """A positive multiple of the distance between two places is added to the scores of an attention."""
    computation = computation_of(program)
    for value in computation.of("add"):
        if len(value.args) != 2:
            continue
        for bias, scores in (value.args, value.args[::-1]):
            factors = bare(bias).args if bare(bias).op == "mul" else ()
            far = next((one for one in factors if _is_distance(one)), None)
            near = next((one for one in factors if one is not far), None)
            if far is None or near is None or not _is_positive(near) or not any(one.op == "matmul" for one in origins(scores, ("run",))) or not _is_weighed(computation, value):
                continue
            yield Remark(value.node, f"{short(value.node)} adds {short(bias.node)} (line {bias.line}), which grows with the distance and is never below 0: the farther a word is, the more it is attended to")
            return


def _is_distance(value: Value) -> bool:
    """Whether a value is the distance between two places, never below 0."""
    value = bare(value, "part")
    inner = bare(value.args[0]) if value.op == "abs" and value.args else None
    return inner is not None and inner.op == "sub" and len(inner.args) == 2 and all(bare(one, "part").op == "arange" for one in inner.args)


def _is_positive(value: Value) -> bool:
    """Whether a value is made of numbers above 0 alone."""
    value = bare(value, "part", "buffer")
    known = number(value)
    if known is not None:
        return known > 0
    if isinstance(value, Many):
        return bool(value.parts) and all(_is_positive(one) for one in value.parts)
    if value.op == "pow" and value.args:
        return (number(value.args[0]) or 0) > 0
    return value.op in ("exp", "softplus", "sigmoid")


def _is_weighed(computation: Computation, scores: Value) -> bool:
    """Whether scores are what a softmax is taken of, after masks."""
    waiting = [(scores, 4)]
    while waiting:
        at, depth = waiting.pop()
        for user in computation.users(at):
            if user.op == "softmax":
                return True
            if depth and user.op in ("masked_fill", "where", "add", "float", "to"):
                waiting.append((user, depth - 1))
    return False

