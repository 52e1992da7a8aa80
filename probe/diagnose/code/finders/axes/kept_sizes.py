"""The sizes of a tensor's axes, followed through what turns them, and views that give them in another order. Pure;
standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, constant, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import view_sizes

FINDERS = Finders()
_ALIKE = (KEPT - {"rows", "stack", "list", "tuple", "either"}) | {
    "softmax", "log_softmax", "masked_fill", "dropout", "relu", "gelu", "silu", "tanh", "sigmoid", "contiguous", "clamp", "exp", "neg",
}
"""Operations whose result has the axes of what they are done on."""
_KEPT_BY = ("Dropout", "LayerNorm", "RMSNorm", "Softmax", "ReLU", "GELU", "SiLU", "Tanh", "Identity")


@FINDERS.add("view-mixes-axes")
def _skips_an_axis(program: Program) -> Iterator[Remark]:
    """A view names the sizes of a tensor that was turned, in an order that it does not have: heads, say, that were brought
    before the positions and are not brought back."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("view", "reshape"):
        have, want = axes(value.args[0]) or [], view_sizes(value)
        if len(have) < 3 or value.node in said:
            continue
        taken: set[int] = set()
        for size in want:
            places = [place for place, one in enumerate(have) if one is not None and _equal(one, size)]
            if len(places) != 1 or number(size) == -1:
                break  # it may hold any of the axes that are left
            skipped = [one for place, one in enumerate(have[: places[0]]) if place not in taken and number(one) != 1]
            if skipped and skipped[0] is not None:
                said.add(value.node)
                yield Remark(value.node, f"{short(value.node)} puts {short(size.node)} before {short(skipped[0].node)}, which lies before it in {short(bare(value.args[0]).node)}: it counts its numbers anew, and turns no axis")
                break
            taken.add(places[0])


def _equal(one: Value, other: Value) -> bool:
    return number(one) != 1 and same(bare(one), bare(other))


def axes(value: Value, depth: int = 40) -> list[Value | None] | None:
    """The sizes of a tensor's axes, as far as a view before has named them; None of one that is not known, and in place of
    all where not even their number is."""
    op, args = value.op, value.args
    if depth == 0:
        return None
    if op in ("view", "reshape"):
        sizes = view_sizes(value)
        return [None if number(one) == -1 else one for one in sizes] if sizes and not any(one.op == "star" for one in sizes) else None
    if op == "part" and len(args) == 2:
        return _part(args[0], args[1], depth - 1)
    if op == "run" and len(args) == 2 and args[0].op.startswith("torch.nn."):
        known = axes(args[1], depth - 1)
        if args[0].op == "torch.nn.Linear":
            return None if not known else [*known[:-1], args[0].argument("out_features", 1)]
        return known if args[0].op.rpartition(".")[2].startswith(_KEPT_BY) else None
    if op in ("scaled_dot_product_attention", "matmul") and len(args) > 1:
        first, last = axes(args[0], depth - 1), axes(args[2 if op.startswith("scaled") and len(args) > 2 else 1], depth - 1)
        return [*first[:-1], last[-1]] if first and last and len(first) == len(last) else None
    known = axes(args[0], depth - 1) if args and not isinstance(value, Many) and op in (*_ALIKE, "transpose", "swapaxes", "permute", "mul", "div", "add") else None
    if known is None or op in _ALIKE:
        return known
    if op in ("mul", "div", "add"):
        return known if len(args) == 2 and (number(args[1]) is not None or args[1].op in ("sqrt", "pow", "rsqrt")) else None
    places = [number(one) for given in args[1:] for one in (given.parts if isinstance(given, Many) else [given])]
    if None in places or any(not -len(known) <= (place or 0) < len(known) for place in places):
        return None
    order = [int(place or 0) % len(known) for place in places]
    if op == "permute":
        return [known[place] for place in order] if sorted(order) == list(range(len(known))) else None
    if len(order) != 2:
        return None
    known[order[0]], known[order[1]] = known[order[1]], known[order[0]]
    return known


def _part(on: Value, index: Value, depth: int) -> list[Value | None] | None:
    """The axes of one of the tensors that a tensor falls into: `q, k, v = x`, `x.unbind(2)`, `x.chunk(3, -1)`."""
    if not isinstance(constant(index), int):
        return None
    whole = axes(on.args[0] if on.op in ("unbind", "chunk", "split") and on.args else on, depth)
    if not whole:
        return None
    place = number(on.argument("dim", 1 if on.op == "unbind" else 2)) if on.op in ("unbind", "chunk", "split") else 0
    at = int(place or 0)
    if not -len(whole) <= at < len(whole):
        return None
    at %= len(whole)
    return [*whole[:at], *([None] if on.op in ("chunk", "split") else []), *whole[at + 1 :]]
