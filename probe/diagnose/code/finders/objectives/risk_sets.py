"""Sums over those who are still at risk, in losses of times until an event. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, constant, is_none, number, origins, same
from probe.diagnose.code.finders.objects.pairwise_ranks import along_an_axis, compared_pairs
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import computed_by_none, product
from probe.diagnose.code.traits.basic import without_small

_SORTED = ("argsort", "sort", "sorted", "sort_values", "lexsort", "topk", "searchsorted", "unique")
_DRAWN = ("randint", "randperm", "choice", "permutation", "integers")
_TAKEN = ("part", "index_select", "gather", "take")
_ASKED = ("eq", "gt", "ge", "ne", "bool", "nonzero", "where", "rows", "element")


class _RiskSets(NamedTuple):
    """The logarithms of sums over all rows up to each one: of the values `of`, turned round before (`turned`), in a
    loss that counts the rows with an event alone."""

    value: Value
    of: Value
    turned: bool


def risk_sets_out_of_order(program: Program) -> Iterator[Remark]:
    """The likelihood of an event is divided by a sum over others than those who are still at risk."""
    yield from _sums_out_of_order(program)
    yield from _masked_to_the_others(program)


def _sums_out_of_order(program: Program) -> Iterator[Remark]:
    """The sum is over those before it in an order that is not that of falling times."""
    computation = computation_of(program)
    for sets in _risk_sets(computation):
        which = "after" if sets.turned else "before"
        mixed = None if sets.value.where.no_grad else _mixed(sets.of)
        if mixed is not None:
            yield Remark(sets.value.node, f"{short(sets.value.node)} adds up the rows {which} each one, and {short(mixed.node)} (line {mixed.line}) puts them in a random order: who is at risk is left to chance")
            return
        order = _order_of(sets.of)
        if order is not None and order[1] is not sets.turned and computed_by_none(order[0]):
            _, rising, sorting = order
            word = "small to large" if rising else "large to small"
            yield Remark(sets.value.node, f"{short(sets.value.node)} adds up the rows {which} each one, and {short(sorting.node)} (line {sorting.line}) has sorted them by time from {word}: each event is compared with those whose time has ended before it")
            return


def _masked_to_the_others(program: Program) -> Iterator[Remark]:
    """The sum is over the rows whose time has ended before it, by a mask of pairs."""
    computation = computation_of(program)
    for value in computation.of("logsumexp", "log"):
        found = _of_pairs(value)
        if found is None or value.where.no_grad:
            continue
        of, mask, over = found
        asked, holds = mask, True
        while asked.op in ("invert", "logical_not", "float", "to", "bool") and asked.args:
            asked, holds = bare(asked.args[0]), holds is not (asked.op in ("invert", "logical_not"))
        pairs = compared_pairs(asked)
        if pairs is None or not computed_by_none(pairs.of) or not any(one.op == "run" for one in origins(of)):
            continue
        row_is_later = (pairs.sign > 0) is holds
        if row_is_later is (over in (1, -1)) and any(_counts_events(computation, whole) for whole, _ in _differences(computation, value, of, ends=False)):
            yield Remark(value.node, f"{short(value.node)} adds up the rows that {short(asked.node)} (line {asked.line}) lets in: for each event those whose time has ended before it, and not those who are still at risk")
            return


def risk_sets_of_the_events(program: Program) -> Iterator[Remark]:
    """The sum over those at risk leaves out all rows without an event."""
    computation = computation_of(program)
    for value in computation.of("log", "logsumexp", "logcumsumexp"):
        if value.where.no_grad:
            continue
        for scores, mask in _weighted(value):
            if any(_counts_by(computation, whole, mask) for whole, _ in _differences(computation, value, scores, ends=False)):
                yield Remark(value.node, f"{short(value.node)} adds up the rows that {short(mask.node)} counts, and the loss counts the same rows: those whose time was cut off are at risk in no sum")
                return
        found = _kept_alone(value)
        if found is not None and any(not _counts_events(computation, whole) for whole, _ in _differences(computation, value, found[0], ends=False)) and any(one.op == "run" for one in origins(found[0])):
            yield Remark(value.node, f"{short(value.node)} adds up the rows that {short(found[1].node)} (line {found[1].line}) keeps, and the loss is over the same rows: all others are at risk in no sum")
            return


def _weighted(value: Value) -> Iterator[tuple[Value, Value]]:
    """The scores whose exponentials a logarithm of sums adds up, each with data of 0 and 1 that they are multiplied by."""
    inner = without_small(value.args[0]) if value.op == "log" and value.args else value
    for _ in range(4):
        inner = bare(inner.args[0]) if inner.op in ("flip", "add") and inner.args else inner
    if inner.op not in ("cumsum", "sum", "matmul") or not inner.args:
        return
    at = bare(inner.args[-1 if inner.op == "matmul" else 0])
    at = bare(at.args[0]) if at.op == "flip" else at
    factors = [bare(found[0]) if (found := along_an_axis(one)) is not None else bare(one) for one in product(at).above]
    scores = [bare(one.args[0]) for one in factors if one.op == "exp" and one.args]
    if len(scores) != 1:
        return
    of = bare(scores[0].args[0]) if scores[0].op == "sub" and any(one.op in ("max", "amax") for one in origins(scores[0].args[1], stop=("run",))) else scores[0]
    for mask in factors:
        if mask.op != "exp" and number(mask) is None and computed_by_none(mask) and compared_pairs(mask) is None:
            yield of, mask


def _counts_by(computation: Computation, whole: Value, mask: Value) -> bool:
    """Whether the rows of a value count by a mask, as a factor or an index."""
    waiting, mask, found = [whole], _unasked(mask), False
    for _ in range(40):
        if not waiting:
            return found
        at = waiting.pop()
        for user in computation.users(at):
            others = [one for one in user.args if one is not at]
            masks = [_unasked(one) for one in others if user.op in ("mul", "part") and number(one) is None and computed_by_none(one)]
            if any(not (one is mask or same(one, mask)) for one in masks):
                return False  # weights of the rows, beside their events
            found = found or bool(masks)
            if user.op in ("neg", "sum", "mul", "part") or bare(user) is bare(at):
                waiting.append(user)
    return found


def _unasked(mask: Value) -> Value:
    """A mask without its shape and type, and without the question whether it is 1."""
    mask = bare(mask, "bool", "flip")
    while mask.op in ("eq", "gt") and len(mask.args) == 2 and number(mask.args[1]) in (0, 1):
        mask = bare(mask.args[0], "bool")
    return mask


def _kept_alone(value: Value) -> tuple[Value, Value] | None:
    """Scores of the rows that a mask of data keeps, which are compared by the times of the same rows; and the mask."""
    pairs = _of_pairs(value)
    if pairs is not None:
        asked = pairs[1]
        while asked.op in ("invert", "logical_not", "float", "to", "bool") and asked.args:
            asked = bare(asked.args[0])
        compared, of = compared_pairs(asked), pairs[0]
        times = compared.of if compared is not None else None
    else:
        inner = without_small(value.args[0]) if value.op == "log" and value.args else value
        if inner.op not in ("cumsum", "logcumsumexp") or not inner.args:
            return None
        of = bare(inner.args[0])
        while of.op in ("flip", "exp") and of.args:
            of = bare(of.args[0])
        order = _order_of(of)
        times = order[0] if order is not None else None
        of = bare(of.args[0]) if order is not None and of.op in _TAKEN and of.args else of
    times = bare(times) if times is not None else None
    if times is None or times.op != "part" or of.op != "part" or len(of.args) != 2 or len(times.args) != 2 or not (of.args[1] is times.args[1] or same(of.args[1], times.args[1])):
        return None
    mask = bare(of.args[1])
    chosen = mask.op in ("eq", "bool", "gt", "ne", "nonzero", "where") and computed_by_none(mask) and computed_by_none(times)
    return (bare(inner.args[0]) if pairs is None and value.op != "logsumexp" else of, mask) if chosen else None


def _of_pairs(value: Value) -> tuple[Value, Value, int] | None:
    """The scores of rows that a logarithm of sums adds up, the mask of each two rows that says which, and the axis."""
    inner = without_small(value.args[0]) if value.args else value
    if value.op == "logsumexp":
        masked, over = bare(value.args[0], shapes=False), value.argument("dim", 1)
    elif inner.op == "sum" and inner.args:
        masked, over = bare(inner.args[0], shapes=False), inner.argument("dim", 1)
    else:
        return None
    axis = None if over is None else number(over)
    if axis not in (0, 1, -1) or len(masked.args) < 2:
        return None
    if masked.op == "masked_fill":
        of, mask, kept = masked.args[0], masked.args[1], False
    elif masked.op == "where" and len(masked.args) == 3:
        of, mask, kept = masked.args[1], masked.args[0], True
    elif masked.op == "mul":
        first = 0 if any(one.op == "exp" for one in origins(masked.args[0], stop=("run",))) else 1
        of, mask, kept = masked.args[first], masked.args[1 - first], True
    else:
        return None
    of = bare(of)
    for _ in range(6):
        one_axis = along_an_axis(of)
        if one_axis is None and (of.op not in ("exp", "expand_as", "expand", "repeat") or not of.args):
            break
        of = bare(of.args[0]) if one_axis is None else one_axis[0]
    if kept:
        return of, bare(mask, shapes=False), int(axis)
    return (of, bare(mask.args[0], shapes=False), int(axis)) if mask.op in ("invert", "logical_not") else None


def _risk_sets(computation: Computation) -> Iterator[_RiskSets]:
    for value in computation.of("logcumsumexp", "log"):
        inner = without_small(value.args[0]) if value.op == "log" and value.args else value
        ends = False
        while inner.op == "flip" and value.op == "log":
            inner, ends = bare(inner.args[0]), not ends
        over = inner.argument("dim", 1)
        if inner.op not in ("cumsum", "logcumsumexp") or not inner.args or (number(over) != 0 and not (inner.op == "cumsum" and is_none(over))):
            continue
        of, turned = bare(inner.args[0]), False
        while of.op == "flip" or (of.op == "exp" and inner.op == "cumsum"):
            of, turned = bare(of.args[0]), turned is not (of.op == "flip")
        if value.op == "log" and inner.op == "cumsum" and not any(one.op == "exp" for one in origins(inner.args[0], stop=("exp", "run"))):
            continue
        if any(back is turned and _counts_events(computation, whole) for whole, back in _differences(computation, value, of, ends)):
            yield _RiskSets(value, of, turned)


def _differences(computation: Computation, value: Value, of: Value, ends: bool) -> Iterator[tuple[Value, bool]]:
    """Differences of what was added up and its sum, each with whether the sum was turned round after it was taken."""
    waiting = [(value, ends)]
    for _ in range(40):
        if not waiting:
            return
        at, back = waiting.pop()
        for user in computation.users(at):
            if user.op == "flip":
                waiting.append((user, not back))
            elif user.op in ("sub", "add") and len(user.args) == 2:
                others = [bare(one) for one in user.args if one is not at]
                while len(others) == 1 and others[0].op == "flip":
                    others = [bare(others[0].args[0])]
                if user.op == "sub" and any(_is_of_rows(one, of) for one in others):
                    yield user, back
                else:
                    waiting.append((user, back))
            elif bare(user) is bare(at) or user.op == "neg":
                waiting.append((user, back))


def _is_of_rows(one: Value, of: Value) -> bool:
    """Whether a value is what was added up, or that without its largest number."""
    return same(one, of) or (of.op == "sub" and same(one, bare(of.args[0])) and any(part.op in ("max", "amax") for part in origins(of.args[1], stop=("run",))))


def _counts_events(computation: Computation, whole: Value) -> bool:
    """Whether data says which rows of a value count."""
    waiting = [whole]
    for _ in range(40):
        if not waiting:
            return False
        at = waiting.pop()
        for user in computation.users(at):
            others = [one for one in user.args if one is not at]
            if user.op == "mul" and others and number(others[0]) is None and computed_by_none(others[0]):
                return True
            if user.op in ("part", "masked_select") and at is user.args[0] and any(one.op in _ASKED for one in origins(user.args[1])):
                return True
            if user.op == "neg" or bare(user) is bare(at) or (user.op == "mul" and any(number(one) is not None for one in others)):
                waiting.append(user)
    return False


def _order_of(value: Value) -> tuple[Value, bool, Value] | None:
    """What rows were last sorted by, whether from small to large, and where; None where they were not, or it is not known."""
    found = [(one, index) for one in origins(value, stop=("rows", "shape", "size", "len")) if one.op in _TAKEN and len(one.args) > 1 for index in (_sorting(one.args[-1]),) if index is not None]
    if not found:
        return None
    _, (key, rising, sorting) = max(found, key=lambda pair: pair[0].number)
    while key.op in ("neg", "abs"):
        key, rising = bare(key.args[0]), rising is not (key.op == "neg")
    return key, rising, sorting


def _sorting(index: Value) -> tuple[Value, bool, Value] | None:
    """What an index sorts by, whether from small to large, and what sorts."""
    index, rising, places = bare(index), True, False
    while True:
        backwards = index.op == "part" and len(index.args) == 2 and index.args[1].op == "slice" and [constant(one) for one in index.args[1].args] == [None, None, -1]
        if index.op == "flip" or backwards:
            index, rising = bare(index.args[0]), not rising
        elif index.args and index.args[0].op == "sort" and (index.op == "indices" or (index.op == "part" and constant(index.args[1]) == 1)):
            index, places = index.args[0], True
        else:
            break
    if not index.args or not (index.op == "argsort" or (index.op == "sort" and places)):
        return None
    falls = constant(index.argument("descending", 2))
    key = bare(index.args[0])
    return None if isinstance(key, Many) or falls not in (None, True, False) else (key, rising is not (falls is True), index)


def _mixed(value: Value) -> Value | None:
    """What puts the rows of a batch into a random order that nothing sorts again: a loader, or a drawn index."""
    near = list(origins(value, stop=("rows", "shape", "size", "len")))
    sorts = max((one.number for one in near if one.op in _SORTED), default=-1)
    for one in near:
        if one.op == "rows" and "loader" in one.named and sorts < 0:
            loader = one.named["loader"]
            plain = not loader.named.keys() & {"collate_fn", "sampler", "batch_sampler", "**"} and len(loader.args) < 4
            size = loader.argument("batch_size", 1)
            if plain and constant(loader.argument("shuffle", 2)) is True and size is not None and number(size) != 1 and not (size.op == "@constant" and size.data is None):
                return loader
        if one.op == "part" and len(one.args) == 2 and one.number > sorts and _is_drawn(one.args[1]):
            return next(each for each in origins(one.args[1]) if each.op in _DRAWN)
    return None


def _is_drawn(index: Value) -> bool:
    """Whether an index is drawn at random, and not sorted."""
    made = [one.op for one in origins(index, stop=_DRAWN)]
    return any(one in _DRAWN for one in made) and not any(one in _SORTED for one in made)
