"""Logarithms of the factors by which a flow stretches samples, and the density that they belong to. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.finders.objectives.densities_and_guidance import (
    added,
    cores,
    is_log_density,
    over_axes,
    unscaled,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import Function, short
from probe.diagnose.code.traits.arithmetic import product
from probe.diagnose.code.traits.basic import squared

_NOISE = ("randn", "randn_like", "normal", "standard_normal")
_JOINT = ("MultivariateNormal", "Independent", "MixtureSameFamily", "LowRankMultivariateNormal")
"""Distributions of torch that give one density for each sample."""


class _Likelihood(NamedTuple):
    """The sum of a log density and of the logarithm of factors: both, and the sum."""

    density: Value
    factors: Value
    whole: Value


def summed_over_the_batch(program: Program) -> Iterator[Remark]:
    """The log density of a sample gets the logarithms of the factors of all samples of its batch."""
    computation = computation_of(program)
    for one in _likelihoods(computation):
        whole_batch = one.factors.op == "sum" and len(one.factors.args) == 1 and "dim" not in one.factors.named
        if whole_batch and any(part.op == "run" for part in origins(one.factors)):
            yield Remark(one.factors.node, f"{short(one.factors.node)} adds up the logarithms of the factors of all samples, and {short(one.density.node)} (line {one.density.line}), which it is added to, is one number for each sample")
            return


def of_the_last_layer(program: Program) -> Iterator[Remark]:
    """Each pass of a loop turns a sample further, and writes the logarithm of its factors over that of the pass before."""
    computation = computation_of(program)
    for one in _likelihoods(computation):
        for target, given in computation.stored.items():
            if not any(unscaled(part) is one.factors for value in given for part in added(value)):
                continue
            loop = next((around for around in program.parents(target) if isinstance(around, ast.For | ast.While | Function)), None)
            if isinstance(loop, (ast.For, ast.While)) and _is_written_over(program, loop, target) and _goes_on(computation, loop, target.id):
                yield Remark(target, f"{target.id} is set in each pass of the loop of line {loop.lineno}, and {short(one.whole.node)} (line {one.whole.line}) adds that of the last pass alone to the log density")
                return


def _likelihoods(computation: Computation) -> Iterator[_Likelihood]:
    """Sums of a log density of samples and of the logarithm of what stretches them."""
    logs = _logs_of_factors(computation)
    for whole in computation.of("add", "sub") if logs else ():
        parts = [unscaled(one) for one in added(whole)]
        density = next((found for one in parts if (found := _density(one)) is not None), None)
        for part in parts if density is not None else ():
            if part.op == "sum" and part is not density and density is not None and any(id(core) in logs for one in product(part.args[0]).above for core in (one, *cores(one))):
                yield _Likelihood(density, part, whole)


def _density(value: Value) -> Value | None:
    """The log density of each sample that a value is, or the mean of."""
    if value.op == "mean" and len(value.args) == 1 and "dim" not in value.named:
        return next((found for one in added(value.args[0]) if (found := _density(unscaled(one))) is not None), None)
    if value.op == "log_prob" and value.args and value.args[0].op.startswith("torch.distributions.") and value.args[0].op.endswith(_JOINT):
        return value
    return value if value.op == "sum" and over_axes(value) and is_log_density(value) else None


def _logs_of_factors(computation: Computation) -> set[int]:
    """The values whose exponential something is multiplied or divided by, and the logarithms of what it is multiplied by; not
    where noise or a square is."""
    found: set[int] = set()
    factors: set[int] = set()
    for value in computation.of("mul", "div"):
        for one, other in (value.args, value.args[::-1]) if len(value.args) == 2 else ():
            other, factor = bare(other), bare(one)
            if number(other) is not None or other.op in _NOISE or squared(other) is not None or (value.op == "div" and one is value.args[0]):
                continue
            factors.add(id(factor))
            if factor.op == "exp" and factor.args:
                inner = factor.args[0]
                found |= {id(core) for part in (inner, *product(inner).above) for core in (part, bare(part), *cores(part)) if core.op != "@constant"}
    return found | {id(one) for one in computation.of("log") if one.args and id(bare(one.args[0], "abs")) in factors}


def _is_written_over(program: Program, loop: ast.For | ast.While, target: ast.Name) -> bool:
    """Whether a loop sets a name and never reads it, and what comes after it reads it."""
    if isinstance(program.parent.get(target), ast.AugAssign):
        return False
    named = [one for one in ast.walk(program.frame(loop)) if isinstance(one, ast.Name) and one.id == target.id and one is not target]
    inside = set(ast.walk(loop))
    after = [one for one in named if one not in inside and one.lineno > loop.lineno]
    return not any(one in inside for one in named) and any(isinstance(one.ctx, ast.Load) for one in after) and not any(isinstance(one.ctx, ast.Store) for one in after)


def _goes_on(computation: Computation, loop: ast.For | ast.While, name: str) -> bool:
    """Whether a loop reads and sets a name that a stretched value is given to: each pass goes on where the one before ended."""
    inside = set(ast.walk(loop))
    read = {one.id for one in inside if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    given = [(target, value) for target, values in computation.stored.items() if target in inside and target.id in read and target.id != name for value in values]
    ends = [target for target in inside if isinstance(target, ast.Name) and isinstance(loop, ast.For) and target in set(ast.walk(loop.target))]
    return any(
        any(part.op in ("mul", "div") and any(bare(one).op in ("exp", "sigmoid", "softplus", "tanh", "add") for one in part.args) for part in origins(value, stop=("run",)))
        for target, value in given if target not in ends and _reads_before(inside, target)
    )


def _reads_before(inside: set[ast.AST], target: ast.Name) -> bool:
    """Whether what a pass reads of a name is read in or before the statement that sets it."""
    return any(isinstance(one, ast.Name) and one.id == target.id and isinstance(one.ctx, ast.Load) and one.lineno <= target.lineno for one in inside)
