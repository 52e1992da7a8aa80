"""A temperature that is fitted to the outputs of a trained network. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.basic import losses


def calibrated_on_what_was_learned(program: Program) -> Iterator[Remark]:
    """A temperature is fitted to the outputs for the samples that the network has learned."""
    computation = computation_of(program)
    found = [loss for _, loss in losses(computation) if len(loss.args) > 1]
    for fitted in found:
        outputs = _divided(fitted.args[0])
        if outputs is None or not all(run.where.no_grad for run in origins(outputs) if run.op == "run"):
            continue
        tables = _tables(fitted.args[1])
        learned = next((one for one in found if tables & _tables(one.args[1]) and any(run.op == "run" and not run.where.no_grad for run in origins(one.args[0]))), None)
        if learned is not None:
            yield Remark(fitted.node, f"{short(fitted.node)} fits a temperature to the samples that {short(learned.node)} (line {learned.line}) learns, for which the network is surer than for any other")
            return


def _divided(value: Value) -> Value | None:
    """The outputs of a network that are divided by a parameter of one number, or multiplied by it."""
    value = bare(value)
    if value.op not in ("div", "mul") or len(value.args) != 2:
        return None
    for outputs, by in (value.args, value.args[::-1]):
        leaves = [one for one in origins(by) if one.op in ("torch.nn.Parameter", "run")]
        if [one.op for one in leaves] == ["torch.nn.Parameter"] and any(one.op == "run" for one in origins(outputs)):
            return outputs
    return None


def _tables(value: Value) -> set[int]:
    """What the samples are read from that a value is made of."""
    return {id(bare(one.args[0].args[0])) for one in origins(value) if one.op == "rows" and one.args and one.args[0].op == "part"}
