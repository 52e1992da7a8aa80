"""What decides which word is generated next: masks over sorted words, penalties of words. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, constant, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_COMPARED = ("lt", "gt", "le", "ge")
_EACH = frozenset({
    "softmax", "log_softmax", "exp", "log", "div", "mul", "sub", "add", "neg", "clone", "to", "float", "clamp", "cumsum", "bool", "set_item", "roll",
    "invert", "or", "and", "masked_fill", "detach", "squeeze", "unsqueeze", "logical_or", "logical_and", "contiguous", "copy", "data", *_COMPARED,
})
"""Operations whose result stands in the order of what they are done on."""


def _order(value: Value) -> tuple[Value, Value | None] | None:
    """What a value is computed of, place by place, and what has sorted that; None where it is not known."""
    sorts: Value | None = None
    for _ in range(60):
        if value.op == "part" and len(value.args) == 2:
            whole, index = value.args
            if whole.op in ("sort", "topk") and constant(index) == 0:
                sorts, value = sorts or whole, whole.args[0]
                continue
            if index.op == "argsort":
                sorts, value = sorts or index, whole
                continue
            if not _keeps_words(index):
                return (value, sorts)
            value = whole
        elif value.op == "gather" and len(value.args) > 1 and value.args[-1].op == "argsort":
            sorts, value = sorts or value.args[-1], value.args[0]
        elif value.op in _EACH and value.args:
            value = value.args[0] if number(value.args[0]) is None else value.args[-1]
        elif value.op in ("run", "@input", "matmul"):
            return value, sorts
        else:
            return None
    return None


def _keeps_words(index: Value) -> bool:
    """Whether an index leaves the words as they stand: `[..., 1:]`, `[..., :-1]`, or one step's row."""
    parts = getattr(index, "parts", [index])
    return bool(parts) and parts[-1].op == "slice" and (constant(parts[0]) is Ellipsis or parts[0].op == "slice")


def masked_in_another_order(program: Program) -> Iterator[Remark]:
    """A mask that was computed of sorted scores is laid on the scores as they were."""
    said: set[ast.AST] = set()
    for value in computation_of(program).of("set_item", "masked_fill", "where", "mul"):
        if len(value.args) < 2 or value.node in said:
            continue
        if value.op == "where":
            pairs = [(value.args[0], one) for one in value.args[1:]]
        else:
            pairs = [(value.args[1], value.args[0])] if value.op != "mul" else [(value.args[0], value.args[1]), (value.args[1], value.args[0])]
        for mask, scores in pairs:
            if not _is_mask(mask):
                continue
            hides, hidden = _order(mask), _order(scores)
            if hides is None or hidden is None or hides[1] is None or hidden[1] is not None or hides[0] is not hidden[0]:
                continue
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)}: the mask stands in the order of {short(hides[1].node)} (line {hides[1].line}), and the scores in that of the words")
            break


def _is_mask(value: Value) -> bool:
    """Whether a value is a comparison, changed at some of its places or not."""
    while value.args and value.op in ("set_item", "clone", "to", "float", "bool", "invert", "or", "and", "roll"):
        value = value.args[0]
    return value.op in _COMPARED


def penalty_of_all_signs(program: Program) -> Iterator[Remark]:
    """The scores of words that were written already are divided by a penalty, also those below 0."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of("div"):
        by = number(value.args[1]) if len(value.args) == 2 else None
        scores = bare(value.args[0]) if value.args else value
        if by is None or by <= 1 or value.node in said or scores.op not in ("gather", "part") or len(scores.args) < 2:
            continue
        whole, index = scores.args[0], scores.args[-1]
        run = _raw(whole)
        if run is None or not _are_words(index, run) or _asks_for_the_sign(computation, value, scores, whole):
            continue
        if any(user.op in ("set_item", "scatter", "index_put_", "scatter_") and any(one is value for one in user.args) for user in computation.users(value)):
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} makes scores below 0 larger, and these words likelier: {short(run.node)} (line {run.line}) gives scores of both signs")


def _raw(value: Value) -> Value | None:
    """The network's call that gives scores of both signs, of which no function has been taken."""
    for _ in range(40):
        if value.op == "run":
            return value if value.args[0].op not in ("torch.nn.LogSoftmax", "torch.nn.Softmax") else None
        if value.op in ("part", "clone", "to", "float", "set_item", "squeeze", "detach", "scatter", "logits", "masked_fill", "contiguous") and value.args:
            value = value.args[0]
        elif value.op == "div":
            value = value.args[0] if number(value.args[1]) is not None else value.args[1]
        else:
            return None
    return None


def _are_words(index: Value, run: Value) -> bool:
    """Whether an index is made of the words that a network was given."""
    parts = getattr(index, "parts", [index])
    given = {id(one) for arg in run.args[1:] for one in origins(arg) if one.op not in ("@constant", "@library", "slice", "tuple") and not is_none(one)}
    of = {id(one) for one in origins(parts[-1], ("size", "shape", "len", "range", "index", "run"))} if parts else set()
    return parts[-1].op not in ("slice", "eq", "ne", *_COMPARED) and bool(given & of)


def _asks_for_the_sign(computation: Computation, value: Value, scores: Value, whole: Value) -> bool:
    asked = {id(scores), id(whole), id(value.args[0])}
    compares = [one for one in computation.of(*_COMPARED, "sign", "relu", "clamp", "abs") if one.args]
    found = any(id(part) in asked or (part.op in ("gather", "part") and bare(part).op == scores.op and part.args[0] is whole) for one in compares for part in one.args)
    return found or any(one.op in _COMPARED for one, _ in value.where.under)
