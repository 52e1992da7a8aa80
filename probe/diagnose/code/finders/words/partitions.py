"""The score of all ways to tag a text, which is compared with that of one. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.numberings import marked

_CHOICES = ("where", "masked_fill", "gather", "index_select", "scatter")
_COMPARED = ("ne", "eq", "lt", "gt", "le", "ge", "invert", "logical_not")


def partition_over_padding(program: Program) -> Iterator[Remark]:
    """Of the two scores of a random field, that of one tagging leaves out the padding by a mask, and that of all does not."""
    computation = computation_of(program)
    for _, loss in losses(computation):
        for value in origins(loss, ("run",)):
            if value.op != "sub" or len(value.args) != 2:
                continue
            for whole, one in (value.args, value.args[::-1]):
                made, other = list(origins(whole, ("run",))), list(origins(one, ("run",)))
                total = max((each for each in made if each.op in ("logsumexp", "logaddexp") and each.where.loops), key=lambda each: len(each.where.loops), default=None)
                if total is None or any(each.op in _CHOICES for each in made) or _mask(computation, made) is not None or any(each.where.under for each in made if each.op == "logsumexp"):
                    continue
                mask = _mask(computation, other)
                runs = {id(each) for each in made if each.op == "run"}
                if mask is None or not runs or not any(id(each) in runs for each in other) or any(each.op == "logsumexp" for each in other):
                    continue
                yield Remark(total.node, f"{short(total.node)} goes on over the padding, and the score of one tagging, which is taken from it (line {value.line}), leaves that out by {short(mask.node)} (line {mask.line})")
                return


def _mask(computation: Computation, made: list[Value]) -> Value | None:
    """A mask of words or padding among what a value is made of."""
    return next((one for one in made if one.op in _COMPARED and marked(computation, one) is not None), None)
