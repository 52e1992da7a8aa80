"""Samples that belong together, and are split at random one by one: copies, windows that overlap, and those of one
recording or patient. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    DRAWN,
    KEPT,
    Instance,
    Many,
    Table,
    Value,
    bare,
    comes_from,
    constant,
    number,
    origins,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES
from probe.diagnose.code.traits.extents import rank
from probe.diagnose.code.traits.numberings import contents

FINDERS = Finders()
_SPLITS = ("sklearn.model_selection.train_test_split", "torch.utils.data.random_split")
_ORDERS = ("randperm", "permutation")
_MOST = 4000


class Cut(NamedTuple):
    """Where rows are split at random, one by one: what does it, and what they are rows of."""

    value: Value
    wholes: list[Value]


def random_cuts(computation: Computation) -> Iterator[Cut]:
    """Each place where rows are split at random, one by one, and what they are rows of."""
    for value in computation.of(*_SPLITS):
        given = value.args[:1] if value.op.endswith("random_split") else value.args
        if constant(value.named.get("shuffle")) is not False:
            yield Cut(value, list(given))
    for order in computation.of(*_ORDERS):
        if order.where.loops:
            continue
        pieces = [one for one in _same_rows(computation, order) if one.op == "part" and len(one.args) == 2 and one.args[1].op == "slice"]
        wholes = [whole for piece in pieces for whole in _taken_from(computation, piece)]
        if len({_bounds(one) for one in pieces}) > 1 and wholes:
            yield Cut(order, wholes)


def _bounds(piece: Value) -> tuple[int, ...]:
    return tuple(id(one) if constant(one) is None else 0 for one in piece.args[1].args[:2])


def _same_rows(computation: Computation, order: Value) -> Iterator[Value]:
    """What is made of a random order directly, also where it has another type before."""
    for one in computation.users(order):
        if bare(one) is order and one is not order:
            yield from computation.users(one)
        else:
            yield one


def _taken_from(computation: Computation, piece: Value) -> Iterator[Value]:
    """What a piece of a random order takes rows of."""
    for user in (one for at in (piece, *(each for each in computation.users(piece) if bare(each) is piece)) for one in computation.users(at)):
        if (user.op == "part" and len(user.args) == 2 and user.args[1] is not user.args[0] and bare(user.args[1]) is piece) or (user.op == "torch.utils.data.Subset" and len(user.args) == 2):
            yield user.args[0]


def _held(whole: Value) -> dict[int, Value]:
    """A whole and all that it is made of, also what its objects keep."""
    found = {id(whole): whole}
    waiting = [whole]
    while waiting and len(found) < _MOST:
        at = waiting.pop()
        inner = at.attributes.values() if isinstance(at, Instance) else at.made_of()
        for one in inner:
            if id(one) not in found:
                found[id(one)] = one
                waiting.append(one)
    return found


class Row(NamedTuple):
    """What one pass of an inner loop adds to the samples: the parts that it computes anew, and those that are the same in
    all of its passes."""

    value: Value
    new: list[Value]
    fixed: list[Value]


def _rows(computation: Computation, held: dict[int, Value]) -> Iterator[Row]:
    """What is added to the lists of samples in a loop within a loop."""
    by_loops: dict[tuple[int, ...], list[Value]] = {}
    for added in computation.of("append"):
        if len(added.where.loops) > 1 and (id(added.args[0]) in held or any(id(one) in held for one in _parts(added.args[1]) if one.op != "@constant")):
            by_loops.setdefault(tuple(map(id, added.where.loops)), []).append(added)
    for group in by_loops.values():
        inner = group[0].where.loops[-1]
        parts = [part for one in group for part in _parts(one.args[1])]
        new = [one for one in parts if any(inner in each.where.loops and each.op not in ("part", "@constant", *KEPT) for each in origins(one))]
        yield Row(group[0], new, [one for one in parts if not any(each is one for each in new)])


def _parts(value: Value) -> list[Value]:
    if isinstance(value, Table):
        return list(value.entries.values())
    return value.parts if isinstance(value, Many) and not value.grown else [value]


def _is_answer(value: Value, outer: object) -> bool:
    """Whether a value, the same for all rows of a group, may be that of other groups too: it is drawn, or read, and not the
    number of the group."""
    inner = bare(value)
    if inner.op in ("@constant", "index", "count", "@input") or (inner.op == "int" and inner.args and inner.args[0].op == "index"):
        return False
    return outer in inner.where.loops or inner.op in ("mod", "element")


def _is_number_of(value: Value, outer: object) -> bool:
    """Whether a value is the number of the turn of a loop: of the group that its samples belong to."""
    inner = bare(value, "builtins.int")
    return inner.op == "index" and inner.node is outer


def _is_entry_of(value: Value, outer: object) -> bool:
    """Whether a value is what a table from before a loop has for the number of its turn."""
    return value.op == "part" and len(value.args) == 2 and _is_number_of(value.args[1], outer) and outer not in value.args[0].where.loops


def _is_name_of(value: Value, outer: object) -> bool:
    """Whether a value is what a table has for the number of a turn, each of which may have its own: nothing says that several share one."""
    inner = bare(value, "builtins.int")
    return _is_entry_of(inner, outer) and bare(inner.args[0]).op not in DRAWN and bare(inner.args[0]).op not in ("integers", "mod")


@FINDERS.add("groups-split-at-random")
def _groups_split(program: Program) -> Iterator[Remark]:
    """A loop adds several samples of one recording with one label, and the samples are split at random."""
    computation = computation_of(program)
    aims = {id(one) for loss in computation.of(*LOSSES) if len(loss.args) > 1 for one in origins(loss.args[1])}
    asked_for = {id(one) for loss in computation.of(*LOSSES) if len(loss.args) > 1 for one in contents(computation, loss.args[1])}
    for cut in random_cuts(computation) if aims else ():
        held = {key: one for whole in cut.wholes for key, one in _held(whole).items()}
        for row in _rows(computation, held):
            outer = row.value.where.loops[-2]
            shared = [each for one in row.new for each in origins(one) if outer in each.where.loops and each.where.loops[-1] is outer and bare(each).op not in ("@constant", "index", "count", "range", "len")]
            shared += [each for one in row.new for each in origins(one) if _is_entry_of(each, outer)]
            answers = [one for one in row.fixed if _is_answer(one, outer) and id(one) in aims and not _is_name_of(one, outer)]
            beside = (part for added in computation.of("append") if added.where.loops == row.value.where.loops for part in _parts(added.args[1]))
            named = next((one for one in beside if _is_number_of(one, outer) and id(one) not in asked_for), None)
            if shared and named is not None and not answers and not _is_window(row) and not any(comes_from(run, named) for run in computation.of("run")):
                yield Remark(cut.value.node, f"{short(cut.value.node)} splits samples at random, and each turn of the loop of line {getattr(outer, 'lineno', 0)} adds several that share what it draws; the number of the turn, which is kept for each, is not asked")
                return
            if shared and answers and not _is_window(row):
                yield Remark(cut.value.node, f"{short(cut.value.node)} splits samples at random, and {short(row.value.node)} (line {row.value.line}) adds several for each turn of the loop of line {getattr(outer, 'lineno', 0)}, with one label")
                return


@FINDERS.add("groups-split-at-random")
def _blocks_split(program: Program) -> Iterator[Remark]:
    """Each turn of a loop adds a block of rows that share what it has for that turn, with its number for each row; all rows are
    split at random, and the number is not asked."""
    computation = computation_of(program)
    aims = {id(one) for loss in computation.of(*LOSSES) if len(loss.args) > 1 for one in origins(loss.args[1])}
    numbered = {loop: one for one in computation.of("append") if one.where.loops and (loop := one.where.loops[-1]) and _numbers(one.args[-1], loop) and id(one.args[0]) not in aims}
    for cut in random_cuts(computation) if aims and numbered else ():
        held = {key: one for whole in cut.wholes for key, one in _held(whole).items()}
        for added in computation.of("append"):
            around = added.where.loops[-1] if added.where.loops else None
            named = numbered.get(around) if around is not None else None
            if named is None or id(added.args[0]) not in held or around in cut.value.where.loops or any(comes_from(one, named.args[0]) for one in cut.value.args):
                continue
            answers = [one for one in computation.of("append") if one.where.loops == added.where.loops and id(one.args[0]) in aims and not _numbers(one.args[-1], added.where.loops[-1])]
            if answers and _shares(added.args[-1], added.where.loops[-1]):
                yield Remark(cut.value.node, f"{short(cut.value.node)} splits rows at random, and {short(added.node)} (line {added.line}) adds a block of them for each turn of the loop of line {getattr(around, 'lineno', 0)}, with the number of the turn for each row (line {named.line}), which the split does not ask")
                return


def _numbers(block: Value, loop: object) -> bool:
    """Whether a block of numbers holds the number of the turn of a loop for each of its rows."""
    block = bare(block, "builtins.int")
    if block.op in ("full", "repeat") and len(block.args) > 1:
        return any(_is_number_of(one, loop) for one in block.args[:2])
    listed = block.args if block.op == "mul" else block.parts if isinstance(block, Many) and block.op == "list" else ()
    return any(_is_number_of(one, loop) or (isinstance(one, Many) and len(one.parts) == 1 and _is_number_of(one.parts[0], loop)) for one in listed)


def _shares(block: Value, loop: object) -> bool:
    """Whether the rows of a block share something that a turn of a loop has for itself: it is drawn or looked up for the turn,
    and added to rows that are drawn one by one."""
    block = bare(block)
    if block.op not in ("add", "sub", "mul") or len(block.args) != 2:
        return False
    for one, other in (block.args, block.args[::-1]):
        drawn = [each for each in origins(one) if each.op in DRAWN and loop in each.where.loops and any(isinstance(size, Many) and len(size.parts) == 2 for size in (*each.args, *each.named.values()))]
        drawn += [each for each in origins(one) if each.op == "randn" and loop in each.where.loops and len(each.args) == 2]
        own = bare(other)
        turn = (own.op == "part" and _is_number_of(own.args[-1], loop)) or own.op == "element" or (own.op in DRAWN and loop in own.where.loops)
        if drawn and turn and not any(each is own for each in drawn):
            return True
    return any(_shares(one, loop) for one in block.args)


def _is_window(row: Row) -> bool:
    return any(_overlap(each) is not None for one in row.new for each in origins(one))


@FINDERS.add("windows-split-at-random")
def _windows_split(program: Program) -> Iterator[Remark]:
    """Windows that begin nearer to each other than they are long are split at random."""
    computation = computation_of(program)
    for cut in random_cuts(computation):
        for whole in cut.wholes:
            held = _held(whole)
            for one in (*held.values(), *_read_by(computation, held)):
                apart = _overlap(one)
                if apart is not None:
                    yield Remark(cut.value.node, f"{short(cut.value.node)} splits windows at random that overlap ({short(one.node)}, line {one.line}): neighbours fall into both parts")
                    return


@FINDERS.add("windows-split-at-random")
def _shifted_windows_split(program: Program) -> Iterator[Remark]:
    """Several windows of one thing, each moved by a few places, are kept as samples, which are split at random."""
    computation = computation_of(program)
    for cut in random_cuts(computation):
        held = {key: one for whole in cut.wholes for key, one in _held(whole).items()}
        moved: dict[int, list[tuple[Value, Value, float, float]]] = {}
        for one in held.values():
            if (found := _moved(one)) is not None and one.where.loops:
                moved.setdefault(id(one.args[0]), []).append((one, *found))
        for several in moved.values():
            for one, begin, place, length in several:
                other = next((each for each, start, there, _ in several if each is not one and 0 < abs(there - place) < length and same(start, begin) and _are_two_samples(computation, one, each)), None)
                if other is not None:
                    yield Remark(cut.value.node, f"{short(cut.value.node)} splits windows at random, and {short(one.node)} (line {one.line}) takes several of each thing that overlap: they fall into both parts")
                    return


def _are_two_samples(computation: Computation, one: Value, other: Value) -> bool:
    """Whether two values are put into one list one after the other, each by itself or in a tuple of its own."""
    lists = []
    for value in (one, other):
        users = computation.users(value)
        added = [each for held in (value, *(user for user in users if user.op in ("tuple", "dict"))) for each in computation.users(held) if each.op == "append" and each.args[-1] is held]
        lists.append({id(each): id(each.args[0]) for each in added})
    return not lists[0].keys() & lists[1].keys() and bool(set(lists[0].values()) & set(lists[1].values()))


def _moved(window: Value) -> tuple[Value, float, float] | None:
    """From where a window is moved, by how much, and how long it is: begin, k and n of `x[begin + k : begin + k + n]`."""
    index = window.args[1] if window.op == "part" and len(window.args) == 2 else window
    first, end = index.args[:2] if index.op == "slice" else (index, index)
    if first.op != "add" or len(first.args) != 2 or not (lengths := _added(end, first)):
        return None
    known = [number(one) for one in lengths]
    for begin, by in (first.args, first.args[::-1]):
        if (place := number(by)) is not None and number(begin) is None and None not in known:
            return begin, place, sum(one or 0.0 for one in known)
    return None


def _read_by(computation: Computation, held: dict[int, Value]) -> Iterator[Value]:
    """What the data sets of the program among some values take parts of where they read a sample."""
    for of in {one.of for one in held.values() if isinstance(one, Instance) and one.of is not None}:
        reads = {one for one in of.body if isinstance(one, ast.FunctionDef) and one.name == "__getitem__"}
        yield from (one for one in computation.of("part") if not reads.isdisjoint(one.where.functions))


def _overlap(value: Value) -> float | None:
    """How far the windows are apart that a slice takes one after the other; None where they do not overlap, or that is
    unknown."""
    if value.op == "unfold" and len(value.args) == 4:  # of a tensor: the axis, how long, how far apart
        along, size, between = (number(one) for one in value.args[1:])
        of_rows = along == 0 or (along == -1 and rank(value.args[0]) == 1)
        return between if of_rows and size is not None and between is not None and between < size else None
    if value.op.endswith("sliding_window_view") and len(value.args) > 1:
        axis = value.argument("axis", 2) or value.named.get("dim")
        return 1.0 if number(value.args[1]) != 1 and (number(axis) == 0 or (axis is None and rank(value.args[0]) == 1)) else None
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    cuts = [one for one in index.parts if one.op == "slice" and any(one.op == "index" for one in one.args)] if isinstance(index, Many) else []
    index = cuts[0] if len(cuts) == 1 else index
    if index is None or index.op != "slice":
        return None
    first, end = index.args[:2]
    lengths = _added(end, first)
    starts = bare(first.args[0]) if first.op == "part" and len(first.args) == 2 and first.args[1].op == "index" else first
    if starts.op not in ("index", "range") or not starts.args or not lengths:
        return None
    step = starts.args[2] if len(starts.args) > 2 else None
    apart, least = number(step) if step is not None else 1.0, sum(number(one) or 0.0 for one in lengths)
    if step is None and any(number(one) is None for one in lengths):
        return apart
    return apart if apart is not None and apart < least else None


def _added(end: Value, first: Value) -> list[Value]:
    """What is added to the first place of a window for its last: of `s + a + b`, a and b."""
    if end.op != "add" or len(end.args) != 2:
        return []
    for one, other in (end.args, end.args[::-1]):
        if same(one, first):
            return [other]
        if rest := _added(one, first):
            return [*rest, other]
    return []


@FINDERS.add("windows-split-at-random")
def _starts_split(program: Program) -> Iterator[Remark]:
    """The places where windows of one series begin are put into a random order and cut in two, nearer to each other than a
    window is long."""
    computation = computation_of(program)
    pieces: dict[int, list[Value]] = {}
    for window in computation.of("part"):
        index = window.args[1] if len(window.args) == 2 else None
        first, end = index.args[:2] if index is not None and index.op == "slice" else (None, None)
        if first is None or end is None or end.op != "add" or first not in end.args:
            continue
        start = bare(first, "int", "builtins.int")
        piece = bare(start.args[0]) if start.op == "part" and start.args[1].op == "index" else None
        if piece is None or piece.op != "part" or piece.args[1].op != "slice":
            continue
        order = bare(piece.args[0])
        length = number(end.args[1] if end.args[0] is first else end.args[0])
        apart = 1.0 if order.op in _ORDERS else number(order.args[2]) if len(order.args) > 2 else 1.0
        if (order.op in _ORDERS or (order.op in ("arange", "list", "range") and _is_shuffled(computation, order))) and apart is not None and (length is None or apart < length):
            pieces.setdefault(id(order), []).append(piece)
    for found in pieces.values():
        if len({_bounds(one) for one in found}) > 1:
            yield Remark(found[0].node, f"{short(found[0].node)} is a part of the places where windows begin, in random order: windows that overlap fall into both parts")
            return


def _is_shuffled(computation: Computation, order: Value) -> bool:
    return any(one.op == "shuffle" and any(each is order for each in one.args) for one in computation.users(order))
