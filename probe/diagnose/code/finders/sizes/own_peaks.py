"""Inputs and targets that are each scaled by their own largest value. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import addends
from probe.diagnose.code.traits.basic import losses, without_small


def scaled_by_its_own_peak(program: Program) -> Iterator[Remark]:
    """The input is the target and noise, and both were divided by their own largest value: the target has another size in the input."""
    computation = computation_of(program)
    peaks = [(one, source) for one in computation.of("div") if (source := _scaled(one)) is not None]
    trained = any(True for _ in losses(computation))
    for mixture, mixed in peaks if trained else ():
        parts = [bare(one) for one, _ in addends(mixed)] if mixed.op == "add" else []
        clean = next((one for one, source in peaks if one is not mixture and one.where.loops == mixture.where.loops and any(source is part for part in parts)), None)
        if clean is not None and _are_given_together(computation.of("tuple"), mixture, clean):
            yield Remark(clean.node, f"{short(clean.node)} scales the target by its own peak, and {short(mixture.node)} (line {mixture.line}) the input, which holds it, by that of both: how much louder the answer is than what is heard differs from sample to sample")
            return


def _scaled(value: Value) -> Value | None:
    """What is divided by its own largest value."""
    if len(value.args) != 2:
        return None
    peak, whole = without_small(value.args[1]), bare(value.args[0])
    if peak.op not in ("max", "amax") or not peak.args:
        return None
    size = bare(peak.args[0])
    return whole if size.op == "abs" and size.args and bare(size.args[0]) is whole else None


def _are_given_together(samples: Iterator[Value], first: Value, second: Value) -> bool:
    """Whether a data set gives two values as one sample, or lists that hold them, the first as the input."""
    for one in samples:
        parts = [_unlisted(part) for part in one.parts] if isinstance(one, Many) and len(one.parts) == 2 else []
        if parts and parts[0] is first and parts[1] is second:
            return True
    return False


def _unlisted(value: Value) -> Value:
    for _ in range(12):
        value = bare(value)
        if isinstance(value, Many) and len(value.parts) == 1:
            value = value.parts[0]
        elif value.op in ("stack", "cat", "concatenate") and value.args:
            value = value.args[0]
        else:
            break
    return value
