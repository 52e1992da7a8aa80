"""Items that a user has seen, ranked among those that are new. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Value,
    bare,
    number,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses

_COUNTS = ("len", "size", "shape", "max")


def seen_items_ranked(program: Program) -> Iterator[Remark]:
    """The best of all items are looked up among those held out, and those that the model was trained on, or is shown, are
    ranked with them."""
    computation = computation_of(program)
    tops = [one for one in computation.of("topk", "argsort", "argpartition") if one.args]
    left_out = {id(part) for one in computation.of("not_in") for part in origins(one)}
    if any(id(top) in left_out for top in tops) or not tops or any(isinstance(one, ast.NotIn) for top in tops for function in top.where.functions for node in ast.walk(function) if isinstance(node, ast.Compare) for one in node.ops):
        return
    learned = {id(one): one for _, loss in losses(computation) for one in origins(loss, stop=_COUNTS)}
    for top in tops:
        scores = _scores(top.args[0])
        why = None if id(top) in learned else _learns_pairs(scores, learned) or _asked_for_all(scores, learned) or _rebuilds(computation, scores, learned)
        held = _looked_up(computation, top) if why is not None else None
        if why is not None and held is not None and id(held) not in learned and not any(one is held for one in origins(scores, stop=_COUNTS)):
            yield Remark(top.node, f"{short(top.node)} ranks all items, those {why} among them: they take the places of those that {short(held.node)} (line {held.line}) holds")
            return


def _scores(value: Value) -> Value:
    """What is ranked, without what leaves the order as it is, and without what is added for each item."""
    for _ in range(12):
        value = bare(value, "neg", "sigmoid", "softmax", "log_softmax")
        main = [one for one in value.args if bare(one).op in ("matmul", "einsum", "run")] if value.op == "add" else []
        if len(main) != 1:
            return value
        value = main[0]
    return value


def _learns_pairs(scores: Value, learned: dict[int, Value]) -> str | None:
    """Whether scores are products of the vectors of users and of all items, and both were trained by pairs."""
    if scores.op != "matmul" or len(scores.args) != 2:
        return None
    tables = [_table(one) for one in scores.args]
    whole = bare(scores.args[1], "t", "T", "transpose").op == "weight"
    asked = {id(one.args[0]) for one in learned.values() if one.op == "run" and len(one.args) > 1}
    if None in tables and _propagated(scores, learned):
        return "of the pairs that the model was trained on"
    if None in tables or tables[0] is tables[1] or not whole or not all(id(one) in asked for one in tables):
        return None
    return "of the pairs that the model was trained on"


def _asked_for_all(scores: Value, learned: dict[int, Value]) -> str | None:
    """Whether scores are what a network makes of one user and of the numbers of all items, and it was trained by pairs."""
    inside = {id(one): one for one in origins(scores)} if scores.op == "run" else {}
    if scores.op in ("sum", "add") and scores.args:
        inside = {id(one): one for one in origins(scores)}
    looked = [one for one in inside.values() if one.op == "run" and len(one.args) == 2 and one.args[0].op == "torch.nn.Embedding"]
    items = [one for one in looked if bare(one.args[1]).op == "arange" and len(bare(one.args[1]).args) == 1]
    users = [one for one in looked if one.args[0] not in [each.args[0] for each in items]]
    asked = {id(one.args[0]): one for one in learned.values() if one.op == "run" and len(one.args) == 2 and bare(one.args[1]).op != "arange" and id(one) not in inside}
    if not items or not users or any(bare(one.args[1]).op == "arange" for one in users) or not all(id(one.args[0]) in asked for one in looked):
        return None
    return "of the pairs that the model was trained on"


def _propagated(scores: Value, learned: dict[int, Value]) -> bool:
    """Whether scores are products of two tables that are computed from embeddings of users and items, and the loss multiplies
    rows of both."""
    tables = [bare(one, "t", "T", "transpose") for one in scores.args]
    first = bare(tables[0].args[0]) if tables[0].op == "part" and len(tables[0].args) == 2 and tables[0].args[1].op not in ("@constant", "slice", "tuple") else tables[0]
    places = [(id(one.args[0].node), number(one.args[1])) for one in (first, tables[1]) if one.op == "part" and len(one.args) == 2 and one.args[0].op in ("split", "chunk")]
    if len(places) != 2 or places[0] == places[1] or not any(one.op == "weight" and one.args and one.args[0].op == "torch.nn.Embedding" for one in origins(tables[1])):
        return False
    rows = [one.args[0] for one in learned.values() if one.op == "part" and len(one.args) == 2 and one.args[1].op not in ("@constant", "slice", "tuple")]
    taken = {(id(one.args[0].node), number(one.args[1])) for one in map(bare, rows) if one.op == "part" and len(one.args) == 2}
    return set(places) <= taken


def _table(value: Value) -> Value | None:
    """The embedding whose rows a value is."""
    value = bare(value, "t", "T", "transpose")
    if value.op == "part" and value.args:
        value = bare(value.args[0])
    of = value.args[0] if value.op in ("run", "weight") and value.args else None
    return of if of is not None and of.op == "torch.nn.Embedding" and (value.op == "weight" or bare(value.args[1]).op != "run") else None


def _rebuilds(computation: Computation, scores: Value, learned: dict[int, Value]) -> str | None:
    """Whether scores are what a network makes of items, and its loss asks it to give back those that it gets."""
    if scores.op != "run":
        return None
    trained = [one for one in learned.values() if one.op == "run" and one is not scores and one.args[0] is scores.args[0]]
    for one in trained:
        inside = {id(each) for each in origins(one)}
        for value in computation.of("mul", "binary_cross_entropy_with_logits", "binary_cross_entropy", "mse_loss"):
            sides = [bare(each, "log_softmax", "softmax", "sigmoid") for each in value.args[:2]]
            if id(value) in learned and any(each is one for each in sides) and any(id(each) in inside and each is not one for each in sides):
                return "that the model is shown"
    return None


def _looked_up(computation: Computation, top: Value) -> Value | None:
    """What the ranked items are looked up in; None where something else is done with them before."""
    waiting, seen = [top], {id(top)}
    while waiting:
        at = waiting.pop()
        for user in computation.users(at):
            others = [one for one in user.args if one is not at]
            if user.op == "in" and _passes_over(computation, user):
                return None
            if user.op in ("intersection", "gather", "isin", "in", "and", "eq", "take_along_dim") and others:
                return next((one for one in others if number(one) is None), None)
            if user.op in ("sub", "difference", "set_item", "masked_fill", "where"):
                return None
            takes = user.op == "part" and user.args[:1] == (at,)
            if user.op == "part" and not takes and not any(one.op == "slice" for one in user.args):
                return user.args[0]
            if id(user) not in seen and (takes or user.op in KEPT or user.op in SHAPED or user.op in ("indices", "set", "tuple", "element", "numpy")):
                seen.add(id(user))
                waiting.append(user)
    return None


def _passes_over(computation: Computation, asked: Value) -> bool:
    """Whether a question decides that a loop goes on to the next item: `if item in seen: continue`."""
    around = computation.program.parent.get(asked.node)
    return isinstance(around, ast.If) and bool(around.body) and isinstance(around.body[-1], ast.Continue)
