"""Scores that put rows in an order: of pairs in a loss, and of gains with a discount. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import names_read, short
from probe.diagnose.code.traits.arithmetic import addends, product, rectified
from probe.diagnose.code.traits.basic import losses

FINDERS = Finders()
_ORDERS = ("argsort", "sort", "topk", "indices", "randperm", "permutation", "randint", "@input", "lexsort", "unique")
_FAR = ("cdist", "norm", "pairwise_distance", "neg", "sub", "pow", "abs", "square", "mse_loss", "cross_entropy")
_COMPARED = ("gt", "lt", "ge", "le")
_BETTER = re.compile(r"(^|_)(rel|rels|relevance|relevances|grade|grades|gain|gains|rating|ratings|label|labels|target|targets|y|quality|gold|similarity|similarities)(_|$)", re.I)
"""Names of what is larger where a row is better; not those of times, ranks, costs and distances."""
_LAST, _MUCH = 99, 1e3


class _Pairs(NamedTuple):
    """The difference, or the comparison, of each two rows of one vector: `sign` is 1 where it rises with the first row."""

    of: Value
    sign: int


# Pairs in a loss ----------------------------------------------------------------------


def pairs_ranked_backwards(program: Program) -> Iterator[Remark]:
    """A loss of each two rows rises as the score of the better one does: the loss that is minimized puts it last."""
    for _, loss in losses(computation_of(program)):
        for term, sign in addends(loss):
            if (whole := _summed_pairs(term)) is not None:
                value, pairs, grade, test = whole
                if sign * pairs.sign * grade.sign > 0 and _is_ranking(pairs, grade, test):
                    yield _backwards(value, grade)
                    return
                continue
            summed = product(term)
            inner = next((bare(one.args[0]) for one in summed.above if one.op in ("sum", "mean") and one.args), term)
            sign *= 1 if inner is term else summed.sign
            picked = inner.op == "part" and len(inner.args) == 2
            made = product(inner.args[0] if picked else inner)
            factors = [*made.above, *([term.args[1]] if picked else [])]
            grades = [found for one in factors if (found := compared_pairs(one)) is not None]
            scored = [(one, found) for one in factors if (found := _rises(one)) is not None]
            if len(scored) != 1 or len(grades) != 1:
                continue
            (value, pairs), grade = scored[0], grades[0]
            test = next(one for one in (bare(each) for each in factors) if one.op in _COMPARED)
            if pairs.sign * grade.sign * sign * made.sign > 0 and _is_ranking(pairs, grade, test):
                yield _backwards(value, grade)
                return


def _is_ranking(pairs: _Pairs, grade: _Pairs, test: Value) -> bool:
    """Whether the scores of a network are compared with grades that are larger where a row is better."""
    named = any(_BETTER.search(word) for word in names_read(test.node))
    return named and pairs.of is not grade.of and any(one.op == "run" for one in origins(pairs.of)) and not any(one.op == "run" for one in origins(grade.of))


def _backwards(value: Value, grade: _Pairs) -> Remark:
    return Remark(value.node, f"{short(value.node)} grows with the score of the row that {short(grade.of.node)} says is better: minimizing it puts the better one of each pair below the other")


def _summed_pairs(term: Value) -> tuple[Value, _Pairs, _Pairs, Value] | None:
    """Of `logsumexp` over the differences that a comparison keeps: the differences, and the comparison that is true where they are
    kept."""
    if term.op != "logsumexp" or not term.args:
        return None
    for one in origins(term.args[0], stop=("run",)):
        fill, asked, kept, keeps = None, None, None, 1
        if one.op in ("masked_fill", "set_item") and len(one.args) == 3:
            kept, asked, fill, keeps = one.args[0], one.args[1], one.args[2], -1
        elif one.op == "where" and len(one.args) == 3:
            asked, kept, fill = one.args
        elif one.op == "part" and len(one.args) == 2 and compared_pairs(one.args[1]) is not None:
            kept, asked = one.args
        elif one.op == "sub" and len(one.args) == 2 and bare(one.args[1]).op == "mul":
            kept = one.args[0]
            for side, by in (bare(one.args[1]).args[:2], bare(one.args[1]).args[1::-1]):
                if (number(by) or 0) > _MUCH:
                    rest = bare(side)
                    asked, keeps = (rest.args[1], 1) if rest.op == "sub" and number(rest.args[0]) == 1 else (rest, -1)
        if kept is None or asked is None or (fill is not None and (number(fill) is None or (number(fill) or 0) > -_MUCH)):
            continue
        asked = bare(asked)
        while asked.op in ("invert", "logical_not") and asked.args:
            asked, keeps = bare(asked.args[0]), -keeps
        pairs, grade = _difference(kept), compared_pairs(asked)
        if pairs is not None and grade is not None:
            return kept, pairs, grade._replace(sign=grade.sign * keeps), asked
    return None


def _rises(value: Value) -> _Pairs | None:
    """What a loss of pairs is of: with the sign 1 where it rises with the score of the first row."""
    value = bare(value)
    if value.op == "softplus" and value.args:
        return _difference(value.args[0])
    if value.op == "logsigmoid" and value.args:
        return _difference(value.args[0])
    if value.op in ("log1p", "log") and value.args:
        inner = bare(value.args[0])
        inner = next((bare(one) for one in inner.args if number(one) is None), inner) if inner.op == "add" and value.op == "log" else inner
        return _difference(inner.args[0]) if inner.op == "exp" and inner.args else None
    inner_of = rectified(value)
    return None if inner_of is None else _difference(inner_of)


def _turned(pairs: _Pairs | None, by: int) -> _Pairs | None:
    return None if pairs is None else pairs._replace(sign=pairs.sign * by)


def _difference(value: Value, depth: int = 8) -> _Pairs | None:
    """The difference of each two rows that a value is, plus or minus a number and times a number above 0."""
    value = bare(value, shapes=False)
    if depth == 0:
        return None
    if value.op == "neg":
        return _turned(_difference(value.args[0], depth - 1), -1)
    if value.op in ("mul", "div", "add", "sub") and len(value.args) == 2:
        left, right = value.args
        if number(left) is None and number(right) is None:
            if value.op == "sub":
                return _two(left, right)
            return None
        known, other = (left, right) if number(left) is not None else (right, left)
        by = -1 if (value.op == "sub" and known is left) or (value.op in ("mul", "div") and (number(known) or 1) < 0) else 1
        return None if value.op == "div" and known is left else _turned(_difference(other, depth - 1), by)
    return None


def compared_pairs(value: Value) -> _Pairs | None:
    """The comparison of each two rows that a value is: with the sign 1 where the first row is the larger one."""
    value = bare(value)
    if value.op not in _COMPARED or len(value.args) != 2:
        return None
    by = 1 if value.op in ("gt", "ge") else -1
    if number(value.args[1]) == 0:
        return _turned(_difference(value.args[0]), by)
    return _turned(_two(*value.args), by)


def _two(left: Value, right: Value) -> _Pairs | None:
    """One vector along the rows and along the columns, whose entries are taken two by two."""
    first, second = along_an_axis(left), along_an_axis(right)
    if first is None or second is None or first[0] is not second[0] or first[1] == second[1]:
        return None
    return _Pairs(first[0], 1 if first[1] > second[1] else -1)


def along_an_axis(value: Value) -> tuple[Value, int] | None:
    """A vector that is given an axis of one, and where: the later the axis, the more it is the first row of a pair."""
    value = bare(value, shapes=False)
    if value.op == "unsqueeze":
        place = number(value.argument("dim", 1))
        return None if place is None else (bare(value.args[0]), int(place) if place >= 0 else _LAST + int(place))
    if value.op == "part" and len(value.args) == 2:
        index = value.args[1]
        parts = list(index.made_of()) if index.op == "tuple" else [index]
        none = [at for at, one in enumerate(parts) if one.op == "@constant" and one.data is None]
        if len(none) == 1 and all(one.op in ("slice", "@constant") for one in parts):
            return bare(value.args[0]), none[0]
    return None


# Gains with a discount ----------------------------------------------------------------


def gains_from_the_worst(program: Program) -> Iterator[Remark]:
    """A discount that falls from place to place meets the gains in rising order, of the gains or of the scores."""
    for value in computation_of(program).of("mul", "div"):
        for gains, discount in ((value.args, value.args[::-1]) if value.op == "mul" else (value.args,)) if len(value.args) == 2 else ():
            if not _is_discount(discount, below=value.op == "div"):
                continue
            rising = _rising_order(gains)
            if rising is not None:
                yield Remark(value.node, f"{short(value.node)} gives the first places the most, and {short(rising.node)} (line {rising.line}) sorts from small to large: the lowest one comes first")
                return


def _is_discount(value: Value, *, below: bool) -> bool:
    """Whether a value is one over the logarithm of a place (or, `below`, that logarithm)."""
    value = bare(value)
    while value.op == "part" and value.args:
        value = bare(value.args[0])
    if not below:
        if value.op != "div" or len(value.args) != 2 or number(value.args[0]) != 1:
            return False
        value = bare(value.args[1])
    inner = bare(value.args[0]) if value.op in ("log2", "log") and value.args else value
    return inner.op in ("add", "arange") and inner is not value and any(one.op in ("arange", "range") for one in (inner, *map(bare, inner.args)))


def _rising_order(gains: Value) -> Value | None:
    """What sorts gains from small to large: themselves, or the scores that they are taken in the order of."""
    at = _grades(gains)
    if at.op == "sort" or (at.op in ("part", "values") and at.args and at.args[0].op == "sort" and (at.op == "values" or constant(at.args[1]) == 0)):
        found = at if at.op == "sort" else at.args[0]
        return found if _is_rising(found) and not any(one.op in ("run", "neg") for one in origins(found.args[0])) else None
    if at.op not in ("gather", "part") or len(at.args) < 2:
        return None
    order = bare(at.args[-1])
    while order.op == "part" and len(order.args) == 2 and _is_cut(order.args[1]):
        order = bare(order.args[0])
    if order.op != "argsort" or not _is_rising(order):
        return None
    key = list(origins(order.args[0], stop=("run",)))
    scored = any(one.op == "run" for one in key) and not any(one.op in _FAR for one in key)
    return order if scored else None


def _grades(gains: Value) -> Value:
    """The grades that gains are made of, in their order: x of `2 ** x[:k] - 1`."""
    at = bare(gains)
    for _ in range(8):
        first = at.op == "part" and len(at.args) == 2 and _is_cut(at.args[1])
        less = at.op == "sub" and len(at.args) == 2 and number(at.args[1]) == 1
        if first or less or at.op == "exp2":
            at = at.args[0]
        elif at.op == "pow" and len(at.args) == 2 and number(at.args[0]) == 2:
            at = at.args[1]
        else:
            return at
        at = bare(at)
    return at


def _is_cut(index: Value) -> bool:
    """Whether an index takes the first places, without turning the order round."""
    parts = list(index.made_of()) if index.op == "tuple" else [index]
    return all(one.op == "slice" and (len(one.args) < 3 or (one.args[2].op == "@constant" and one.args[2].data is None)) for one in parts)


def _is_rising(order: Value) -> bool:
    """Whether a sorting goes from small to large."""
    given = order.argument("descending", 2)
    return bool(order.args) and (given is None or constant(given) is False)


@FINDERS.add("item-for-rank")
def _order_for_ranks(program: Program) -> Iterator[Remark]:
    """The discount of a place is computed of the items in their order, not of the places of the items."""
    for value in computation_of(program).of("log2"):
        inner = bare(value.args[0]) if value.args else value
        order = next((bare(one) for one in inner.args if number(one) is None), inner) if inner.op == "add" and any(number(one) is not None for one in inner.args) else inner
        if order.op != "argsort" or not order.args:
            continue
        key = list(origins(order.args[0], stop=("run", *_ORDERS)))
        if any(one.op == "run" for one in key) and not any(one.op in _ORDERS for one in key):
            yield Remark(value.node, f"{short(value.node)} takes {short(order.node)} (line {order.line}) for ranks: these are the numbers of the items from first to last, not the places of the items")
            return
