"""Logarithms of the factors by which a flow stretches samples, and the density that they belong to. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, comes_from, number, origins
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
from probe.diagnose.code.traits.basic import losses, squared
from probe.diagnose.code.traits.extents import rank

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
    for density, total in _totals(computation):
        yield Remark(total.node, f"{short(total.node)} adds up the logarithms of the factors of all samples, and {short(density.node)} (line {density.line}), which it is added to, is one number for each sample")
        return


def _totals(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Sums of a log density of each sample and of all numbers of logarithms that the samples are in: both."""
    for whole in computation.of("add", "sub"):
        parts = [unscaled(one) for one in whole.args[:2]]
        density = next((found for one in parts for each in added(one) if (found := _density(unscaled(each))) is not None and found.op == "sum"), None)
        for total in parts if density is not None else ():
            if density is None or total.op != "sum" or len(total.args) != 1 or total.named or total is density:
                continue
            logs = [log for core in cores(total.args[0]) for log in (each for part in added(core) for each in (part, *product(part).above)) if log.op in ("log", "log1p", "logdet", "slogdet")]
            if logs and all(rank(log) != 0 and any(one.op in ("run", *_NOISE) for one in origins(log)) for log in logs) and len(parts) == 2:
                yield density, total


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


def of_the_wrong_sign(program: Program) -> Iterator[Remark]:
    """A sample is turned into a value whose log density is taken, and the logarithm of the factors that turn it is subtracted
    from it; or that of what it is divided by is added."""
    computation = computation_of(program)
    turned = _turned_by(computation)
    said: set[int] = set()
    for whole in computation.of("add", "sub") if turned else ():
        parts = list(_signed(whole))
        found = next(((density, sign) for one, sign in parts if (density := _density(unscaled(one))) is not None), None)
        if found is None or any(one.op == "either" for one in _between(whole)):
            continue
        density, sign = found
        at, inside = _argument_of(density)
        against: list[tuple[Value, Value, int]] = []
        for part, of_part in parts:
            part = unscaled(part)
            if at is None or part is density or part.op not in ("sum", "mul", "part", "logdet") or not part.args:
                continue
            counted, logs = _logarithms(part)
            ways = {(id(place), way): (place, way) for log in logs for place, way in turned.get(id(log), ()) if comes_from(at, place)}
            if len({way for _, way in ways.values()}) != 1:
                continue
            place, way = next(iter(ways.values()))
            if sign * inside * of_part * counted * way > 0:
                break  # it is counted, and the other term is another one
            against.append((part, place, way * counted))
        else:
            for part, place, way in against[:1] if whole.line not in said else ():
                said.add(whole.line)
                how, done = ("adds {} to", "divides") if way < 0 else ("takes {} away from", "multiplies")
                yield Remark(whole.node, f"{short(whole.node)} {how.format(short(part.node))} the log density, and {short(place.node)} (line {place.line}), which leads to what the density is taken of, {done} by those factors")


def of_what_is_thrown_away(program: Program) -> Iterator[Remark]:
    """The logarithm of factors is added to a log density, and what they have multiplied is in no loss."""
    computation = computation_of(program)
    turned = _turned_by(computation)
    learned = {id(one) for _, loss in losses(computation) for one in origins(loss)}
    for whole in computation.of("add", "sub") if turned else ():
        parts = list(_signed(whole)) if id(whole) in learned else []
        density = next((found for one, _ in parts if (found := _density(unscaled(one))) is not None), None)
        at = _argument_of(density)[0] if density is not None else None
        for part, _ in parts if at is not None else ():
            part = unscaled(part)
            if at is None or density is None or part is density or part.op != "sum" or not part.args or _density(part) is not None:
                continue
            logs = [log for log in _logarithms(part)[1] if any(one.op == "run" for one in origins(log))]
            places = [place for log in logs for place, _ in turned.get(id(log), ())]
            if places and not any(id(place) in learned for place in places):
                yield Remark(part.node, f"{short(part.node)} is added to the log density of line {density.line}, and {short(places[0].node)} (line {places[0].line}), which those factors multiply, is in no loss")
                return


def _turned_by(computation: Computation) -> dict[int, list[tuple[Value, int]]]:
    """The logarithms of factors, each with where something is multiplied (1) or divided (-1) by the factors."""
    found: dict[int, list[tuple[Value, int]]] = {}
    factors: dict[int, list[tuple[Value, int]]] = {}
    for value in computation.of("mul", "div"):
        for place, one in enumerate(value.args[:2]) if len(value.args) == 2 else ():
            factor, other = bare(one), bare(value.args[1 - place])
            if (value.op == "div" and place == 0) or number(other) is not None or other.op in _NOISE or squared(other) is not None or number(factor) is not None:
                continue
            way = -1 if value.op == "div" else 1
            factors.setdefault(id(factor), []).append((value, way))
            if factor.op == "exp" and factor.args:
                sign, logs = _logarithms(factor)
                for log in logs:
                    found.setdefault(id(log), []).append((value, way * sign))
    for value in computation.of("matmul", "linear", "conv2d"):
        for one in value.args[:2]:
            matrix = bare(one, "T", "t", "transpose")
            is_inverse = matrix.op in ("inv", "inverse", "pinv") and bool(matrix.args)
            if _is_weight(bare(matrix.args[0] if is_inverse else matrix)):
                factors.setdefault(id(bare(matrix.args[0] if is_inverse else matrix)), []).append((value, -1 if is_inverse else 1))
    for log in computation.of("log", "logdet", "slogdet"):
        for entry in factors.get(id(bare(log.args[0], "abs", "det")), ()) if log.args else ():
            found.setdefault(id(log), []).append(entry)
    return found


def _is_weight(value: Value) -> bool:
    """Whether a value is a weight that is learned, or one of a list of such."""
    if value.op in ("element", "part") and value.args:
        return bare(value.args[0]).op == "torch.nn.ParameterList"
    return value.op == "torch.nn.Parameter"


def _logarithms(value: Value) -> tuple[int, list[Value]]:
    """The sign, and the factors without it, of what a value is the sum or the exponential of."""
    inner = value.args[0] if value.op in ("sum", "exp") else value
    if inner.op == "part" and inner.args[0].op == "slogdet":
        return 1, [inner.args[0]]
    made = product(inner)
    sign = made.sign
    for one in (*made.above, *made.below):
        sign = -sign if (number(one) or 0) < 0 else sign
    above = [one.args[0] if one.op == "part" and one.args[0].op == "slogdet" else one for one in made.above]
    return sign, [one for one in above if one.op != "@constant"]


def _signed(value: Value, sign: int = 1, depth: int = 30) -> Iterator[tuple[Value, int]]:
    """What a value is the sum or difference of, each with its sign."""
    inner = bare(value) if value.op != "either" else value
    if inner.op in ("add", "sub") and len(inner.args) == 2 and depth:
        yield from _signed(inner.args[0], sign, depth - 1)
        yield from _signed(inner.args[1], sign if inner.op == "add" else -sign, depth - 1)
    elif inner.op in ("neg", "mean") and len(inner.args) == 1 and "dim" not in inner.named and depth:
        yield from _signed(inner.args[0], -sign if inner.op == "neg" else sign, depth - 1)
    elif inner.op == "mul" and len(inner.args) == 2 and depth and sum(number(one) is None for one in inner.args) == 1 and unscaled(inner) is inner:
        by, other = inner.args if number(inner.args[1]) is None else inner.args[::-1]
        yield from _signed(other, -sign if (number(by) or 0) < 0 else sign, depth - 1)
    elif inner.op == "mul" and unscaled(inner) is not inner:
        yield inner, -sign if any((number(one) or 0) < 0 for one in inner.args) else sign
    else:
        yield inner, sign


def _between(whole: Value) -> Iterator[Value]:
    """A sum, and all sums and differences in it."""
    waiting = [whole]
    while waiting:
        at = bare(waiting.pop(), shapes=False) if waiting[-1].op != "either" else waiting.pop()
        yield at
        if at.op in ("add", "sub", "neg"):
            waiting += at.args


def _argument_of(density: Value) -> tuple[Value | None, int]:
    """What a log density is taken of, and 1; -1 where the sum is of squares without the minus."""
    inner = density if density.op == "log_prob" else bare(density.args[0])
    signs = list(_signed(inner))
    for one, sign in signs:
        if one.op == "log_prob" and len(one.args) > 1:
            return one.args[1], sign
        made = product(one)
        square = next((found for each in made.above if (found := squared(bare(each))) is not None), None)
        square = squared(one) if squared(one) is not None else square
        if square is not None:
            for each in made.above if squared(one) is None else ():
                sign = -sign if (number(each) or 0) < 0 else sign
            return square, -sign * (made.sign if squared(one) is None else 1)
    return None, 0


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
