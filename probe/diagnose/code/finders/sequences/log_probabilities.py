"""Losses that take log probabilities, and what they are given. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, SHAPED, Many, Value
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_MOVED = (KEPT | SHAPED | {"transpose", "permute", "swapaxes", "dropout"}) - {"either", "stack", "rows"}
_LAST = ("torch.nn.Linear", "torch.nn.Conv1d", "torch.nn.Conv2d")


@FINDERS.add("logits-for-log-probabilities")
def _not_logarithms(program: Program) -> Iterator[Remark]:
    """CTC or nll_loss is given what a linear layer computes, or probabilities."""
    said: set[ast.AST] = set()
    for loss in computation_of(program).of("ctc_loss", "nll_loss"):
        given = _moved(loss.args[0]) if loss.args else None
        if given is None or loss.node in said:
            continue
        said.add(loss.node)
        if given.op in ("softmax", "sigmoid"):
            yield Remark(loss.node, f"{loss.op} takes log probabilities, and {short(given.node)} (line {given.line}) gives probabilities")
        elif given.op == "run" and given.args[0].op in _LAST:
            yield Remark(loss.node, f"{loss.op} takes log probabilities, and what it is given is the output of {short(given.node)} (line {given.line}), which is none")


def _moved(value: Value) -> Value:
    """A value before what only turns, reshapes, drops or moves it."""
    while value.args and not isinstance(value, Many) and value.op in _MOVED:
        value = value.args[0]
    if value.op == "run" and len(value.args) > 1 and value.args[0].op.startswith("torch.nn.Dropout"):
        return _moved(value.args[1])
    return value
