"""Ranks of items: an item that stands at a place for the place of an item, and items that are to come last. Pure;
standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of, computed_by_none

_PLACES = ("argsort", "sort", "topk", "indices", "argmax", "argmin", "randperm", "permutation", "multinomial")
_COUNTED = ("@constant", "slice", "arange", "index", "count", "range", "len", "add", "sub")


def item_for_rank(program: Program) -> Iterator[Remark]:
    """The item at the place that an item's number says in an order is taken for that item's rank."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("part", "gather"):
        order = _order(value.args[0]) if value.args else None
        if order is None or id(value.node) in said:
            continue
        index = value.args[-1]
        if value.op == "part" and index.op == "tuple":
            parts = list(index.made_of())
            if not any(bare(one).op in ("arange", "index") for one in parts[:-1]):
                continue
            index = parts[-1]
        index = bare(index)
        if index.op in _COUNTED or index.op in _PLACES or (index.op == "part" and index.args[0].op in _PLACES):
            continue
        used = _as_rank(computation, value)
        if used is not None:
            said.add(id(value.node))
            yield Remark(value.node, f"{short(value.node)} is the item at the place of that number in {short(order.node)} (line {order.line}), not the place of the item: {short(used.node)} (line {used.line}) takes it for a rank")


def _order(value: Value) -> Value | None:
    """The sorting that an order of items is the indices of; None where an order of an order is taken, which are ranks."""
    value = bare(value, shapes=False)
    if value.op == "indices" or (value.op == "part" and constant(value.args[1]) == 1 and value.args[0].op == "sort"):
        value = value.args[0]
    elif value.op != "argsort":
        return None
    if value.op not in ("argsort", "sort") or not value.args:
        return None
    return None if any(one.op in _PLACES for one in (bare(value.args[0], "neg"), *bare(value.args[0], "neg").args[:1])) else value


def _as_rank(computation: Computation, value: Value) -> Value | None:
    """What uses a value as a rank: its inverse, its logarithm, or a question whether it is among the first."""
    waiting, seen = [value], {id(value)}
    while waiting:
        at = waiting.pop()
        for one in computation.users(at):
            if one.op == "log2" or (one.op == "div" and len(one.args) == 2 and number(one.args[0]) == 1 and one.args[1] is at):
                return one
            if one.op in ("le", "lt") and len(one.args) == 2 and one.args[0] is at and (number(one.args[1]) or 1000) <= 100 and at.op == "add":
                return one
            if id(one) not in seen and (one.op in ("float", "to", "double", "int", "item", "squeeze", "view") or (one.op == "add" and any(number(part) in (1, 2) for part in one.args))):
                seen.add(id(one))
                waiting.append(one)
    return None


def seen_set_to_zero(program: Program) -> Iterator[Remark]:
    """Scores of items that are to be left out are set to 0, and the scores of others can be below 0."""
    computation = computation_of(program)
    for top in computation.of("topk", "argsort", "sort"):
        if not top.args or constant(top.argument("largest")) is False:
            continue
        ranked = bare(top.args[0], shapes=False)
        falls = constant(top.argument("descending")) is True
        if top.op != "topk" and falls is (ranked.op == "neg"):
            continue  # the lowest come first
        scores = bare(ranked.args[0], shapes=False) if ranked.op == "neg" and top.op != "topk" else ranked
        found = _zeroed(scores)
        under = bare(found[0], "part", "t", "T") if found is not None else scores
        if found is not None and _is_unbounded(under) and not _is_place(found[1]) and not _is_diagonal(found[1]):
            yield Remark(scores.node, f"{short(scores.node)} sets scores to 0, and {short(under.node)} (line {under.line}) can be below 0: what is to be left out comes before all items of a score below 0 in {short(top.node)} (line {top.line})")
            return


def _zeroed(scores: Value) -> tuple[Value, Value] | None:
    """Scores of which some are set to 0, or multiplied by 0 and 1, and what says which."""
    if scores.op in ("set_item", "masked_fill") and len(scores.args) == 3 and number(scores.args[2]) == 0:
        return scores.args[0], scores.args[1]
    if scores.op == "where" and len(scores.args) == 3:
        zero = [number(one) == 0 or bare(one).op in ("zeros_like", "zeros") for one in scores.args]
        return (scores.args[2 if zero[1] else 1], scores.args[0]) if zero[1] is not zero[2] else None
    for one, mask in (scores.args, scores.args[::-1]) if scores.op == "mul" and len(scores.args) == 2 else ():
        asked = bare(mask)
        inner = complement_of(asked) if asked.op == "sub" else None
        asked = bare(inner) if inner is not None else asked
        is_mask = inner is not None or asked.op in ("invert", "logical_not", "eq", "ne", "lt", "gt", "le", "ge")
        if is_mask and computed_by_none(asked):
            return one, mask
    return None


def _is_unbounded(value: Value) -> bool:
    """Whether scores are products of vectors that nothing limits, from tables or layers that are trained."""
    if value.op == "run":
        return value.args[0].op == "torch.nn.Linear"
    if value.op not in ("matmul", "einsum") and not (value.op == "sum" and value.args and bare(value.args[0]).op == "mul"):
        return False
    inside = list(origins(value, ("run",)))
    limited = any(one.op in ("normalize", "norm", "relu", "sigmoid", "softmax", "softplus", "exp", "abs") and _is_learned(one) for one in inside)
    return not limited and any(one.op in ("weight", "torch.nn.Parameter") or (one.op == "run" and one.args[0].op in ("torch.nn.Embedding", "torch.nn.Linear")) for one in inside)


def _is_learned(value: Value) -> bool:
    """Whether weights are in a value, and it is not only data."""
    return any(one.op in ("run", "weight", "torch.nn.Parameter") for one in origins(value))


def _is_place(index: Value) -> bool:
    """Whether an index is one place by number, like that of the padding."""
    if index.op == "tuple":
        return any(number(one) is not None for one in index.made_of())
    return number(index) is not None or is_none(index)


def _is_diagonal(index: Value) -> bool:
    """Whether an index is that of each row itself."""
    found = [bare(one) for one in index.made_of()] if index.op == "tuple" else [bare(index)]
    return any(one.op in ("eye", "diag", "fill_diagonal_") for one in origins(index)) or (len(found) == 2 and all(one.op in ("arange", "index") for one in found))
