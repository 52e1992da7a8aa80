"""Noise that is mixed into a sound at a ratio in decibels. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import root_of, sides
from probe.diagnose.code.traits.basic import squared, without_small


class _Scale(NamedTuple):
    """By which power of its energy, and of ten to the decibels, a sound is scaled."""

    energy: float
    decibels: float


def power_for_amplitude(program: Program) -> Iterator[Remark]:
    """Noise is scaled by a ratio of powers, not of amplitudes; or decibels of amplitudes are taken for those of powers."""
    said: set[int] = set()
    for value in computation_of(program).of("add"):
        for clean, rest in sides(value):
            for scale, noise in sides(rest) if rest.op == "mul" else ():
                found = _scale_of(scale, bare(clean), bare(noise)) if number(scale) is None and value.line not in said else None
                if found is None or found.energy == 0 or found.decibels == 0:
                    continue
                if found.energy != 0.5 and abs(found.decibels) == found.energy / 10:
                    said.add(value.line)
                    yield Remark(value.node, f"{short(value.node)} multiplies the noise by {short(scale.node)} (line {scale.line}), a ratio of powers: that of amplitudes is its root")
                elif found.energy == 0.5 and abs(abs(found.decibels) - 0.05) > 1e-6:
                    said.add(value.line)
                    yield Remark(value.node, f"{short(value.node)} multiplies the noise by {short(scale.node)} (line {scale.line}), in which {abs(found.decibels) * 20:g} times the decibels are counted: an amplitude is 10 to the decibels over 20")


def _scale_of(scale: Value, clean: Value, noise: Value, depth: int = 20) -> _Scale | None:
    """How a factor is made of the energies of a sound and of a noise and of decibels; None where something else is in it, or the
    two energies do not stand against each other."""
    parts = _parts(scale, clean, noise, depth)
    if parts is None or abs(parts[0] + parts[1]) > 1e-6:
        return None
    return _Scale(parts[0], parts[2])


def _parts(value: Value, clean: Value, noise: Value, depth: int) -> tuple[float, float, float] | None:
    value = without_small(value)
    if depth == 0:
        return None
    if number(value) == 1:
        return 0.0, 0.0, 0.0
    inner = root_of(value)
    if inner is not None:
        found = _parts(inner, clean, noise, depth - 1)
        return None if found is None else (found[0] / 2, found[1] / 2, found[2] / 2)
    if value.op in ("mul", "div") and len(value.args) == 2:
        both = [_parts(one, clean, noise, depth - 1) for one in value.args]
        if both[0] is None or both[1] is None:
            return None
        sign = 1 if value.op == "mul" else -1
        return both[0][0] + sign * both[1][0], both[0][1] + sign * both[1][1], both[0][2] + sign * both[1][2]
    if value.op == "pow" and len(value.args) == 2 and number(value.args[0]) == 10:
        by = _tenths(value.args[1])
        return None if by is None else (0.0, 0.0, by)
    energy = _energy(value)
    if energy is None:
        return None
    of, power = energy
    if of is clean or same(of, clean):
        return power, 0.0, 0.0
    return (0.0, power, 0.0) if of is noise or same(of, noise) else None


def _tenths(value: Value) -> float | None:
    """By what decibels are multiplied."""
    value, sign = bare(value), 1.0
    while value.op == "neg" and value.args:
        value, sign = bare(value.args[0]), -sign
    if value.op == "div" and len(value.args) == 2 and (by := number(value.args[1])):
        inner = bare(value.args[0])
        return -sign / by if inner.op == "neg" else sign / by
    if value.op == "mul" and len(value.args) == 2:
        by = next((known for one in value.args if (known := number(one)) is not None), None)
        return None if by is None else sign * by
    return None


def _energy(value: Value) -> tuple[Value, float] | None:
    """What a value is the mean or sum of squares of (power 1), or the length or deviation of (power 1/2)."""
    value = bare(value)
    if value.op in ("mean", "sum") and value.args and (inner := squared(bare(value.args[0], "abs"))) is not None:
        return bare(inner, "abs"), 1.0
    if value.op == "var" and value.args:
        return bare(value.args[0]), 1.0
    return (bare(value.args[0]), 0.5) if value.op in ("norm", "std") and value.args else None
