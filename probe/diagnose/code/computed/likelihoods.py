"""Logarithms of probabilities. Pure; standard library only."""

from __future__ import annotations

from probe.diagnose.code.computed.value import Many, Value, bare, constant, number, origins

_LOGARITHMS = ("log_prob", "log_softmax", "logsoftmax")
_REDUCED = ("sum", "mean", "sum_of")


def is_likelihood(value: Value) -> bool:
    """Whether a value is the logarithm of a probability that a network gives: of a drawn or a given action."""
    value = bare(value)
    while value.op in ("sum", "part", "gather", "cat", "squeeze", "mean", "masked_fill", "max") and value.args:
        if value.op == "part" and value.args[0].op == "max" and constant(value.args[1]) != 0:
            return False
        value = bare(value.args[0])
        if isinstance(value, Many) and value.parts:
            value = bare(value.parts[0])
    if value.op == "add" and len(value.args) == 2 and (bare(value.args[0]).op == "zeros" or number(value.args[0]) == 0):
        return is_likelihood(value.args[1])
    if value.op in ("sub", "add") and len(value.args) == 2:
        return is_likelihood(value.args[0]) and _is_correction(value.args[1])
    if value.op == "log" and value.args:
        inner = bare(value.args[0])
        while inner.op in ("gather", "part", "add", "clamp") and inner.args:
            inner = bare(inner.args[0])
        return inner.op in ("softmax", "probs")
    return value.op in _LOGARITHMS


def _is_correction(value: Value) -> bool:
    """Whether a value is the logarithm of a slope."""
    return number(value) is not None or any(one.op in ("log", "log1p", "softplus", "logsigmoid") for one in origins(value, stop=("run", "log_prob")))


def likelihood_sign(value: Value, sign: int = 1, depth: int = 12) -> int | None:
    """1 for a multiple of a log probability, -1 for one of an entropy; None for all else."""
    value = bare(value)
    if depth == 0:
        return None
    if is_likelihood(value):
        return sign
    if value.op == "entropy":
        return -sign
    if value.op == "neg":
        return likelihood_sign(value.args[0], -sign, depth - 1)
    if value.op in _REDUCED and value.args:
        return likelihood_sign(value.args[0], sign, depth - 1)
    if value.op == "div" and len(value.args) == 2:
        return likelihood_sign(value.args[0], sign, depth - 1)
    if value.op == "mul" and len(value.args) == 2:
        for one, other in (value.args, value.args[::-1]):
            known = number(other)
            found = likelihood_sign(one, sign, depth - 1)
            if found is not None:
                return -found if known is not None and known < 0 else found
    return None
