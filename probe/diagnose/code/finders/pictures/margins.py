"""Margins of classes whose scores are cosines. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import sides


def on_every_class(program: Program) -> Iterator[Remark]:
    """The margin is taken from the scores of all classes, and not from that of the sample's class alone."""
    said: set[int] = set()
    for loss in computation_of(program).of("cross_entropy", "nll_loss"):
        scores = loss.args[0] if len(loss.args) > 1 else loss
        if loss.op == "nll_loss":
            scores = scores.args[0] if scores.op == "log_softmax" and scores.args else loss
        scores = bare(scores)
        for factor, inner in (*sides(scores), (scores, scores)) if scores.op == "mul" else ((scores, scores),):
            inner = bare(inner)
            margin = _margin(inner)
            if margin is None or loss.line in said or (factor is not inner and number(factor) is None and factor.op not in ("@input", "exp", "torch.nn.Parameter")):
                continue
            said.add(loss.line)
            yield Remark(inner.node, f"{short(inner.node)} takes the margin {short(margin.node)} from the scores of all classes, and {short(loss.node)} (line {loss.line}) compares them with each other")


def _margin(value: Value) -> Value | None:
    """The number m of cos(acos(x) + m), or of x - m, where x are the cosines of all classes."""
    if value.op == "cos" and value.args:
        angle = bare(value.args[0])
        for one, other in sides(angle) if angle.op == "add" else ():
            if bare(one).op == "acos" and _is_cosine(bare(one).args[0]) and number(other) not in (None, 0):
                return other
    if value.op == "sub" and len(value.args) == 2 and number(value.args[1]) not in (None, 0) and _is_cosine(value.args[0]):
        return value.args[1]
    return None


def _is_cosine(value: Value) -> bool:
    """Whether a value is the product of normalized vectors and a normalized table: one score for each class."""
    value = bare(value, "clamp")
    if value.op not in ("linear", "matmul") or len(value.args) != 2:
        return False
    units = [any(each.op == "normalize" for each in origins(one)) for one in value.args]
    return all(units) and any(one.op in ("torch.nn.Parameter", "weight", "torch.nn.Linear") for one in origins(value.args[1], stop=("run",)))
