"""Rows of one batch that stand in two orders. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    DRAWN,
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
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import TURNED
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.extents import rank, view_sizes

_SWAPS = ("transpose", "swapaxes", "permute")
_MERGED = ("reshape", "view", "flatten")
_RANDOM = ("randperm", "permutation", "shuffle")
_ROWS = ("zeros", "ones", "empty", "full")


def rows_by_place(program: Program) -> Iterator[Remark]:
    """In one loss, rows are taken by a part of a random order, and others by the places of that part."""
    computation = computation_of(program)
    shuffled = {id(bare(one.args[-1])) for one in computation.of("shuffle") if one.args}
    for loss in {id(one): one for _, one in losses(computation)}.values():
        taken = [one for one in origins(loss) if one.op == "part" and len(one.args) == 2]
        orders = [(one, inner) for one in taken if (inner := bare(one.args[1])).op == "part" and len(inner.args) == 2 and inner.args[1].op == "slice" and _is_random(inner.args[0], shuffled)]
        for by_order, cut in orders:
            order = cut.args[0]
            for one in taken:
                if one.args[1].op != "slice" or one is cut or not _is_same_part(one.args[1], cut.args[1]) or bare(one.args[0]).op in (*DRAWN, *_ROWS, "zeros_like", "ones_like", "arange"):
                    continue
                inside = list(origins(one.args[0]))
                if any(each is order or each is bare(order) or each.op in _RANDOM or id(each) in shuffled or each.op == "torch.nn.Parameter" for each in inside) or _is_index(computation, one):
                    continue
                yield Remark(one.node, f"{short(one.node)} takes the rows at these places, and {short(by_order.node)} (line {by_order.line}) those that {short(order.node)} (line {order.line}) has there: the two are rows of different samples")
                return


def _is_random(order: Value, shuffled: set[int]) -> bool:
    """Whether an order is one at random."""
    inner = bare(order)
    return inner.op in ("randperm", "permutation") or id(inner) in shuffled or id(order) in shuffled


def _is_same_part(one: Value, other: Value) -> bool:
    return len(one.args) > 1 and len(other.args) > 1 and not is_none(one.args[0]) and all(a is b or same(a, b) for a, b in zip(one.args[:2], other.args[:2], strict=True))


def _is_index(computation: Computation, value: Value) -> bool:
    """Whether a value says which rows are taken."""
    return any(user.op in ("part", "gather", "index_select") and user.args[0] is not value for user in computation.users(value))


def flattened_apart(program: Program) -> Iterator[Remark]:
    """Of two stores of the same two first axes, one is turned before it is made one row of samples, the other is not, and both
    are in one loss."""
    computation = computation_of(program)
    for loss in {id(one): one for _, one in losses(computation)}.values():
        merged = [(one, found) for one in origins(loss) if one.op in _MERGED and (found := _merged(one)) is not None]
        for one, (sizes, is_turned) in merged:
            for other, (others, turned_too) in merged:
                if is_turned and not turned_too and all(same(a, b) for a, b in zip(sizes, others, strict=True)):
                    yield Remark(other.node, f"{short(other.node)} goes through the first axis before the second, and {short(one.node)} (line {one.line}) through the second before the first: row for row, they belong to different steps")
                    return


def _merged(value: Value) -> tuple[list[Value], bool] | None:
    """The first two sizes of a store, where they are made one axis, and whether they change places before that."""
    inner, turned = value.args[0], False
    while inner.op in (*_SWAPS, "contiguous", "to", "float", "detach"):
        if inner.op in _SWAPS:
            places = [number(one) for one in (inner.args[1].parts if len(inner.args) == 2 and isinstance(inner.args[1], Many) else inner.args[1:])][:2]
            if places != [1, 0] and not (inner.op != "permute" and places == [0, 1]):
                return None
            turned = not turned
        inner = inner.args[0]
    axes, begin = rank(inner), inner
    while begin.op in ("set_item", "contiguous", "to", "float", "detach"):
        begin = begin.args[0]
    if axes is None or axes < 2 or begin.op in TURNED or begin.op not in _ROWS:
        return None
    sizes = [*begin.args[0].made_of()] if begin.args and isinstance(begin.args[0], Many) else list(begin.args)
    if len(sizes) == 1 and sizes[0].op == "add" and all(isinstance(one, Many) for one in sizes[0].args):  # zeros((T, N) + shape)
        sizes = [*sizes[0].args[0].made_of()]
    if len(sizes) < 2 or same(sizes[0], sizes[1]):
        return None
    if value.op == "flatten":
        wanted = [constant(one) for one in value.args[1:]] == [0, 1] or (axes == 2 and len(value.args) == 1)
    else:
        given = view_sizes(value)
        wanted = len(given) == axes - 1 and number(given[0]) is not None and number(given[0]) == -1
    return (sizes[:2], turned) if wanted else None
