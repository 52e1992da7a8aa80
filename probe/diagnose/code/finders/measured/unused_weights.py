"""Weights of what was drawn by priority that no loss is given, and a softmax along another axis than its targets. Pure;
standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import product
from probe.diagnose.code.traits.basic import losses, without_small
from probe.diagnose.code.traits.uses import made_from

FINDERS = Finders()
_PLAIN = KEPT | SHAPED | {"div", "max", "mul", "tuple", "list", "part", "mean", "sum"}
"""What makes weights ready, and does not hand them on."""


def importance_never_used(program: Program) -> Iterator[Remark]:
    """Weights are made of the probabilities by which a batch was drawn, and the loss of the batch is not made of them."""
    computation = computation_of(program)
    drawn = [(one, given) for one in computation.of("choice", "multinomial", "choices") if (given := one.argument("p") or one.argument("weights") or (one.args[0] if one.op == "multinomial" and one.args else None)) is not None]
    found = [loss for _, loss in losses(computation)]
    inside = {id(one) for loss in found for one in origins(loss)} if drawn else set()
    for weight in computation.of("pow") if inside else ():
        above = [bare(one) for one in product(weight.args[0]).above] if len(weight.args) == 2 else []
        draw = next((draw for one in above if one.op == "part" for draw, given in drawn if bare(one.args[1]) is bare(draw) and bare(one.args[0]) is bare(given)), None)
        if draw is None or id(weight) in inside or not _is_below_zero(weight.args[1]) or weight.where.apart:
            continue
        if all(one.op in _PLAIN for one in made_from(computation, weight, None)):
            yield Remark(weight.node, f"{short(weight.node)} weighs against the probabilities by which {short(draw.node)} (line {draw.line}) draws, and no loss is made of it")
            return


def _is_below_zero(value: Value) -> bool:
    known = number(value)
    return value.op == "neg" if known is None else known < 0


@FINDERS.add("softmax-over-the-batch")
def _along_another_axis(program: Program) -> Iterator[Remark]:
    """Targets that add up to 1 along one axis are compared with a softmax along the other one."""
    for _, loss in losses(computation_of(program)):
        for value in origins(loss):
            if value.op not in ("mul", "kl_div") or len(value.args) < 2:
                continue
            for scores, target in (value.args[:2], value.args[1::-1]):
                logs = bare(scores)
                whole = bare(target)
                shares = bare(without_small(whole.args[1]), "clamp") if whole.op == "div" and len(whole.args) == 2 else whole
                if logs.op != "log_softmax" or shares.op not in ("sum", "softmax") or (shares.op == "softmax" and shares is not whole):
                    continue
                along, over = number(logs.argument("dim", 1)), number(shares.argument("dim", 1))
                if along == 0 and over in (1, -1) and any(one.op == "run" for one in origins(logs)):
                    yield Remark(logs.node, f"{short(logs.node)} adds up to 1 along axis 0, the batch, and {short(whole.node)} (line {whole.line}) along axis {over:.0f}: each row asks for shares of its own")
                    return
