"""The ends that an environment tells, in what values are learned towards. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, alternatives, bare, constant, number
from probe.diagnose.code.finders.losses.bootstraps import Backup, backups, compared
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of
from probe.diagnose.code.traits.episodes import End, end_of

FINDERS = Finders()
_JOINED = ("or", "logical_or", "maximum", "tuple", "part", "either")
"""What takes the end of an episode's time without asking for it alone."""


def factors_of(computation: Computation, one: Backup) -> Iterator[tuple[Value, End]]:
    """What the value of what follows is multiplied by that tells an end, also where it is set to 0 in some rows: each
    with what it says (-1: it keeps the value where the episode goes on)."""
    for factor in one.factors:
        found = end_of(computation, factor)
        if found is not None:
            yield factor, found
    at = bare(one.future)
    while at.op in ("masked_fill", "set_item", "where") and len(at.args) == 3:
        zero = [number(part) == 0 or bare(part).op in ("zeros_like", "zeros") for part in at.args]
        mask = at.args[0] if at.op == "where" else at.args[1]
        found = end_of(computation, mask)
        if zero[2] != (at.op == "where" and zero[1]) and found is not None:
            kept_where_true = at.op == "where" and zero[2]
            yield at, End(found.sign if kept_where_true else -found.sign, found.told)
        at = bare(at.args[1] if at.op == "where" and zero[2] else at.args[2] if at.op == "where" else at.args[0])


@FINDERS.add("end-of-episode-inverted")
def _end_inverted(program: Program) -> Iterator[Remark]:
    """The value of what follows is kept where the episode has ended, and only there."""
    computation = computation_of(program)
    for one in backups(computation):
        found = list(factors_of(computation, one))
        if len(found) == 1 and found[0][1].sign == 1:
            factor, end = found[0]
            yield Remark(one.whole.node, f"{short(one.whole.node)} takes the value of what follows only where {short(factor.node)} (line {factor.line}) is kept: where the environment has told an end (line {end.told[0].line})")


@FINDERS.add("time-limit-taken-for-an-end")
def _time_limit_taken_for_an_end(program: Program) -> Iterator[Remark]:
    """The value of what follows is left out where the environment has only truncated the episode."""
    computation = computation_of(program)
    for error, _, target, one in compared(computation):
        if not any(bare(each) is one.whole for each in alternatives(target)) or not set(one.whole.where.loops) <= set(error.where.loops):
            continue  # a sum over many steps, whose last state may be that of another episode
        for factor, end in factors_of(computation, one):
            cut = [part for part in end.told if constant(part.args[1]) == 3 and _has_five(computation, part.args[0])]
            if end.sign == -1 and cut and not _told_apart(computation, cut[0]):
                yield Remark(one.whole.node, f"{short(one.whole.node)} leaves out the value of what follows where {short(factor.node)} (line {factor.line}) tells of a time limit too: what {short(cut[0].args[0].node)} (line {cut[0].line}) truncates has not ended")
                return


def _has_five(computation: Computation, step: Value) -> bool:
    """Whether an environment gives five parts: the fourth is whether it has truncated the episode."""
    if step.args and (step.args[0].op.startswith("gymnasium.") or _resets_to_two(computation, step.args[0])):
        return True
    nodes = [one.node for one in computation.users(step) if one.op == "part"]
    unpacked = [one for one in nodes if isinstance(one, ast.Tuple)]
    return bool(unpacked) and all(len(one.elts) == 5 and not any(isinstance(each, ast.Starred) for each in one.elts) for one in unpacked)


def _resets_to_two(computation: Computation, environment: Value) -> bool:
    """Whether `reset` of an environment gives a state and more, as those do whose steps have five parts."""
    begun = [one for reset in computation.of("reset") if reset.args and reset.args[0] is environment for one in computation.users(reset) if one.op == "part"]
    pairs = [one for one in begun if isinstance(one.node, ast.Tuple) and len(one.node.elts) == 2]
    return bool(pairs) and all(constant(one.args[1]) == 0 for one in begun if one not in pairs)


def _told_apart(computation: Computation, cut: Value) -> bool:
    """Whether the program asks alone whether an episode was truncated."""
    return any(test is cut for value in computation.values for test, _ in value.where.under)


@FINDERS.add("time-limit-taken-for-an-end")
def _own_time_limit(program: Program) -> Iterator[Remark]:
    """The value of what follows is left out where an environment of the program has ended or truncated an episode."""
    computation = computation_of(program)
    cut = {id(bare(one.parts[3])): one for one in computation.of("tuple") if isinstance(one, Many) and len(one.parts) == 5 and any(getattr(each, "name", "") == "step" for each in one.where.functions[-1:])}
    for one in backups(computation) if cut else ():
        for factor in one.factors:
            inner = complement_of(bare(factor))
            ends = bare(inner, "as_tensor", "tensor", "float", "builtins.float") if inner is not None else None
            limits = [bare(part) for part in ends.args if id(bare(part)) in cut] if ends is not None and ends.op in ("or", "logical_or", "maximum", "max") else []
            if ends is not None and limits and not one.others and all(user.op in _JOINED for part in limits for user in computation.users(part)):
                yield Remark(one.whole.node, f"{short(one.whole.node)} leaves out the value of what follows where {short(ends.node)} (line {ends.line}) tells of a time limit too: what was truncated has not ended")
                return
