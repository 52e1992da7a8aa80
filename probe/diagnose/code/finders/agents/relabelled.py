"""Steps that are stored once more, with another goal. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Table, Value, bare, number, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short

_JOINED = ("cat", "concatenate", "hstack", "r_", "append")


def reward_of_another_goal(program: Program) -> Iterator[Remark]:
    """A step is stored twice, the second time with another goal, and with the reward that it had for the first one."""
    computation = computation_of(program)
    stored: list[tuple[Value, list[Value], Value]] = []
    for added in computation.of("append"):
        entry = added.args[1]
        parts = entry.parts if isinstance(entry, Many) else list(entry.entries.values()) if isinstance(entry, Table) else []
        if len(parts) < 4 or not added.where.loops:
            continue
        for store, before, first in stored:
            if store is added.args[0] and len(before) == len(parts) and added.where.loops[0] is first.where.loops[0] and _only_the_goal(before, parts):
                kept = next((one for one, other in zip(before, parts, strict=True) if one is other and _may_be_reward(one)), None)
                if kept is not None:
                    yield Remark(added.node, f"{short(added.node)} stores the step of line {first.line} with another goal, and with all else as it was: the reward is that of the first goal")
                    return
        stored.append((added.args[0], parts, added))


def _only_the_goal(before: list[Value], after: list[Value]) -> bool:
    """Whether two entries differ in nothing but what stands beside the states."""
    pairs = [(one, other) for one, other in zip(before, after, strict=True) if not (one is other or same(one, other))]
    if not pairs:
        return False
    if all(_shares(one, other) for one, other in pairs):
        return True
    other = pairs[0][1]
    return len(pairs) == 1 and len(before) > 4 and sum(bare(one) is bare(other) for one in after) > 1


def _shares(one: Value, other: Value) -> bool:
    """Whether two values join one thing with two different ones."""
    one, other = bare(one), bare(other)
    if one.op not in _JOINED or one.op != other.op or not one.args or not isinstance(one.args[0], Many) or not isinstance(other.args[0], Many):
        return False
    left, right = one.args[0].parts, other.args[0].parts
    return len(left) == len(right) > 1 and 0 < sum(a is b or same(a, b) for a, b in zip(left, right, strict=True)) < len(left)


def _may_be_reward(value: Value) -> bool:
    """Whether a value may be a reward: a number that is not known."""
    return number(value) is None and bare(value).op not in _JOINED
