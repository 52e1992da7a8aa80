"""Odds of logarithms, vectors that are cut after they were normalized, and words that count as replaced. Pure; standard
library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    origins,
    takes_all,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.likelihoods import likelihood_sign
from probe.diagnose.code.traits.sides import DRAWS
from probe.diagnose.code.traits.uses import made_from

_CHOSEN = ("multinomial", "sample", "argmax")
_CARRIED = frozenset({"cat", "concatenate", "vstack", "append", "T", "t", "transpose", "element", "set_item", *KEPT, *SHAPED})


def odds_of_logarithms(program: Program) -> Iterator[Remark]:
    """What is left of 1 is taken of the logarithm of a probability, and not of the probability."""
    computation = computation_of(program)
    for value in computation.of("log1p", "log"):
        inner = bare(value.args[0]) if value.args else value
        rest = inner if value.op == "log1p" else inner.args[1] if inner.op == "sub" and len(inner.args) == 2 and number(inner.args[0]) == 1 else None
        used = any(user.op == "sub" and any(bare(one).op == value.op or likelihood_sign(one) == 1 for one in user.args if one is not value) for user in computation.users(value))
        if used and rest is not None and likelihood_sign(rest) == (-1 if value.op == "log1p" else 1) and not any(one.op == "entropy" for one in origins(rest, stop=("run",))):
            yield Remark(value.node, f"{short(value.node)} takes 1 less {short(bare(rest, 'neg').node)} (line {bare(rest, 'neg').line}), which is the logarithm of a probability and lies below 0: what is left of 1 is that of its exponential")
            return


# Vectors that are cut ----------------------------------------------------------------------------


def cut_after_the_norm(program: Program) -> Iterator[Remark]:
    """Vectors of length 1 are cut to their first numbers, and compared by products, where the training divides the first numbers by
    their own length."""
    computation = computation_of(program)
    learned = any(_is_normalized(one) and (cut := bare(one.args[0])).op == "part" and _first_numbers(cut) for _, loss in losses(computation) for one in origins(loss))
    for value in computation.of("part") if learned else ():
        whole = bare(value.args[0])
        if not value.where.no_grad or not _first_numbers(value) or not _is_normalized(whole) or not any(one.op == "run" for one in origins(whole)):
            continue
        used = next((one for one in made_from(computation, value, _CARRIED, 200) if one.op == "matmul"), None)
        again = any(_is_normalized(one) for one in made_from(computation, value, _CARRIED, 200))
        if used is not None and not again:
            yield Remark(value.node, f"{short(value.node)} cuts vectors that were divided by their length before ({short(whole.node)}, line {whole.line}): {short(used.node)} (line {used.line}) multiplies what has another length in each row")
            return


def _is_normalized(value: Value) -> bool:
    """Whether a value is vectors that are divided by their length."""
    if value.op == "normalize":
        return bool(value.args)
    by = bare(value.args[1], "clamp", "maximum", "add") if value.op == "div" and len(value.args) == 2 else value
    return by is not value and by.op == "norm" and bool(by.args) and bare(by.args[0]) is bare(value.args[0])


def _first_numbers(value: Value) -> bool:
    """Whether a value is the first numbers of each row of another one."""
    index = value.args[1] if len(value.args) == 2 else value
    parts = index.parts if isinstance(index, Many) and index.op == "tuple" else []
    if len(parts) < 2 or parts[-1].op != "slice" or not all(takes_all(one) or constant(one) is Ellipsis for one in parts[:-1]):
        return False
    return is_none(parts[-1].args[0]) and not is_none(parts[-1].args[1]) and is_none(parts[-1].args[2])


# Words that were replaced ---------------------------------------------------------------------------


def kept_words_called_replaced(program: Program) -> Iterator[Remark]:
    """A judge is asked where a word was drawn anew, also where the word that was drawn is the one that stood there."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for one in origins(loss, stop=("run",)):
            mask = _mask_in(one.args[1]) if one.op == "binary_cross_entropy_with_logits" and len(one.args) > 1 else None
            if mask is None:
                continue
            for put in origins(one.args[0]):
                drawn = _put_at(put, mask)
                if drawn is not None and any(each.op in _CHOSEN and any(part.op == "run" for part in origins(each)) for each in origins(drawn)) and not _avoids(drawn):
                    yield Remark(one.node, f"{short(one.node)} asks for {short(mask.node)} (line {mask.line}), and {short(put.node)} (line {put.line}) puts there what a network draws, which often is the word that stood there: it counts as replaced too")
                    return


def _mask_in(labels: Value) -> Value | None:
    """The random choice of places that labels are: the choice itself, or zeros that are 1 there."""
    labels = bare(labels)
    if labels.op == "set_item" and len(labels.args) == 3 and bare(labels.args[0]).op in ("zeros", "zeros_like") and number(labels.args[2]) == 1:
        labels = bare(labels.args[1])
    drawn = labels.op in ("lt", "gt", "le", "ge", "and", "bernoulli", "bool") and any(one.op in DRAWS for one in origins(labels))
    return labels if drawn and not any(one.op == "run" for one in origins(labels)) else None


def _put_at(value: Value, mask: Value) -> Value | None:
    """What is put where a mask is true."""
    if value.op == "where" and len(value.args) == 3 and bare(value.args[0]) is mask:
        return value.args[1]
    if value.op in ("set_item", "masked_scatter") and len(value.args) == 3 and bare(value.args[1]) is mask:
        return value.args[2]
    return None


def _avoids(drawn: Value) -> bool:
    """Whether the word that stood there cannot be drawn."""
    return any(one.op in ("scatter", "scatter_", "masked_fill", "set_item") and any(part.op == "run" for part in origins(one.args[0])) for one in origins(drawn))
