"""Targets that are the probabilities of another network. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, is_none, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import has_gradient, networks_in

FINDERS = Finders()


def _pairs(computation: Computation) -> Iterator[tuple[Value, Value, Value]]:
    """Where the logarithms of a softmax are compared with shares: the comparison, the logarithms and the shares."""
    for value in computation.of("kl_div"):
        if len(value.args) > 1 and is_none(value.named.get("log_target")):
            yield value, bare(value.args[0]), bare(value.args[1])
    for value in computation.of("mul"):
        for likely, shares in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            if bare(likely).op == "log_softmax" and bare(shares).op != "log_softmax":
                yield value, bare(likely), bare(shares)
    for value in computation.of("cross_entropy"):
        if len(value.args) > 1 and bare(value.args[1]).op == "softmax":
            yield value, Value("log_softmax", value.args[:1], node=value.args[0].node, where=value.args[0].where), bare(value.args[1])


def _temperature(softmax: Value) -> tuple[Value, float | None]:
    """The scores that a softmax is taken of, and the number that they are divided by (1: none; None: not known)."""
    scores = bare(softmax.args[0])
    if scores.op == "div" and len(scores.args) == 2:
        return bare(scores.args[0]), number(scores.args[1])
    if scores.op == "mul" and len(scores.args) == 2:
        return bare(scores.args[0]), None
    return scores, 1.0


@FINDERS.add("values-of-another-range")
def _softmax_of_shares(program: Program) -> Iterator[Remark]:
    """What a network is compared with is the softmax of what a softmax has given already."""
    for _, likely, shares in _pairs(computation_of(program)):
        for outer in (shares, likely):
            if outer.op not in ("softmax", "log_softmax") or not outer.args:
                continue
            inner = bare(outer.args[0], "div", "mul", "part", "cat", "index_select")
            if inner.op == "softmax" and networks_in(inner):
                yield Remark(outer.node, f"{short(outer.node)} takes scores, and {short(inner.node)} (line {inner.line}) gives shares between 0 and 1: their softmax is almost the same for all classes")
                return


@FINDERS.add("prediction-and-target-swapped")
def _teacher_for_the_prediction(program: Program) -> Iterator[Remark]:
    """kl_div is given the teacher's logarithms first and the student's shares second, both at one temperature."""
    for value, likely, shares in _pairs(computation_of(program)):
        if value.op != "kl_div" or likely.op != "log_softmax" or shares.op != "softmax" or value.where.no_grad:
            continue
        (taught, by), (learning, other) = _temperature(likely), _temperature(shares)
        if by is None or by != other or by == 1 or has_gradient(taught) or not has_gradient(learning) or networks_in(taught) & networks_in(learning):
            continue
        yield Remark(value.node, f"{short(value.node)} takes {short(taught.node)} (line {taught.line}), which learns nothing, for the prediction, and {short(learning.node)} (line {learning.line}), which learns, for the target")
        return


@FINDERS.add("temperature-on-one-side")
def _temperature_on_one_side(program: Program) -> Iterator[Remark]:
    """The scores of one of two networks that are compared are divided by a temperature, and those of the other are not."""
    for value, likely, shares in _pairs(computation_of(program)):
        if likely.op != "log_softmax" or shares.op != "softmax" or value.where.no_grad or value.op == "cross_entropy":
            continue
        (scores, by), (others, other) = _temperature(likely), _temperature(shares)
        plain = all(one.op == "run" for one in (scores, others))
        mine, theirs = networks_in(scores), networks_in(others)
        if not plain or not mine or not theirs or mine & theirs or by is None or other is None or (by == 1) is (other == 1):
            continue
        if not has_gradient(scores) or has_gradient(others) or any(one.op in ("center", "buffer") for one in origins(others, ("run",))):
            continue
        divided, bare_one = (likely, others) if by != 1 else (shares, scores)
        yield Remark(value.node, f"{short(divided.node)} (line {divided.line}) divides by {by if by != 1 else other:g}, and {short(bare_one.node)} (line {bare_one.line}) is divided by nothing on the other side")
        return
