"""Scores that the program computes itself of one batch, and averages over the batches. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import LOSSES, losses

FINDERS = Finders()
_COUNTS = ("len", "size", "shape", "numel", "@constant", "@input", "count")
_JOINED = ("cat", "concatenate", "stack", "hstack", "vstack")
_RANKED = ("argsort", "sort", "sorted")
_KEEPS = ("item", "float", "builtins.float", "either", "mean", "sum_of")


@FINDERS.add("score-of-each-batch")
def _score_of_batches(program: Program) -> Iterator[Remark]:
    """The ratio of two sums over the samples of a batch, or a score of their order, is averaged over the batches."""
    computation = computation_of(program)
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    said: set[ast.AST] = set()
    for value in computation.of("div"):
        loop = value.where.loops[-1] if value.where.loops else None
        if loop is None or not value.where.no_grad or id(value) in learned or value.node in said or len(value.args) != 2:
            continue
        if not _is_of_batch(value, loop) or not _is_score(value):
            continue
        mean = _averaged(computation, value, loop)
        if mean is not None:
            said.add(value.node)
            yield Remark(value.node, f"{short(value.node)} is the score of one batch, and {short(mean.node)} (line {mean.line}) averages those of all")


def _is_of_batch(value: Value, loop: ast.AST) -> bool:
    """Whether a value is made of a batch that the loop reads, and not of several."""
    found = list(origins(value))
    return any(one.op == "rows" and loop in one.where.loops for one in found) and not any(one.op in (*_JOINED, "sum_of") or (isinstance(one, Many) and one.grown) for one in found if loop in one.where.loops) and not any(one.op in LOSSES for one in found)


def _is_score(value: Value) -> bool:
    """Whether a quotient divides by what depends on the labels or predictions: not by a number of samples."""
    below = list(origins(value.args[1], stop=_COUNTS))
    asked = any(one.op in ("ne", "isnan", "mask") for one in below)  # a mean over what is not padding
    sums = any(one.op == "sum" for one in below) and any(one.op == "rows" for one in below)
    ranked = any(one.op in _RANKED for one in origins(value.args[0]))
    return (sums and not asked and not _is_share(value)) or (ranked and any(one.op == "rows" for one in below))


def _is_share(value: Value) -> bool:
    """Whether a quotient is a weighted mean: what is above is what is below times something."""
    below = bare(value.args[1])
    mask = bare(below.args[0]) if below.op == "sum" and below.args else None
    above = bare(value.args[0])
    inner = bare(above.args[0]) if above.op == "sum" and above.args else above
    return mask is not None and inner.op == "mul" and any(bare(one) is mask for one in inner.args)


def _averaged(computation: Computation, value: Value, loop: ast.AST) -> Value | None:
    """Where the values of all passes of a loop are averaged: in a list whose mean is taken, or by a sum."""
    waiting, seen = [value], {id(value)}
    while waiting and len(seen) < 80:
        for user in computation.users(waiting.pop()):
            if id(user) in seen:
                continue
            seen.add(id(user))
            inside = loop in user.where.loops
            if not inside and user.op in ("mean", "statistics.mean", "statistics.fmean", "sum_of", "div"):
                return user
            if user.op in _KEEPS or (user.op in ("mul", "div", "sub", "add") and inside) or isinstance(user, Many):
                waiting.append(user)
    return None
