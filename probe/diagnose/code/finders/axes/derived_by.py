"""Derivatives that are called by another variable than the one that they are taken by. Pure; standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Value, bare, constant
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark

FINDERS = Finders()
_FIRST = re.compile(r"^(d?[a-z]+?)_?([a-z])$", re.I)
_SECOND = re.compile(r"^(d?[a-z]+?)_?([a-z])\2$", re.I)


@FINDERS.add("mixed-second-derivatives")
def _by_another_variable(program: Program) -> Iterator[Remark]:
    """`u_xx` is the derivative of `u_x` by another variable than `u_x` is of u."""
    computation = computation_of(program)
    taken = [(target.id, target, found) for target, given in computation.stored.items() for one in given if (found := _derived(one)) is not None]
    for name, target, second in taken:
        twice = _SECOND.match(name)
        if twice is None:
            continue
        for other, _, first in taken:
            once = _FIRST.match(other)
            if once is None or once.groups() != twice.groups() or bare(second.args[0], "part", "sum") is not first:
                continue
            if second.args[1] is not first.args[1] and any(found.args[1] is second.args[1] and found.args[0] is first.args[0] for _, _, found in taken if found is not first):
                yield Remark(target, f"{name} is made of {other} (line {first.line}) by another variable than {other} was derived by: it is the mixed derivative of both")
                return


def _derived(value: Value) -> Value | None:
    """The derivative that a value is: what `autograd.grad` gives for one variable."""
    value = bare(value)
    if value.op == "part" and value.args[0].op == "torch.autograd.grad" and constant(value.args[1]) == 0:
        value = value.args[0]
    return value if value.op == "torch.autograd.grad" and len(value.args) > 1 else None
