"""Logarithms of probabilities. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.value import SHAPED, Many, Value, bare, constant, number, origins
from probe.diagnose.code.traits.updates import plain

DRAWS = ("sample", "rsample", "multinomial")
"""Operations that draw an action."""
_LOGARITHMS = ("log_prob", "log_softmax", "logsoftmax")
_REDUCED = ("sum", "mean", "sum_of")
_PARAMETERS = ("mean", "stddev", "loc", "scale", "logits", "probs", "variance", "covariance_matrix", "scale_tril")
"""What a distribution of torch is told, by its attributes."""


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
            found = likelihood_sign(one, sign, depth - 1)
            if found is not None:
                return -found if _is_negative(other) else found
    return None


def _is_negative(value: Value) -> bool:
    """Whether a factor turns the sign."""
    value, known = bare(value), number(value)
    if value.op == "mul" and len(value.args) == 2:
        return _is_negative(value.args[0]) != _is_negative(value.args[1])
    return value.op == "neg" or (known is not None and known < 0)


def factors_of(value: Value) -> list[Value]:
    """The factors of a value, also of its factors, with what cuts their gradients."""
    while value.op in (*SHAPED, "to", "float") and value.args:
        value = value.args[0]
    if value.op in ("mul", "div", "neg"):
        inner = value.args if value.op == "mul" else value.args[:1]
        return [each for one in inner for each in factors_of(one)]
    return [value]


def is_surprise(value: Value) -> bool:
    """Whether a value is a cross entropy of each row."""
    return value.op in ("cross_entropy", "nll_loss") and constant(value.named.get("reduction")) == "none"


def action_of(likely: Value) -> Value | None:
    """The action whose log probability a value is."""
    for one in steps_to(likely):
        if one.op == "log_prob" and len(one.args) > 1:
            return one.args[1]
        if one.op == "gather":
            return one.argument("index", len(one.args) - 1)
        if one.op == "part" and isinstance(one.args[1], Many) and len(one.args[1].parts) == 2:
            return one.args[1].parts[1]
    return None


def steps_to(likely: Value) -> Iterator[Value]:
    """A log probability, and what it is a sum, a part or a list of."""
    for _ in range(20):
        likely = bare(likely)
        yield likely
        if isinstance(likely, Many) and len(likely.parts) == 1:
            likely = likely.parts[0]
        elif isinstance(likely, Many) or not likely.args or likely.op in ("log_softmax", "run", "log_prob"):
            return
        elif likely.op == "add":
            inner = [one for one in likely.args if number(one) is None and bare(one).op not in ("zeros", "zeros_like")]
            if len(inner) != 1:
                return
            likely = inner[0]
        else:
            likely = likely.args[0]


def difference_of(ratio: Value) -> tuple[Value, Value] | None:
    """New and old log probability, of exp(new - old)."""
    ratio = bare(ratio)
    inner = bare(ratio.args[0]) if ratio.op == "exp" and ratio.args else ratio
    while inner.op in ("sum", "mean", "clamp") and inner.args:
        inner = bare(inner.args[0])
    if ratio.op != "exp" or inner.op != "sub" or len(inner.args) != 2:
        return None
    return inner.args[0], inner.args[1]


def alike(one: Value, other: Value, depth: int = 60) -> bool:
    """Whether two values are computed in the same way by the same layers from the same data."""
    one, other = bare(one), bare(other)
    if one is other:
        return True
    if depth == 0 or one.op != other.op or len(one.args) != len(other.args) or one.named.keys() != other.named.keys():
        return False
    if one.op in ("@constant", "@library"):
        return bool(one.data == other.data)
    if isinstance(one, Many) and isinstance(other, Many):
        return len(one.parts) == len(other.parts) and all(alike(a, b, depth - 1) for a, b in zip(one.parts, other.parts, strict=True))
    if one.op == "run" and plain(one.args[0]) is not plain(other.args[0]):
        return False
    if one.op in (*DRAWS, "@input", "@object", "next", "unknown"):
        return False
    pairs = [*zip(one.args, other.args, strict=True), *((one.named[name], other.named[name]) for name in one.named)]
    return bool(pairs) and all(alike(a, b, depth - 1) for a, b in pairs)


def is_rebuilt(new: Value, old: Value) -> bool:
    """Whether the old log probability is that of a distribution with the parameters of the new one:
    `Normal(pi.mean.detach(), pi.stddev.detach())`."""
    while new.op == old.op == "sum" and new.args and old.args:
        new, old = bare(new.args[0]), bare(old.args[0])
    if not (new.op == old.op == "log_prob" and len(new.args) == len(old.args) == 2 and alike(bare(new.args[1]), bare(old.args[1]))):
        return False
    told = [bare(one) for one in (*old.args[0].args, *old.args[0].named.values())]
    return bool(told) and all(one.op in _PARAMETERS and one.args and one.args[0] is new.args[0] for one in told)


def best_of_all(likely: Value) -> Value | None:
    """Where a log probability is the largest one of all: `log_probs.max(1)[0]`, and its place is used."""
    for one in steps_to(likely):
        if one.op == "max" and one.args and bare(one.args[0]).op == "log_softmax" and (len(one.args) > 1 or "dim" in one.named):
            return one
    return None


def source_of(likely: Value) -> set[int]:
    """The distribution, or the probabilities, that a log probability is of, and what they are made of."""
    found: set[int] = set()
    for one in steps_to(likely):
        if one.op in ("log_prob", "gather", "part") and one.args:
            found |= {id(each) for each in origins(one.args[0], stop=("run",)) if each.op in ("run", "log_softmax", "softmax") or each.op.startswith("torch.distributions.")}
    return found


def chosen_among(action: Value) -> Iterator[Value]:
    """The distribution, the probabilities or the scores that an action is the largest one of."""
    at = bare(action.args[0]) if action.args else action
    yield at
    while at.op in ("probs", "logits", "softmax", "log_softmax", "max", "exp", "part", "log") and at.args:
        at = bare(at.args[0])
        yield at
