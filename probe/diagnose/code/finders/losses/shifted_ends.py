"""Ends of episodes that are read at another step than the rewards they were told with. Pure; standard library only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    alternatives,
    bare,
    constant,
    is_none,
    number,
    origins,
    same,
)
from probe.diagnose.code.finders.losses.bootstraps import Backup, backups
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.arithmetic import complement_of

_LISTED = ("stack", "tensor", "as_tensor", "array", "asarray", "cat", "FloatTensor", "torch.FloatTensor", "torch.Tensor")
_BLOCKS = ("zeros", "empty", "ones", "full", "zeros_like", "empty_like", "new_zeros")
_STEPS = ("element", "index", "count", "carried")
"""What the number of a step is, in a loop over the steps."""


class Reading(NamedTuple):
    """What is read of something that is kept for each step: `kept` is the block or the list, `ahead` by how many steps it is
    read ahead of the step that is computed."""

    kept: Value
    ahead: int


class Entry(NamedTuple):
    """What is kept for one step: the value, the step, and where it is put in."""

    value: Value
    step: Value | None
    put: Value


def end_of_another_step(program: Program) -> Iterator[Remark]:
    """A reward and an end that an environment told in one step, of which a sum over the steps takes the end one step later,
    with the value of the state between the two."""
    computation = computation_of(program)
    for one in backups(computation):
        found = _shifted(computation, one)
        if found is not None:
            factor, end, reward = found
            yield Remark(one.whole.node, f"{short(one.whole.node)} stops at the end that the step after it has told: {short(factor.node)} (line {factor.line}) reads one step ahead of the reward, and {short(end.put.node)} (line {end.put.line}) keeps what came with the reward of the same step ({short(reward.put.node)}, line {reward.put.line})")
            return


def _shifted(computation: Computation, one: Backup) -> tuple[Value, Entry, Entry] | None:
    """The factor that is read one step ahead, and where the end and the reward of one step are kept."""
    reward, value = _read(one.reward), _read(one.future)
    earned = _told(computation, one) if reward is None else _kept(computation, reward.kept)
    now = 0 if reward is None else reward.ahead
    if earned is None or value is None or value.ahead != now + 1 or (judged := _kept(computation, value.kept)) is None:
        return None
    for factor in one.factors:
        ended = _read(factor)
        end = None if ended is None else _kept(computation, ended.kept)
        if ended is None or end is None or ended.ahead != now + 1 or ended.kept is value.kept:
            continue
        at_once = _of_one_step(end, earned) and _of_one_step(end, judged)
        flag = _flag(end.value)
        if at_once and judged.value.number < flag.number and flag.number >= _begin(computation, end.put):
            return next((each for each in alternatives(factor) if _read(each) is not None), factor), end, earned
    return None


def _read(value: Value, depth: int = 24) -> Reading | None:
    """What a value reads of something that is kept for each step; None if that is unknown."""
    if depth == 0:
        return None
    if value.op == "either":
        found = {(id(one.kept), one.ahead): one for each in alternatives(value) if (one := _read(each, depth - 1)) is not None}
        return next(iter(found.values())) if len(found) == 1 else None
    inner = complement_of(value) if value.op == "sub" else None
    if inner is not None or value.op in ("invert", "not", "logical_not"):
        return _read(value.args[0] if inner is None else inner, depth - 1)
    if value.op in _BLOCKS or value.op == "set_item":
        block = _block(value)
        return Reading(block, 0) if block.op in _BLOCKS else None
    if value.op in _LISTED and value.args and isinstance(value.args[0], Many):
        return Reading(value.args[0], 0) if value.args[0].grown else _read(value.args[0].parts[0], depth - 1) if value.op == "cat" and value.args[0].parts else None
    if value.op == "append" and len(value.args) == 2 and not isinstance(value.args[0], Many):
        return _read(value.args[0], depth - 1)
    if value.op == "roll" and len(value.args) > 1 and number(value.args[1]) == -1:
        found_one = _read(value.args[0], depth - 1)
        return None if found_one is None else found_one._replace(ahead=found_one.ahead + 1)
    if value.op == "part" and len(value.args) == 2:
        by, read = _ahead(value.args[1]), _read(value.args[0], depth - 1)
        return None if by is None or read is None else read._replace(ahead=read.ahead + by)
    if value.args and value.op not in ("stack", "rows", "list", "tuple") and (value.op in KEPT or value.op in SHAPED or value.op in ("builtins.float", "bool")):
        return _read(value.args[0], depth - 1)
    return None


def _ahead(index: Value) -> int | None:
    """How far an index is ahead of the step that is computed: 1 for `t + 1` and for `1:`."""
    if isinstance(index, Many):
        found = [_ahead(one) for one in index.parts if not (one.op == "slice" and all(is_none(end) for end in one.args))]
        return found[0] if len(found) == 1 else None
    if index.op == "slice" and len(index.args) == 3 and is_none(index.args[2]):
        start = 0 if is_none(index.args[0]) else constant(index.args[0])
        return start if isinstance(start, int) and start >= 0 else None
    if index.op in ("add", "sub") and len(index.args) == 2:
        by = constant(index.args[1])
        return (by if index.op == "add" else -by) if isinstance(by, int) and index.args[0].op in _STEPS else None
    return 0 if index.op in _STEPS else None


def _block(value: Value) -> Value:
    while value.op in ("set_item", "to", "float", "bool") and value.args:
        value = value.args[0]
    return value


def _kept(computation: Computation, kept: Value) -> Entry | None:
    """What is kept for each step, where it is put in at one place alone, once in each pass of a loop."""
    found = []
    if isinstance(kept, Many):
        puts = [one for one in computation.users(kept) if one.op == "append"]
        found = [Entry(puts[0].args[1], None, puts[0])] if len(puts) == 1 and len(kept.parts) == 1 else []
    else:
        waiting, seen = [kept], {id(kept)}
        while waiting and len(seen) < 60:
            at = waiting.pop()
            for user in computation.users(at):
                if id(user) not in seen and (user.op == "either" or (user.op in ("set_item", "to") and user.args[0] is at)):
                    seen.add(id(user))
                    waiting.append(user)
                    found += [Entry(user.args[2], user.args[1], user)] if user.op == "set_item" and len(user.args) == 3 else []
    places = {id(one.put.node) for one in found}
    return found[-1] if found and len(places) == 1 and found[-1].put.where.loops else None


def _told(computation: Computation, one: Backup) -> Entry | None:
    """Where the reward, or what it is a part of, is put into a list of which a sum takes each as it stands."""
    start = bare(one.reward)
    waiting, seen, read = [start], {id(start)}, {id(each) for each in origins(one.whole)}
    while waiting and len(seen) < 60:
        at = waiting.pop()
        for user in computation.users(at):
            if user.op == "append" and user.args[1] is at and user.where.loops and id(user.args[0]) in read:
                return Entry(at, None, user)
            if id(user) not in seen and id(user) in read and (user.op in ("add", "sub", "mul", "clamp") or bare(user) is bare(at)):
                seen.add(id(user))
                waiting.append(user)
    return None


def _of_one_step(one: Entry, other: Entry) -> bool:
    """Whether two entries are kept for the same step: put in by one loop, at the same number, or each at the end of a list."""
    if one.put.where.loops != other.put.where.loops or (one.step is None) != (other.step is None):
        return False
    return one.step is None or other.step is None or _is_same(one.step, other.step)


def _is_same(one: Value, other: Value) -> bool:
    if isinstance(one, Many) and isinstance(other, Many):
        return len(one.parts) == len(other.parts) and all(_is_same(a, b) for a, b in zip(one.parts, other.parts, strict=True))
    return one is other or same(one, other)


def _flag(value: Value) -> Value:
    """A flag, before it is only converted."""
    return bare(value, "builtins.float", "builtins.bool", "builtins.int", "bool")


def _begin(computation: Computation, put: Value) -> int:
    """The place in the order of all values at which the last pass of the loop around one begins."""
    loop = put.where.loops[-1]
    begins = [at for at, node, _ in computation.passes if node is loop and at <= put.number]
    return begins[-1] if begins else put.number
