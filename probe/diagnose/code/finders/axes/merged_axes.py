"""Axes that are joined though they do not lie side by side: heads that are cut out of the features and not brought back. Pure;
standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, constant, is_none, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import rank, view_sizes

FINDERS = Finders()
_ALIKE = (KEPT - {"rows", "stack", "list", "tuple", "either"}) | {
    "softmax", "masked_fill", "dropout", "relu", "gelu", "silu", "tanh", "contiguous", "neg", "normalize",
}
_KEPT_BY = ("Dropout", "LayerNorm", "RMSNorm", "Identity")
_Axis = tuple[int, int, int]
"""Which value an axis is of, its place there, and its part where it was cut in two (-1: whole)."""


@FINDERS.add("view-mixes-axes")
def _joins_others(program: Program) -> Iterator[Remark]:
    """The last two of four axes are joined, and these are the places and a part of the features: the heads lie before the places."""
    for value in computation_of(program).of("flatten", "view_as", "reshape_as", "view", "reshape"):
        if not _joins_the_last(value):
            continue
        have = _axes(value.args[0])
        if have is None or len(have) != 4 or have[3][2] != 1 or have[2][2] != -1 or have[1] != (*have[3][:2], 0):
            continue
        yield Remark(value.node, f"{short(value.node)} joins the places with a part of the features of each, and the parts lie before the places in {short(bare(value.args[0]).node)}: it counts its numbers anew, and turns no axis")
        return


def _joins_the_last(value: Value) -> bool:
    """Whether a value has three axes, of which the last is the last two of four."""
    if not value.args or isinstance(value.args[0], Many):
        return False
    if value.op == "flatten":
        return number(value.argument("start_dim", 1)) in (2, -2)
    if value.op in ("view_as", "reshape_as"):
        return len(value.args) == 2 and rank(value.args[1]) in (3, None)
    sizes = view_sizes(value)
    if len(sizes) == 1:
        return sizes[0].op == "shape" and rank(sizes[0].args[0]) in (3, None)
    return len(sizes) == 3 and not any(one.op == "star" for one in sizes) and number(sizes[2]) not in (1, None) and number(sizes[1]) in (-1, None) and number(sizes[0]) in (None,)


def _axes(value: Value, depth: int = 40) -> list[_Axis] | None:
    """The axes of a tensor, as those of the values that they come from."""
    op, args = value.op, value.args
    if depth == 0:
        return None
    if op == "unflatten" and len(args) > 2:
        sizes, at = args[2].parts if isinstance(args[2], Many) else [], number(args[1])
        inner = _axes(args[0], depth - 1)
        if inner is None or len(sizes) != 2 or at is None or not -len(inner) <= at < len(inner) or inner[int(at)][2] != -1:
            return None
        place = int(at) % len(inner)
        return [*inner[:place], (*inner[place][:2], 0), (*inner[place][:2], 1), *inner[place + 1 :]]
    if op in ("view", "reshape"):
        sizes = view_sizes(value)
        inner = _axes(args[0], depth - 1)
        if inner is None or len(sizes) != 4 or len(inner) != 3 or inner[2][2] != -1 or number(sizes[1]) not in (None, -1) or not _is_length(sizes[1]) or _is_length(sizes[2]):
            return None
        return [*inner[:2], (*inner[2][:2], 0), (*inner[2][:2], 1)]
    if op == "part" and len(args) == 2 and isinstance(constant(args[1]), int):
        whole = args[0].args[0] if args[0].op in ("chunk", "split") and args[0].args else None
        inner = _axes(whole, depth - 1) if whole is not None else None
        at = number(args[0].argument("dim", 2)) if inner is not None else None
        if inner is None or at is None or not -len(inner) <= at < len(inner):
            return None
        place = int(at) % len(inner)
        return [*inner[:place], (id(value), place, -1), *inner[place + 1 :]]
    if op == "run" and len(args) == 2 and args[0].op.startswith("torch.nn."):
        if args[0].op == "torch.nn.Linear":
            inner = _axes(args[1], depth - 1)
            return None if inner is None else [*inner[:-1], (id(value), len(inner) - 1, -1)]
        if args[0].op.rpartition(".")[2].startswith(_KEPT_BY):
            return _axes(args[1], depth - 1)
    if op in ("scaled_dot_product_attention", "matmul") and len(args) > 1:
        first, last = _axes(args[0], depth - 1), _axes(args[2 if op.startswith("scaled") and len(args) > 2 else 1], depth - 1)
        if first is None or last is None or len(first) != len(last) or len(first) != 4:
            return None
        alike = [one[2] for one in first[:2]] == [one[2] for one in last[:2]]
        # The heads of the weights are those of the values: each head gives its own part of the features.
        return [last[0], last[1], (first[2][0], first[2][1], first[2][2]), last[3]] if alike else None
    if op == "mT" and args:
        inner = _axes(args[0], depth - 1)
        return None if inner is None else [*inner[:-2], inner[-1], inner[-2]]
    if op in ("transpose", "swapaxes", "permute") and len(args) > 1:
        inner = _axes(args[0], depth - 1)
        places = [number(one) for given in args[1:] for one in (given.parts if isinstance(given, Many) else [given])]
        if inner is None or None in places or any(not -len(inner) <= (place or 0) < len(inner) for place in places):
            return None
        order = [int(place or 0) % len(inner) for place in places]
        if op == "permute":
            return [inner[place] for place in order] if sorted(order) == list(range(len(inner))) else None
        if len(order) != 2:
            return None
        inner = list(inner)
        inner[order[0]], inner[order[1]] = inner[order[1]], inner[order[0]]
        return inner
    if op in ("mul", "div") and len(args) == 2 and (number(args[1]) is not None or args[1].op in ("sqrt", "pow", "rsqrt")):
        return _axes(args[0], depth - 1)
    if op in _ALIKE and args and not isinstance(value, Many) and (inner := _axes(args[0], depth - 1)) is not None:
        return inner
    known = rank(value)
    words = known is None and op in ("run", "add", "@input", "part", "element", "rows", "load")
    return [(id(value), place, -1) for place in range(3)] if known == 3 or words else None


def _is_length(size: Value) -> bool:
    """Whether a size is one of another tensor, and not a setting."""
    size = bare(size)
    return number(size) == -1 or size.op == "size" or (size.op == "part" and bool(size.args) and (size.args[0].op == "shape" or (size.args[0].op == "size" and is_none(size.args[0].argument("dim", 1)))))
