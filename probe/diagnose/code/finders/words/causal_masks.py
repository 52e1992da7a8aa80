"""Masks of attention as they are computed: triangles that reach too far, and masks that are added as numbers. Pure; standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, Many, Value, bare, constant, is_none, number, origins
from probe.diagnose.code.finders.sequences.same_words import ahead_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_LOSSES = ("cross_entropy", "nll_loss")
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
_TURNED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}
_PRODUCTS = ("matmul", "einsum", "bmm", "baddbmm")
_LOW = -1e3
_MASKED = ("mask", "src_mask", "tgt_mask", "attn_mask")


class _Triangle(NamedTuple):
    """Where a mask is true: at `column - row >= by` (`above`), or at `column - row <= by`."""

    above: bool
    by: float
    written: Value
    """The number that is written out for it."""


def _line(value: Value, depth: int = 12) -> tuple[str, float, Value | None] | None:
    """Of the places 0, 1, 2 … along the rows or the columns of a square, plus a number: which, the number, and where it is written."""
    if depth == 0 or not value.args:
        return None
    if value.op == "arange":
        return ("column", 0.0, None) if len(value.args) == 1 or number(value.args[0]) == 0 else None
    if value.op in ("add", "sub") and len(value.args) == 2:
        given = number(value.args[1])
        found = _line(value.args[0], depth - 1) if given is not None else None
        return None if found is None or given is None or found[1] else (found[0], given if value.op == "add" else -given, value.args[1])
    inner = _line(value.args[0], depth - 1) if value.op in (*KEPT, "unsqueeze", "view", "reshape", "part", "expand", "t") else None
    if inner is None or value.op in KEPT or value.op == "expand":
        return inner
    if value.op in ("view", "reshape"):
        sizes = [number(one) for one in value.args[1:]]
        return ("row", *inner[1:]) if sizes == [-1, 1] else inner if sizes == [1, -1] else None
    if value.op == "unsqueeze":
        at = number(value.argument("dim", 1))
        return ("row", *inner[1:]) if at in (1, -1) else inner if at == 0 else None
    index = value.args[1] if value.op == "part" and len(value.args) == 2 else None
    parts = index.parts if isinstance(index, Many) else []
    if len(parts) == 2 and is_none(parts[1]) and parts[0].op == "slice":
        return ("row", *inner[1:])
    if index is not None and ((len(parts) == 2 and is_none(parts[0]) and parts[1].op == "slice") or (not parts and (is_none(index) or (index.op == "slice" and is_none(index.args[0]))))):
        return inner
    return None


def _triangle(value: Value, depth: int = 16) -> _Triangle | None:
    """The triangle of a square that a mask is true at."""
    if depth == 0 or not value.args:
        return None
    if value.op in ("invert", "not", "logical_not") or (value.op in ("eq", "ne") and len(value.args) == 2 and number(value.args[1]) in (0, 1)):
        found = _triangle(value.args[0], depth - 1)
        kept = value.op in ("eq", "ne") and (value.op == "eq") == (number(value.args[1]) == 1)
        return found if found is None or kept else _Triangle(not found.above, found.by + (-1 if found.above else 1), found.written)
    if value.op in ("triu", "tril"):
        given = value.argument("diagonal", 1) or value.named.get("k")
        by = 0.0 if given is None else number(given)
        return _Triangle(value.op == "triu", by, given or value) if by is not None and bare(value.args[0]).op == "ones" else None
    if value.op in ("lt", "le", "gt", "ge") and len(value.args) == 2:
        left, right = (_line(one) for one in value.args)
        if left is None or right is None or left[0] == right[0]:
            return None
        op = value.op if left[0] == "column" else _TURNED[value.op]
        column, row = (left, right) if left[0] == "column" else (right, left)
        by = row[1] - column[1]
        return _Triangle(op in ("gt", "ge"), by + {"gt": 1, "lt": -1}.get(op, 0), row[2] or column[2] or value)
    if value.op == "part" and len(value.args) == 2:
        parts = value.args[1].parts if isinstance(value.args[1], Many) else [value.args[1]]
        plain = all(is_none(one) or constant(one) is Ellipsis or (one.op == "slice" and (is_none(one.args[0]) or number(one.args[0]) == 0)) for one in parts)
        return _triangle(value.args[0], depth - 1) if plain else None
    return _triangle(value.args[0], depth - 1) if value.op in KEPT or value.op in ("bool", "unsqueeze", "view", "expand", "buffer") else None


def _is_low(value: Value) -> bool:
    """Whether a value is minus infinity, or a number far below 0."""
    known = number(value)
    if known is not None:
        return known < _LOW
    if value.op == "float" and value.args:
        return str(constant(value.args[0])) in ("-inf", "-Inf", "-infinity")
    return value.op == "neg" and str(getattr(value.args[0], "data", "")).endswith(".inf")


def _hidden(computation: Computation) -> Iterator[tuple[Value, Value, bool]]:
    """Each use of a mask: where, the mask, and whether it is true at what is hidden."""
    for value in computation.of("masked_fill"):
        if len(value.args) > 2 and _is_low(value.args[2]):
            yield value, value.args[1], True
    for value in computation.of("where"):
        if len(value.args) == 3 and _is_low(value.args[2]) is not _is_low(value.args[1]):
            yield value, value.args[0], _is_low(value.args[1])
    for value in computation.of("scaled_dot_product_attention"):
        mask = value.argument("attn_mask", 3)
        if mask is not None:
            yield value, mask, False
    for value in computation.of("run"):
        if value.args and value.args[0].op.startswith(("torch.nn.Transformer", "torch.nn.MultiheadAttention")):
            for name in _MASKED:
                if name in value.named:
                    yield value, value.named[name], True
    for value in computation.of("triu"):
        filled = bare(value.args[0]) if value.args else value
        given = value.argument("diagonal", 1)
        if filled.op == "full" and given is not None and any(_is_low(one) for one in filled.made_of()):
            yield value, Value("triu", (Value("ones", node=filled.node, where=filled.where), given), node=value.node, where=value.where), True


def causal(computation: Computation) -> set[int]:
    """Where attention is masked so that each position sees itself and those before it: scores, and runs of layers, by identity."""
    found = {id(use) for use, mask, hides in _hidden(computation) if (of := _triangle(mask)) is not None and of.above is hides and of.by == int(of.above)}
    for value in computation.of("scaled_dot_product_attention"):
        if constant(value.argument("is_causal", 5)) is True:
            found.add(id(value))
    return found


def _is_written_there(program: Program, value: Value) -> bool:
    """Whether a number is written out where it is used: one with a name is a look-ahead that is meant."""
    node = program.parent.get(value.node)
    return isinstance(value.node, (ast.Constant, ast.Compare)) and isinstance(node, (ast.BinOp, ast.Call, ast.keyword, ast.Compare, ast.expr))


@FINDERS.add("mask-shows-what-follows")
def _shows_what_follows(program: Program) -> Iterator[Remark]:
    """A triangle leaves the next place visible, in a model of the next word."""
    computation = computation_of(program)
    uses = [(use, mask, found) for use, mask, hides in _hidden(computation) if (found := _triangle(mask)) is not None and found.above is hides]
    wrong = [(use, mask, found) for use, mask, found in uses if found.by - int(found.above) in (1, 2) and _is_written_there(program, found.written)]
    if not wrong or not any(places == 1 for loss in computation.of(*_LOSSES) if len(loss.args) > 1 for _, places in ahead_of(loss.args[0], loss.args[1])):
        return
    use, mask, found = wrong[0]
    by = found.by - int(found.above)
    seen = "the next one" if by == 1 else f"the next {by:g}"
    yield Remark(use.node, f"{short(use.node)} lets each position see {seen}: {short(bare(mask, 'part').node)} (line {bare(mask, 'part').line})")


# Masks that are added ------------------------------------------------------------------


@FINDERS.add("mask-without-effect")
def _added_as_numbers(program: Program) -> Iterator[Remark]:
    """What is true and false is added to the scores of an attention, as 1 and 0."""
    computation = computation_of(program)
    for softmax in computation.of("softmax"):
        at = softmax.args[0] if softmax.args else softmax
        for _ in range(12):
            if at.op == "add" and len(at.args) == 2:
                for mask, scores in (at.args, at.args[::-1]):
                    if _is_truth(mask) and _is_product(scores):
                        yield Remark(at.node, f"{short(at.node)} adds {short(bare(mask, 'part').node)} (line {bare(mask, 'part').line}) as 1 and 0 to the scores: what should be hidden is seen almost as before")
                        return
                at = next((one for one in at.args if _is_product(one)), at.args[0])
            elif at.op in ("masked_fill", "div", "mul", *KEPT) and at.args:
                at = at.args[0]
            else:
                break
    for use in computation.of("scaled_dot_product_attention"):
        given = use.argument("attn_mask", 3)
        if given is not None and _is_float(given) and _is_truth(given):
            yield Remark(use.node, f"{short(use.node)} adds {short(bare(given, 'part').node)} (line {bare(given, 'part').line}) as 1 and 0 to the scores, as the mask holds numbers: what should be hidden is seen almost as before")
            return


def _is_truth(value: Value) -> bool:
    """Whether a value is a comparison, perhaps with its truth as 1 and 0."""
    value = bare(value, "part", "bool", "repeat", "transpose")
    if value.op in ("and", "or", "invert", "logical_and", "logical_or", "logical_not"):
        return bool(value.args) and all(_is_truth(one) for one in value.args)
    return value.op in _COMPARED and len(value.args) == 2


def _is_float(value: Value) -> bool:
    """Whether a mask has been made one of numbers."""
    while value.args:
        if value.op in ("float", "half", "type_as") or (value.op == "to" and len(value.args) > 1 and (value.args[1].op == "dtype" or (value.args[1].op == "@library" and "float" in str(value.args[1].data)))):
            return True
        if value.op == "bool" or value.op in _COMPARED:
            return False
        value = value.args[0]
    return False


def _is_product(value: Value) -> bool:
    """Whether a value is the products of queries and keys, scaled and masked or not."""
    for _ in range(12):
        if value.op in _PRODUCTS:
            return any(one.op == "run" for one in origins(value))
        if value.op not in ("div", "mul", "masked_fill", "add", *KEPT) or not value.args:
            return False
        value = value.args[0] if value.args[0].op != "@constant" else value.args[-1]
    return False
