"""Codes that a decoder is given in training, and those that it draws samples of. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, origins
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import product, sides

FINDERS = Finders()
_NORMAL = ("randn", "randn_like", "standard_normal")


@FINDERS.add("uniform-for-normal-noise")
def _uniform_prior(program: Program) -> Iterator[Remark]:
    """A decoder is trained on codes around normal noise, with a divergence from a normal distribution, and samples are decoded of
    noise between 0 and 1."""
    computation = computation_of(program)
    drawn = [one for one in computation.of("run") if len(one.args) == 2 and bare(one.args[1]).op == "rand"]
    for value in drawn:
        layers = [one for one in computation.of("run") if one is not value and len(one.args) == 2 and one.args[0] is value.args[0]]
        trained = next((one for one in layers if _is_spread(bare(one.args[1]))), None)
        if trained is not None:
            yield Remark(value.args[1].node, f"{short(value.args[1].node)} lies between 0 and 1, and {short(trained.args[1].node)} (line {trained.args[1].line}), which the same layer is trained on, is made of normal noise")
            return


def _is_spread(code: Value) -> bool:
    """Whether a value is a mean and a deviation, both of a network, with normal noise."""
    for spread, mean in sides(code) if code.op == "add" else ():
        factors = [bare(one) for one in product(spread).above]
        noise = [one for one in factors if one.op in _NORMAL]
        rest = [one for one in factors if one.op not in _NORMAL]
        if noise and rest and any(one.op == "run" for one in origins(mean)) and all(any(one.op == "run" for one in origins(each)) for each in rest):
            return True
    return False
