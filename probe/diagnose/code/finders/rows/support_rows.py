"""Few-shot episodes: what is learned from, and what is asked about. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    KEPT,
    SHAPED,
    Many,
    Value,
    bare,
    constant,
    is_none,
    number,
    same,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import short, text_of
from probe.diagnose.code.traits.updates import never_both, runs

_ORDERS = ("randperm", "permutation")
_NUMBERS = ("randint", "integers")
_SUBSETS = ("sample", "choice", "choices", *_NUMBERS, *_ORDERS)
_LIBRARIES = ("random.", "numpy.random.", "torch.")
_EPISODES = re.compile(r"support|query|queries|shot|spt|qry|episod", re.IGNORECASE)
"""What the code of episodes says, in one of its names."""
_USED = frozenset({"part", "tuple", "list", "append", "element", "sorted", "len", "index_select", "enumerate", "t"})
"""What is done with rows that are drawn, and leaves none out."""


class Draw(NamedTuple):
    """Rows that are drawn: out of what, and whether one may be drawn again; the values that hold them."""

    value: Value
    pool: Value
    again: bool
    held: list[Value]


def support_in_the_query(program: Program) -> Iterator[Remark]:
    """The rows that an episode learns from and those that it is asked about may be the same: both are drawn from all rows of
    a class, or from one draw that may draw a row again."""
    computation = computation_of(program)
    draws = [found for one in computation.of(*_SUBSETS) if _in_an_episode(computation, one) and (found := _drawn(computation, one)) is not None]
    for draw in draws:
        parts = _two_parts(computation, draw) if draw.again else None
        if parts is not None:
            yield Remark(draw.value.node, f"{short(draw.value.node)} may draw a row more than once, and {short(parts[0].node)} and {short(parts[1].node)} are parts of it: a row may be in both")
            return
    for one, other in combinations(draws, 2):
        if _of_the_same(computation, one, other):
            again = "" if one.value.node is not other.value.node else " once more"
            yield Remark(other.value.node, f"{short(other.value.node)} draws{again} from the rows that {short(one.value.node)} (line {one.value.line}) draws from, and leaves out none that it has drawn: a row may be in both")
            return


def _in_an_episode(computation: Computation, value: Value) -> bool:
    """Whether a value is computed for each of several classes that are drawn at random, in code that says it is about episodes."""
    if not value.where.loops or not any(_EPISODES.search(text_of(one)) for one in (*value.where.functions[-2:], value.where.loops[-1])):
        return False
    return any(loop in value.where.loops and _are_drawn(over) for begins, loop, over in computation.passes if begins <= value.number)


def _are_drawn(over: Value) -> bool:
    return _inside(over).op in _SUBSETS


def _inside(over: Value) -> Value:
    while over.args and (over.op in ("enumerate", "zip", "sorted", "part") or over.op in KEPT):
        over = over.args[0]
    return over


def _classes(computation: Computation, value: Value) -> list[Value]:
    """The classes that were drawn at random for the episode that a value is of."""
    found = [[over for begins, node, over in computation.passes if node is loop and begins <= value.number][-1:] for loop in value.where.loops]
    return [_inside(over) for overs in found for over in overs if _are_drawn(over)]


def _drawn(computation: Computation, value: Value) -> Draw | None:
    """The draw of several rows that a value is; None if it is none, or draws one row."""
    if not isinstance(value.node, ast.Call):
        return None
    library = computation.program.called(value.node).startswith(_LIBRARIES)
    args = value.args if library else value.args[1:]
    size = value.named.get("k") or value.named.get("size") or (args[-1] if value.op in _NUMBERS and args else args[1] if len(args) > 1 else None)
    held = [value, *(one for one in computation.values if isinstance(one, Many) and one.node is value.node and one.where == value.where)]
    if value.op in _ORDERS:
        cut = [user for one in held for user in computation.users(one)]
        return Draw(value, args[0], False, [*held, *cut]) if args and cut and all(user.op == "part" and user.args[1].op == "slice" for user in cut) else None
    if not args or size is None or number(size) == 1 or is_none(size):
        return None
    if value.op in _NUMBERS:
        many = isinstance(size, Many) and len(size.parts) == 1 and number(size.parts[0]) != 1
        return Draw(value, args[-2] if "size" not in value.named else args[-1], True, held) if (many and len(args) > 1) or "size" in value.named else None
    replaced = value.named.get("replace") or (args[2] if len(args) > 2 else None)
    again = value.op == "choices" or (value.op == "choice" and (replaced is None or constant(replaced) is True))
    return Draw(value, args[0], again, held)


def _two_parts(computation: Computation, draw: Draw) -> tuple[Value, Value] | None:
    """Two parts of one draw, of which one begins where the other ends, that both take rows of one thing."""
    parts = [user for one in draw.held for user in computation.users(one) if user.op == "part" and user.args[0] is one and user.args[1].op == "slice"]
    for first in parts:
        for second in parts:
            if is_none(first.args[1].args[1]) or is_none(second.args[1].args[0]) or not same(first.args[1].args[1], second.args[1].args[0]):
                continue
            if _of_one_thing(computation, draw.pool, [first], [second]):
                return first, second
    return None


def _of_one_thing(computation: Computation, pool: Value, some: list[Value], others: list[Value]) -> bool:
    """Whether two lists of what is drawn from a pool are rows of one thing: of the pool, or by their numbers."""
    bases = [[value.args[0] for value in _taken(computation, each) if value.op in ("part", "index_select") and value not in each and value.args[1].op != "slice"] for each in (some, others)]
    if not bases[0] and not bases[1]:
        return isinstance(pool, Many) or bare(pool).op not in ("len", "range", "@constant", "size", "arange", "index", "@input", "shape")
    return any(a is b or same(a, b) for a in bases[0] for b in bases[1])


def _of_the_same(computation: Computation, one: Draw, other: Draw) -> bool:
    """Whether two draws may have rows in common, and the second does not look at the first."""
    if one.value.where.loops != other.value.where.loops or runs(one.value) != runs(other.value) or never_both(one.value, other.value):
        return False
    if any(first is not second for first, second in zip(_classes(computation, one.value), _classes(computation, other.value), strict=False)):
        return False  # Two episodes.
    if not same(one.pool, other.pool) or _leaves_out(computation, one) or _leaves_out(computation, other):
        return False
    if not _of_one_thing(computation, one.pool, one.held, other.held):
        return False
    lists = [{id(user.args[0]) for value in _taken(computation, each.held) for user in computation.users(value) if user.op == "append"} for each in (one, other)]
    return not (lists[0] & lists[1])


def _leaves_out(computation: Computation, draw: Draw) -> bool:
    """Whether rows that are drawn are compared with others, or handed on to what is not known."""
    return any(user.op not in _USED and user.op not in KEPT and user.op not in SHAPED and user.op not in ("cat", "stack") for one in draw.held for user in computation.users(one))


def _taken(computation: Computation, held: list[Value]) -> Iterator[Value]:
    """The rows that are taken by numbers, and those numbers."""
    waiting, seen = [*held], {id(one) for one in held}
    while waiting:
        at = waiting.pop()
        yield at
        for user in computation.users(at):
            goes_on = user.op in ("tuple", "list", "element") or user.op in KEPT or (user.op == "part" and (user.args[1] is at or at.op != "part")) or user.op == "index_select"
            if goes_on and id(user) not in seen and not (isinstance(user, Many) and user.grown):
                seen.add(id(user))
                waiting.append(user)
