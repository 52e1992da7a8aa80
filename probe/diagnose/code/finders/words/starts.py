"""What a reading of a text begins with, and the waves that tell its places. Pure; standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, number, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses
from probe.diagnose.code.traits.courses import number_at

_RECURRENT = ("torch.nn.LSTM", "torch.nn.GRU", "torch.nn.RNN", "torch.nn.LSTMCell", "torch.nn.GRUCell", "torch.nn.RNNCell")
_DRAWN = ("randn", "rand", "randn_like", "rand_like")
_LOSSES = ("cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss")


def begun_at_random(program: Program) -> Iterator[Remark]:
    """Each reading of a sequence begins with another state at random, in the evaluation too."""
    computation = computation_of(program)
    learned = {id(one): one for _, loss in losses(computation) for each in origins(loss) if each.op in _LOSSES and each.args for one in origins(each.args[0])}
    if any(one.op == "training" for one in computation.values):
        return
    for run in learned.values():
        if run.op != "run" or run.args[0].op not in _RECURRENT or len(run.args) < 3 or any(one.op in _DRAWN and one.where.loops and one.where.loops == run.where.loops for one in origins(run.args[1])):
            continue
        state = run.args[2]
        drawn = [bare(one) for one in (state.parts if isinstance(state, Many) else [state])]
        if any(one.op in _DRAWN for one in drawn) and all(one.op in (*_DRAWN, "zeros") for one in drawn) and not any(one.op == "torch.nn.Parameter" for one in origins(state)):
            begin = next(one for one in drawn if one.op in _DRAWN)
            yield Remark(begin.node, f"{short(run.node)} begins with {short(begin.node)}, which is drawn anew for each reading: one and the same sequence has another output each time")
            return


def frequencies_upside_down(program: Program) -> Iterator[Remark]:
    """The waves of positions become faster from one feature to the next, where the first turns by 1 from place to place."""
    for wave in computation_of(program).of("sin", "cos"):
        turned = bare(wave.args[0]) if wave.args else wave
        if turned.op not in ("mul", "einsum", "outer", "matmul") or len(turned.args) < 2:
            continue
        for places, rates in (turned.args[-2:], turned.args[:-3:-1]):
            counted = bare(places, "part")
            if counted.op != "arange" or len(counted.args) > 2 or any(one.op in ("exp", "pow", "div") for one in origins(places)):
                continue
            if _rises(rates):
                yield Remark(bare(rates, "part").node, f"{short(bare(rates, 'part').node)} grows from feature to feature, and {short(wave.node)} (line {wave.line}) turns by it from place to place: all but the first turn by several rounds")
                return


def _rises(rates: Value) -> bool:
    """Whether the rates of waves begin with 1, and become larger with the number of the feature."""
    rates = bare(rates, "part")
    inside = [one for one in origins(rates) if one.op == "arange"]
    if len(inside) != 1 or rates.op not in ("exp", "pow"):
        return False
    power = rates.args[0] if rates.op == "exp" else rates.args[1] if len(rates.args) > 1 else rates
    base = None if rates.op == "exp" else number(rates.args[0])
    logs = {id(one): math.log(known) for one in origins(power) if one.op == "log" and one.args and (known := number(one.args[0])) is not None and known > 0}
    first, later = (number_at(power, 0.0, given={**logs, id(inside[0]): at}) for at in (0.0, 2.0))
    return first == 0 and later is not None and later > 0 and (rates.op == "exp" or (base is not None and base >= 100))
