"""Ends of episodes in what values are learned towards. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, alternatives, bare, constant, number
from probe.diagnose.code.finders.losses.bootstraps import compared, unmasked
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()


@FINDERS.add("end-of-episode-ignored")
def _end_ignored(program: Program) -> Iterator[Remark]:
    """The ends of episodes are kept beside the rewards, and what follows a state is worth as much after an end."""
    computation = computation_of(program)
    kept = _kept_end(computation)
    if kept is None:
        return
    for _, _, _, one in compared(computation):
        whole = [one.future, *one.factors]
        masked = unmasked(one.future) is not bare(one.future) or any(number(part) is not None for part in alternatives(one.future))
        if not masked and not one.others and not any(number(factor) is None for factor in one.factors) and not any(part.op == "either" for part in whole):
            yield Remark(one.whole.node, f"{short(one.whole.node)} adds the value of what follows an end too: {short(kept.node)} (line {kept.line}) keeps the ends, and nothing reads them here")
            return


def _kept_end(computation: Computation) -> Value | None:
    """Where the end that an environment tells is kept beside the reward that it gives."""
    for told in computation.of("step"):
        parts = {constant(one.args[1]): one for one in computation.users(told) if one.op == "part"}
        if len(told.args) < 2 or not {1, 2} <= parts.keys():
            continue
        rewards = _forms(computation, parts[1])
        ends = [one for place in (2, 3) if place in parts for one in _forms(computation, parts[place])]
        for end in ends:
            for user in computation.users(end):
                beside = [*user.made_of()]
                if user.op not in ("or", "and", "not") and (isinstance(user, (Many, Table)) or len(beside) > 3) and any(one in rewards for one in beside):
                    return user
    return None


def _forms(computation: Computation, value: Value) -> list[Value]:
    """A value, and what has it in another type."""
    return [value, *(user for user in computation.users(value) if bare(user) is value or user.op in ("or", "sub", "builtins.float", "builtins.int", "builtins.bool"))]
