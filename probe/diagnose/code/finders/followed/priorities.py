"""How often rows are drawn, by the errors of a network. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.numberings import written

_MADE = ("zeros", "ones", "full", "empty")
_BOUNDS = ("maximum", "clamp", "clip", "max", "relu", "clamp_min")


def error_with_its_sign(program: Program) -> Iterator[Remark]:
    """Rows are drawn in proportion to their error, which is stored with its sign: the difference of the target and the output."""
    computation = computation_of(program)
    for draw in computation.of("choice", "multinomial", "random.choices", "choices", "torch.utils.data.WeightedRandomSampler"):
        weights = draw.named.get("p") or draw.named.get("weights") or (draw.args[0] if draw.op in ("multinomial", "torch.utils.data.WeightedRandomSampler") and draw.args else None)
        for made in origins(weights) if weights is not None else ():
            if made.op not in _MADE:
                continue
            for one in written(computation, made):
                error = _error(computation, one.args[2]) if len(one.args) > 2 else None
                if error is not None:
                    yield Remark(one.node, f"{short(one.node)} is set to {short(error.node)} (line {error.line}) with its sign, and {short(draw.node)} (line {draw.line}) draws in proportion to it: rows whose output is too far to one side are hardly drawn, however wrong they are")
                    return


def _error(computation: Computation, value: Value) -> Value | None:
    """The difference of what a network gives and its target that a value is, with its sign; the loss squares it."""
    for _ in range(12):
        value = bare(value)
        if not value.args or not (value.op in _BOUNDS or (value.op == "add" and len(value.args) == 2 and number(value.args[1]) is not None)):
            break
        value = value.args[0]
    if value.op != "sub" or len(value.args) != 2 or not any(one.op == "run" for one in origins(value)):
        return None
    squares = any(one.op in ("pow", "square", "abs") or (one.op == "mul" and len(one.args) == 2 and one.args[0] is one.args[1]) for one in computation.users(value))
    return value if squares else None
