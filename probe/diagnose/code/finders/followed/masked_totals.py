"""Sums of all positions that a mask of positions is multiplied with. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.extents import rank

FINDERS = Finders()


@FINDERS.add("weights-after-the-mean")
def _masked_total(program: Program) -> Iterator[Remark]:
    """A sum or mean of all that a network gives is multiplied by a mask of the positions, and added up again."""
    computation = computation_of(program)
    for value in computation.of("sum", "mean"):
        product = bare(value.args[0]) if value.args else value
        if product.op != "mul" or len(product.args) != 2:
            continue
        for total, mask in (product.args, product.args[::-1]):
            whole = _total(total)
            if whole is not None and _is_mask(mask):
                yield Remark(product.node, f"{short(product.node)} gives each position that the mask keeps {short(whole.node)} (line {whole.line}), one number of all positions")
                return


def _total(value: Value) -> Value | None:
    """The sum or mean over all axes that a value is, but for numbers that it is multiplied by."""
    value = bare(value)
    while value.op == "neg" or (value.op in ("mul", "div") and any(number(one) is not None for one in value.args)):
        value = bare(next((one for one in value.args if number(one) is None), value.args[0]))
    if value.op not in ("sum", "mean") or len(value.args) != 1 or "dim" in value.named or "axis" in value.named or isinstance(value.args[0], Many):
        return None
    return value if rank(value.args[0]) != 1 and any(one.op == "run" for one in origins(value)) else None


def _is_mask(value: Value) -> bool:
    """Whether a value says of each position of each sample whether it counts: a comparison of two axes."""
    value = bare(value)
    if value.op in ("invert", "logical_not", "not") and value.args:
        value = bare(value.args[0])
    return value.op in ("lt", "le", "gt", "ge", "ne", "eq") and (rank(value) or 2) > 1 and (any(bare(one, "part").op == "arange" for one in value.args) or any(number(one) is not None for one in value.args[1:]))
