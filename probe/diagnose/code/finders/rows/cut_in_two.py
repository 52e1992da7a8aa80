"""Where rows are cut in two: by a bound, by an order of numbers, or by masks. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses

_SPLITS = ("sklearn.model_selection.train_test_split", "torch.utils.data.random_split")
_MASKS = ("flatnonzero", "nonzero", "eq", "ne", "lt", "le", "gt", "ge", "invert", "isin", "and", "or", "in1d")
_ORDERS = ("randperm", "permutation", "argsort")
_SAME_NUMBERS = ("permutation", "from_numpy", "as_tensor", "tensor", "tolist", "numpy", "long", "array", "to", "list")
_COUNTS = ("range", "arange")
_MANY = 100
_PLACED = ("randperm", "permutation", "arange", "range")
_LISTED = (*_PLACED, "argsort", "where", "nonzero", "flatnonzero")


def cuts(computation: Computation) -> Iterator[tuple[Value, list[Value], list[Value]]]:
    """Each place where a whole is cut in two: the cut, the wholes, and the pieces."""
    for value in computation.of(*_SPLITS):
        yield value, list(value.args), [one for one in computation.users(value) if one.op == "part"]
    yield from _chosen_apart(computation)
    yield from _folds(computation)
    for value in computation.of("split", "tensor_split", "array_split", "split_with_sizes"):
        order = bare(value.args[0]) if len(value.args) == 2 and isinstance(bare(value.args[1]), Many) and not value.named and not value.where.loops else value
        pieces = [one for one in computation.users(value) if one.op == "part" and isinstance(constant(one.args[1]), int)]
        for place, first in enumerate(pieces) if order.op in _ORDERS else ():
            for second in pieces[place + 1 :]:
                chosen = [(one, other) for one in chosen_by(computation, first) for other in chosen_by(computation, second) if one.args[0] is other.args[0]]
                yield from ((other, [one.args[0]], [one, other]) for one, other in chosen[:1])
    subsets = [value for value in computation.of("torch.utils.data.Subset") if len(value.args) == 2]
    for first in subsets:
        ends = bare(first.args[1])
        for second in subsets if ends.op in _COUNTS and ends.args else ():
            begins = bare(second.args[1])
            if second.args[0] is first.args[0] and begins.op in _COUNTS and len(begins.args) == 2 and _begins_at_or_after(begins.args[0], ends.args[min(1, len(ends.args) - 1)]):
                yield second, [first.args[0]], [first, second]
    for tail in [value for value in computation.of("part") if len(value.args) == 2 and value.args[1].op == "slice" and is_none(value.args[1].args[1])]:
        begin = tail.args[1].args[0]
        for head in computation.users(tail.args[0]) if begin.op in ("int", "mul", "sub", "floordiv", "len") else ():
            if head.op == "part" and len(head.args) == 2 and head.args[0] is tail.args[0] and any(one.op in _ORDERS and one.args and one.args[-1] is begin for one in origins(head.args[1])):
                yield tail, [head.args[0]], [head, tail]
                break
    heads = [value for value in computation.of("part") if len(value.args) == 2 and not value.args[0].where.loops and not _bound(value).where.loops]
    for head in heads:
        index = head.args[1]
        if index.op != "slice" or not is_none(index.args[0]) or is_none(index.args[1]) or (constant(index.args[1]) is not None and not _is_many(head)):
            continue
        for tail in computation.users(head.args[0]):
            other = tail.args[1] if tail.op == "part" and len(tail.args) == 2 and tail.args[0] is head.args[0] else None
            if other is None or other.op != "slice" or not is_none(other.args[1]) or not _begins_at_or_after(other.args[0], index.args[1]) or tail.where.functions != head.where.functions:
                continue
            yield tail, [head.args[0]], [head, tail]
            if bare(head.args[0]).op in _ORDERS:
                chosen = [(one, other) for one in chosen_by(computation, head) for other in chosen_by(computation, tail) if one.args[0] is other.args[0]]
                yield from ((second, [first.args[0]], [first, second]) for first, second in chosen)


def _folds(computation: Computation) -> Iterator[tuple[Value, list[Value], list[Value]]]:
    """Rows that each turn of a loop over folds leaves out: a piece of an order of numbers, beside all its other pieces in a row."""
    chosen = [value for value in computation.of("part", "torch.utils.data.Subset") if len(value.args) == 2 and value.where.loops]
    for rest in chosen:
        joined = bare(rest.args[1])
        orders = {id(one) for one in origins(joined) if one.op in (*_ORDERS, *_COUNTS)} if joined.op in ("cat", "setdiff1d", "delete") else ()
        for left in chosen if orders else ():
            piece = bare(left.args[1])
            if left.args[0] is rest.args[0] and piece.op == "part" and any(one.op == "index" and one.node in left.where.loops for one in origins(piece.args[-1])) and any(id(one) in orders for one in origins(piece.args[0])):
                yield left, [left.args[0]], [rest, left]
                break


def _bound(head: Value) -> Value:
    """Where a part that begins at the start ends: a loop does not change it where it is computed before."""
    index = head.args[1]
    return index.args[1] if index.op == "slice" and len(index.args) > 1 else head


def _begins_at_or_after(start: Value, end: Value) -> bool:
    """Whether a tail begins where a head ends, or with a gap between the two."""
    gap = (start.op == "add" and start.args[0] is end) or (end.op == "sub" and end.args[0] is start)
    known = number(start), number(end)
    return start is end or gap or (known[0] is not None and known[1] is not None and known[1] <= known[0] <= known[1] * 1.5)


def _is_many(head: Value) -> bool:
    """Whether a part that ends at a known number is a part of many rows, and not some columns or a prefix."""
    known = number(head.args[1].args[1])
    return known is not None and (known >= _MANY or (known > 0 and bare(head.args[0]).op in _ORDERS))


def _chosen_apart(computation: Computation) -> Iterator[tuple[Value, list[Value], list[Value]]]:
    """Rows that are chosen from one whole by different masks or numbers, of which some are learned and some are not."""
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    by_whole: dict[int, list[Value]] = {}
    for one in computation.of("part"):
        if len(one.args) == 2 and not one.where.loops and bare(one.args[1]).op in _MASKS:
            by_whole.setdefault(id(one.args[0]), []).append(one)
    for chosen in by_whole.values():
        here = next((one for one in chosen if id(one) in learned), None)
        for one in chosen if here is not None else ():
            if here is not None and id(one) not in learned and not same(one.args[1], here.args[1]):
                yield one, [here.args[0]], [here, one]


def chosen_by(computation: Computation, order: Value) -> list[Value]:
    """The rows that an order of numbers chooses: `x[order]`, `Subset(x, order)`, a loader that samples by it."""
    waiting, seen, found = [order], {id(order)}, []
    while waiting:
        at = waiting.pop()
        for one in computation.users(at):
            if one.op in ("part", "torch.utils.data.Subset") and len(one.args) == 2 and one.args[1] is at:
                found.append(one)
            elif one.op.endswith(".SubsetRandomSampler"):
                found += [each for each in computation.users(one) if each.op == "torch.utils.data.DataLoader" and each.args and each.named.get("sampler") is one]
            elif id(one) not in seen and ((one.op == "part" and one.args[0] is at and any(each.op in _ORDERS for each in origins(one.args[1]))) or (at is not order and one.op in ("split", "chunk", "element")) or (one.op in _SAME_NUMBERS and one.args and one.args[-1] is at)):
                seen.add(id(one))
                waiting.append(one)
    return found


# Numbers of rows that are split again ------------------------------------------------------


def places_for_rows(program: Program) -> Iterator[Remark]:
    """Some numbers of rows are kept apart from the others; the places of those in their list are put into an order, and taken as
    the numbers of the rows themselves."""
    computation = computation_of(program)
    for order in computation.of(*_PLACED):
        size = bare(order.args[-1]) if order.args and len(order.args) < 3 else order
        listed = bare(size.args[0]) if size.op == "len" and size.args else size
        if listed.op != "part" or len(listed.args) != 2 or (order.op == "permutation" and size.op != "len") or (whole := _all_numbers(listed)) is None:
            continue  # of a list, `permutation` gives its numbers, and not their places
        others = [one for one in _all_chosen_by(computation, whole) if not any(part is order for part in _within(one.args[1]))]
        for one in _all_chosen_by(computation, order):
            other = next((each for each in others if each.args[0] is one.args[0] and each is not one), None)
            if other is not None and bare(one.args[0]) is not listed and one.number > listed.number:
                yield Remark(one.node, f"{short(one.node)} takes places in {short(listed.node)} (line {listed.line}) for numbers of rows: {short(order.node)} (line {order.line}) counts from 0, and {short(other.node)} (line {other.line}) takes rows by the numbers themselves")
                return


def _all_numbers(listed: Value) -> Value | None:
    """The numbers of all rows of which a list has some; None where it is no list of numbers of rows."""
    whole = bare(listed.args[0])
    return whole if whole.op in _LISTED and listed.args[1].op == "slice" else None


def _all_chosen_by(computation: Computation, order: Value) -> list[Value]:
    """The rows that numbers, or a slice of them, choose."""
    waiting, found, seen = [order], [], {id(order)}
    while waiting:
        at = waiting.pop()
        found += chosen_by(computation, at)
        for one in computation.users(at):
            again = (one.op == "part" and one.args[0] is at and one.args[1].op == "slice") or (bare(one) is order and one is not at)
            if again and id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)
    return found


def _within(index: Value) -> Iterator[Value]:
    """What an index is a piece of."""
    for _ in range(12):
        yield index
        if not index.args:
            return
        index = bare(index.args[-1]) if index.op == "part" and index.args[1].op != "slice" else bare(index.args[0])
