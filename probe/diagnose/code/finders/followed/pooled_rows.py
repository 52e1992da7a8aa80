"""Weights of a pooling that add up to 1 over the batch, and weigh something else. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    Many,
    Value,
    bare,
    comes_from,
    constant,
    is_none,
    number,
    origins,
    takes_all,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import rank

FINDERS = Finders()
_MASKS = ("eq", "ne", "gt", "ge", "lt", "le", "invert", "not", "logical_not", "float", "bool")


@FINDERS.add("softmax-over-the-batch")
def _pooled(program: Program) -> Iterator[Remark]:
    """A softmax of scores runs over axis 0, and the values that the scores were made of are weighed and added up along axis 1:
    axis 0 stays, so it is the batch."""
    computation = computation_of(program)
    for softmax in computation.of("softmax"):
        axis = number(softmax.argument("dim", 1)) if softmax.args else None
        if axis != 0 or rank(softmax.args[0]) == 1:
            continue
        found = next(_added_up(computation, softmax), None)
        if found is not None:
            yield Remark(softmax.node, f"{short(softmax.node)} runs over axis 0, and {short(found.node)} (line {found.line}) adds up what it weighs along axis 1 and keeps axis 0, the batch")


def _added_up(computation: Computation, softmax: Value) -> Iterator[Value]:
    """Where what a softmax weighs is added up along axis 1, with axis 0 kept."""
    waiting: list[tuple[Value, bool]] = [(softmax, False)]
    for _ in range(40):
        if not waiting:
            return
        weights, lifted = waiting.pop()
        for user in computation.users(weights):
            if user.op == "unsqueeze" or (user.op == "part" and user.args[0] is weights and _adds_an_axis(user.args[1])):
                at = number(user.argument("dim", 1)) if user.op == "unsqueeze" else 1.0 if _adds_at_one(user.args[1]) else -1.0
                waiting.append((user, at == 1 or lifted))
            elif user.op in ("dropout", "float", "to", "type_as", "contiguous") and user.args[0] is weights:
                waiting.append((user, lifted))
            elif user.op == "transpose" and [number(one) for one in user.args[1:]] in ([1, 2], [2, 1], [-1, -2], [-2, -1]):
                waiting.append((user, True))
            elif user.op == "matmul" and len(user.args) == 2 and user.args[0] is weights and lifted and _scored(softmax, user.args[1]):
                yield user
            elif user.op == "mul" and len(user.args) == 2 and any(_scored(softmax, one) for one in user.args if one is not weights):
                yield from (one for one in computation.users(user) if one.op == "sum" and number(one.argument("dim", 1)) == 1)
            elif user.op in ("mul", "masked_fill") and user.args[0] is weights:  # by a mask
                waiting.append((user, lifted))
            elif user.op == "einsum" and user.args and isinstance(text := constant(user.args[0]), str) and any(_scored(softmax, one) for one in user.args[1:] if one is not weights):
                given, _, out = text.replace(" ", "").partition("->")
                letters = dict(zip(map(id, user.args[1:]), given.split(","), strict=False)).get(id(weights), "")
                if len(letters) > 1 and letters[0] in out and letters[1] not in out and all(letters[0] in one for one in given.split(",")):
                    yield user


def _scored(softmax: Value, other: Value) -> bool:
    """Whether the scores of a softmax were made of a value by layers; not whether they were masked by it."""
    return bare(other).op not in _MASKS and comes_from(softmax.args[0], bare(other)) and any(one.op == "run" for one in origins(softmax.args[0]))


def _adds_an_axis(index: Value) -> bool:
    return isinstance(index, Many) and any(is_none(one) and one.op == "@constant" for one in index.parts)


def _adds_at_one(index: Value) -> bool:
    parts = index.parts if isinstance(index, Many) else []
    return len(parts) > 1 and takes_all(parts[0]) and parts[1].op == "@constant" and is_none(parts[1])
