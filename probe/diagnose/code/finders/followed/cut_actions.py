"""Actions that are cut off at the bounds of an environment, and their log probabilities. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_CUTS = ("clamp", "clip", "hardtanh", "maximum", "minimum", "max", "min")
_DENSITIES = ("torch.distributions.Normal", "torch.distributions.MultivariateNormal", "torch.distributions.Laplace", "torch.distributions.Independent")


def log_prob_of_the_cut(program: Program) -> Iterator[Remark]:
    """The density of a normal distribution is asked at an action that was drawn from it, and cut off at bounds since."""
    computation = computation_of(program)
    said: set[int] = set()
    for value in computation.of("log_prob"):
        action = value.args[1] if len(value.args) > 1 else value
        if id(value.node) in said or not value.args[0].op.endswith(tuple(one.rpartition(".")[2] for one in _DENSITIES)) or any(one.op.rpartition(".")[2] in ("TransformedDistribution", "TanhTransform") for one in origins(value.args[0])):
            continue
        cut = _cut(action)
        if cut is not None and (drawn := _drawn(cut)) is not None and drawn.args and drawn.args[0] is value.args[0]:
            said.add(id(value.node))
            yield Remark(value.node, f"{short(value.node)} asks how likely the action is after {short(cut.node)} (line {cut.line}) has cut off what {short(drawn.node)} (line {drawn.line}) drew: all that lies beyond a bound is taken for a draw of the bound itself")


def _cut(action: Value) -> Value | None:
    """Where an action is cut off at bounds, as the last thing that was done to it."""
    for _ in range(8):
        if action.op in _CUTS and action.args:
            return action
        inner = bare(action)
        if inner is action:
            return None
        action = inner
    return None


def _drawn(cut: Value) -> Value | None:
    """The draw that was cut off, at bounds that are further apart than rounding asks for."""
    if all(0 < abs(one) < 1e-3 for one in (number(each) for each in (*cut.args[1:], *cut.named.values())) if one is not None) and any(number(each) is not None for each in (*cut.args[1:], *cut.named.values())):
        return None
    inner = bare(cut.args[0])
    while inner.op in _CUTS and inner.args:
        inner = bare(inner.args[0])
    return inner if inner.op in ("sample", "rsample") else None
