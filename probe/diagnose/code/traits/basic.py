"""Questions about what a program computes. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from probe.diagnose.code.computed.computation import Computation
from probe.diagnose.code.computed.value import Many, Table, Value, alternatives, bare, constant, number, same

LOSSES = frozenset({
    "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "cross_entropy", "nll_loss", "binary_cross_entropy", "kl_div", "ctc_loss",
    "binary_cross_entropy_with_logits", "gaussian_nll_loss", "poisson_nll_loss", "cosine_embedding_loss", "triplet_margin_loss",
    "margin_ranking_loss", "hinge_embedding_loss", "multilabel_soft_margin_loss", "multi_margin_loss", "soft_margin_loss",
})
"""Losses of torch.nn.functional, also written as modules."""


def losses(computation: Computation) -> Iterator[tuple[Value, Value]]:
    """Each backward, and the loss that it is called on; what a trainer of a library calls it on is what
    `training_step` or `compute_loss` gives."""
    for value in computation.of("backward", "manual_backward"):
        loss = value.args[-1] if value.op == "manual_backward" or (value.args[0].op in ("@input", "accelerate.Accelerator") and len(value.args) > 1) else value.args[0]
        if loss.op == "scale" and len(loss.args) > 1:
            loss = loss.args[1]
        yield from ((value, one) for one in alternatives(loss) if one.op != "@constant")
    if not any(True for _ in computation.of("backward", "manual_backward")):
        for name in ("training_step", "compute_loss"):
            for given in computation.returned.get(name, ()):
                loss = given.entries.get("loss", given) if isinstance(given, Table) else given
                yield loss, loss


_MOST_TERMS = 256
"""A sum of alternatives of sums has many more ways than any loss has terms."""


def terms(loss: Value, factor: float | None = 1.0) -> Iterator[tuple[Value, float | None]]:
    """The terms of a loss, each with the number that it is multiplied by; None where that is unknown. Not more than
    `_MOST_TERMS`."""
    return islice(_terms(loss, factor), _MOST_TERMS)


def _terms(loss: Value, factor: float | None) -> Iterator[tuple[Value, float | None]]:
    if loss.op in ("add", "sub") and len(loss.args) == 2:
        yield from _terms(loss.args[0], factor)
        yield from _terms(loss.args[1], factor if loss.op == "add" or factor is None else -factor)
    elif loss.op in ("mul", "div") and len(loss.args) == 2:
        numbers = [_weight(one) for one in loss.args]
        if loss.op == "mul" and numbers[0] is not None:
            yield from _terms(loss.args[1], None if factor is None else factor * numbers[0])
        elif numbers[1] is not None and numbers[1] != 0:
            by = numbers[1] if loss.op == "mul" else 1 / numbers[1]
            yield from _terms(loss.args[0], None if factor is None else factor * by)
        elif loss.op == "div" and bare(loss.args[1]).op in ("@input", "len", "floordiv", "part", "max"):
            yield from _terms(loss.args[0], None)
        else:
            yield loss, factor
    elif loss.op == "neg":
        yield from _terms(loss.args[0], None if factor is None else -factor)
    elif loss.op in ("sum_of", "sum", "mean") and len(loss.args) == 1 and bare(loss.args[0]).op in ("list", "tuple", "stack"):
        inner = bare(loss.args[0])
        for one in inner.parts if isinstance(inner, Many) else inner.args:
            yield from _terms(one, factor)
    elif loss.op in ("sum_of", "either"):
        for one in loss.args:
            yield from _terms(one, factor)
    else:
        yield loss, factor


def reduction_of(loss: Value) -> str | None:
    """How a loss of `LOSSES` makes one number of many: `mean`, `sum` or `none`; None where that is unknown."""
    if loss.named.keys() & {"size_average", "reduce", "**"}:
        summed = "size_average" in loss.named and constant(loss.named["size_average"]) is False
        return "sum" if summed and not loss.named.keys() & {"reduce", "**"} else None
    given = loss.named.get("reduction")
    return "mean" if given is None else constant(given) if isinstance(constant(given), str) else None


def _weight(value: Value) -> float | None:
    """The number that a weight is, or rises to: of `min(1.0, epoch / 5)`, 1."""
    found = number(value)
    if found is None and value.op == "min" and len(value.args) == 2:
        return next((known for one in value.args if (known := number(one)) is not None), None)
    if found is None and value.op == "mul" and len(value.args) == 2:
        both = [_weight(one) for one in value.args]
        return None if both[0] is None or both[1] is None else both[0] * both[1]
    return found


def is_mean_of(value: Value, of: Value) -> bool:
    """Whether a value is a mean of another one."""
    value = bare(value)
    if value.op == "part" and value.args[0].op in ("var_mean", "std_mean") and constant(value.args[1]) == 1:
        return same(bare(value.args[0].args[0]), bare(of))
    return value.op in ("mean", "median", "nanmean") and bool(value.args) and same(bare(value.args[0]), bare(of))


def variance_of(value: Value) -> Value | None:
    """What a value is the variance of: by `var`, `var_mean`, `std() ** 2` or the mean of squared differences from
    the mean; None if it is none."""
    value = bare(value)
    if value.op in ("var", "nanvar") and value.args:
        return value.args[0]
    if value.op == "part" and value.args[0].op == "var_mean" and constant(value.args[1]) == 0:
        return value.args[0].args[0]
    if (inner := squared(value)) is not None and bare(inner).op == "std":
        return bare(inner).args[0]
    if value.op == "mean" and value.args and (inner := squared(bare(value.args[0]))) is not None:
        inner = bare(inner)
        if inner.op == "sub" and is_mean_of(inner.args[1], inner.args[0]):
            return inner.args[0]
    return None


def squared(value: Value) -> Value | None:
    """x of x ** 2, x * x and x.square()."""
    if value.op == "pow" and number(value.args[1] if len(value.args) > 1 else None) == 2:
        return value.args[0]
    if value.op == "mul" and len(value.args) == 2 and same(value.args[0], value.args[1]):
        return value.args[0]
    return value.args[0] if value.op == "square" and value.args else None


def without_small(value: Value) -> Value:
    """x of `x + 1e-8` and `x.clamp(min=1e-8)`, also in another shape or type."""
    while True:
        value = bare(value)
        small = [one for one in value.args[1:2] if (found := number(one)) is not None and abs(found) < 0.1]
        low = number(value.argument("min", 1))
        if (value.op == "add" and small) or (value.op in ("clamp", "maximum", "max") and low is not None and abs(low) < 0.1):
            value = value.args[0]
        else:
            return value
