"""Matches the collectives of all ranks: which calls mismatch, and which rank waits for which.

Calls are matched by process group and sequence number, which torch counts identically on all ranks. The rows
are written before the backend is entered, so they exist even if gloo aborts the job a second later. Pure.
Standard library only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

from probe.diagnose import states
from probe.diagnose.ranks.rank_evidence import DONE, Call, Facts

SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce", "reduce_scatter", "reduce_scatter_tensor"})
"""Operations whose input must have the same size and dtype on all ranks. Gathers may be uneven by design."""
_Content = tuple[str | None, str | None, int | None, str | None]
_content: Callable[[Call], _Content] = attrgetter("op", "dtype", "elements", "call_site")
"""Compiled, since the watch compares thousands of calls each time."""


@dataclass(frozen=True)
class Mismatch:
    """Calls of one group and sequence number that do not match. `culprits`: the ranks that deviate; `sure`:
    the evidence is better than a tie."""

    state: str
    calls: dict[int, Call]
    culprits: tuple[int, ...]
    sure: bool
    others: int
    """A rank whose call was the expected one."""


@dataclass(frozen=True)
class Wait:
    """A rank inside a call, and the ranks that have not entered it. `call` is None if only the rank's stack
    shows that it waits (C++ issued the call)."""

    rank: int
    call: Call | None
    needs: frozenset[int]


# Mismatches -------------------------------------------------------------


def mismatch(ranks: Sequence[Facts]) -> Mismatch | None:
    """The earliest mismatched calls; None if all recorded calls match."""
    by_number: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
    for facts in ranks:
        for call in facts.calls:
            if call.pg is not None and call.seq is not None and not call.point_to_point:
                by_number[call.pg, call.seq][facts.rank] = call
    unlike = [number for number, calls in by_number.items() if len(set(map(_content, calls.values()))) > 1]
    for number in sorted(unlike, key=lambda one: min(call.t_ns for call in by_number[one].values())):
        calls = by_number[number]
        found = _unfit(ranks, calls) or _swapped(calls, by_number.get((number[0], number[1] + 1), {}))
        if found is not None:
            return found
    return None


def _unfit(ranks: Sequence[Facts], calls: dict[int, Call]) -> Mismatch | None:
    """The mismatch among calls of one sequence number, if any."""
    ops = {call.op for call in calls.values()}
    if len(ops) > 1:
        if all(call.state == DONE for call in calls.values()):
            return None  # it completed: two names for one operation
        return _mismatch(ranks, calls, states.OP_MISMATCH)
    if not ops <= SAME_SIZE:
        return None
    if len({call.elements for call in calls.values()}) > 1:
        return _mismatch(ranks, calls, states.SIZE_MISMATCH)
    if len({call.dtype for call in calls.values()}) > 1:
        return _mismatch(ranks, calls, states.DTYPE_MISMATCH)
    return None


def _mismatch(ranks: Sequence[Facts], calls: dict[int, Call], state: str) -> Mismatch:
    """The culprits are the minority; in a tie, the ranks whose call is less usual at this point.

    If all these calls are usual elsewhere in the loop, their order is wrong."""
    usual, follows = _history(ranks, calls)
    sides: dict[_Content, list[int]] = defaultdict(list)
    for rank, call in calls.items():
        sides[(call.op, call.dtype, call.elements, None)].append(rank)
    most = max(map(len, sides.values()))
    largest = [side for side in sides.values() if len(side) == most]
    sure = len(largest) == 1
    if sure:
        due = largest[0]
    else:
        known = {side[0]: _known(ranks, calls, side[0], usual, follows) for side in largest}
        due = max(largest, key=lambda side: known[side[0]])
        sure = len(set(known.values())) > 1
    culprits = tuple(sorted(set(calls) - set(due)))
    if all(usual[_content(calls[rank])] for rank in culprits) and usual[_content(calls[due[0]])]:
        state = states.ORDER_MISMATCH
    return Mismatch(state, dict(sorted(calls.items())), culprits, sure, min(due))


def _history(
    ranks: Sequence[Facts], calls: dict[int, Call]
) -> tuple[Counter[_Content], Counter[tuple[_Content, _Content]]]:
    """How often each call was made before in the same group, and how often it followed each other call."""
    first = next(iter(calls.values()))
    usual: Counter[_Content] = Counter()
    follows: Counter[tuple[_Content, _Content]] = Counter()
    for facts in ranks:
        before = [
            _content(call) for call in facts.calls
            if call.pg == first.pg and call.seq is not None and call.seq < (first.seq or 0)
        ]
        usual.update(before)
        follows.update(pairwise(before))
    return usual, follows


def _known(
    ranks: Sequence[Facts], calls: dict[int, Call], rank: int, usual: Counter[_Content],
    follows: Counter[tuple[_Content, _Content]],
) -> tuple[int, int]:
    """How often a rank's call was made before: after its predecessor, and at all."""
    call = calls[rank]
    own = next(facts for facts in ranks if facts.rank == rank)
    before = [one for one in own.calls if one.pg == call.pg and one.seq == (call.seq or 0) - 1]
    after = follows[_content(before[-1]), _content(call)] if before else 0
    return after, usual[_content(call)]


def _swapped(calls: dict[int, Call], following: dict[int, Call]) -> Mismatch | None:
    """Two calls of equal size in opposite order on some ranks: nothing fails, but values get mixed up."""
    pairs = {
        rank: (call.call_site, following[rank].call_site)
        for rank, call in calls.items()
        if rank in following and call.op == following[rank].op and call.elements == following[rank].elements
    }
    for first, second in sorted(set(pairs.values()), key=str):
        along = [rank for rank, pair in pairs.items() if pair == (first, second)]
        against = [rank for rank, pair in pairs.items() if pair == (second, first)]
        if first and second and first != second and against:
            few, many = sorted((along, against), key=lambda side: (len(side), -min(side)))
            return Mismatch(
                states.ORDER_MISMATCH, {one: calls[one] for one in sorted(pairs)}, tuple(sorted(few)),
                len(few) < len(many), min(many),
            )
    return None


# Waits ------------------------------------------------------------


def waits(ranks: Sequence[Facts]) -> dict[int, Wait]:
    """The wait of each blocked rank."""
    by_rank = {facts.rank: facts for facts in ranks}
    inside = {facts.rank: call for facts in ranks if (call := blocked_in(facts)) is not None}
    unnamed = {
        facts.rank for facts in ranks
        if facts.rank not in inside and facts.lives and _seen_waiting(facts)
    }
    found = {
        rank: Wait(rank, call, _needs(rank, call, by_rank, inside, unnamed)) for rank, call in inside.items()
    }
    for rank in unnamed:
        everybody = range(by_rank[rank].world_size)
        others = {
            other for other in everybody
            if other != rank and other not in inside and other not in unnamed
        }
        found[rank] = Wait(rank, None, frozenset(others))
    return dict(sorted(found.items()))


_NOT_WAITING = states.HELD_UP | {states.IDLE}
"""In these states a rank is not waiting in a call, regardless of its last row."""


def _seen_waiting(facts: Facts) -> bool:
    return facts.verdict is not None and facts.verdict.state == states.IN_COLLECTIVE


def blocked_in(facts: Facts) -> Call | None:
    """The call in which a rank is blocked; None if there is none, or if unknown."""
    call = facts.pending
    if facts.killed:  # it waited in that call until it failed
        last = facts.last_call
        return last if last is not None and last.state != DONE else None
    if call is None or not facts.lives:
        return None
    if facts.verdict is not None and facts.verdict.state in _NOT_WAITING:
        return None
    certain = call.source == "call" and not call.asynchronous
    return call if certain or _seen_waiting(facts) else None


def _needs(
    rank: int, call: Call, by_rank: dict[int, Facts], inside: dict[int, Call], unnamed: Iterable[int]
) -> frozenset[int]:
    if call.point_to_point:
        return _needs_peer(rank, call, by_rank, inside)
    members = call.members(by_rank[rank].world_size) - {rank, *unnamed}
    return frozenset(
        member for member in members
        if member not in by_rank or not _joined(by_rank[member], call, inside.get(member))
    )


def _joined(facts: Facts, call: Call, inside: Call | None) -> bool:
    """Whether a rank entered the collective; without a sequence number, whether it is in one of the group."""
    if call.seq is None:
        return inside is not None and inside.pg == call.pg
    stands_still = facts.verdict is not None and facts.verdict.state in (states.STOPPED, states.TRACED)
    return facts.issued(call) and not stands_still


def _needs_peer(
    rank: int, call: Call, by_rank: dict[int, Facts], inside: dict[int, Call]
) -> frozenset[int]:
    """The other side of a send or receive, unless it is in the matching call."""
    if call.peer is None:
        everybody = call.members(by_rank[rank].world_size)
        return frozenset(other for other in everybody if other != rank and other not in inside)
    there = inside.get(call.peer)
    receives = "recv" in (call.op or "")
    meets = (
        there is not None and there.point_to_point and there.peer in (rank, None)
        and ("recv" in (there.op or "")) != receives
    )
    return frozenset() if meets else frozenset({call.peer})


def roots(found: dict[int, Wait]) -> tuple[list[int], list[int]]:
    """Ranks that others wait for and that do not wait themselves, sorted by the number of waiters; if there
    are none, the ranks that wait for each other in a cycle."""
    counted: Counter[int] = Counter()
    for rank in found:
        for target in _reached(rank, found):
            if target not in found or not found[target].needs:
                counted[target] += 1
    missing = sorted(counted, key=lambda rank: (-counted[rank], rank))
    missing = [rank for rank in missing if rank not in found]  # a rank in a complete call blocks nobody
    circle = sorted(rank for rank in found if rank in _reached(rank, found))
    return missing, [] if missing else circle


def _reached(rank: int, found: dict[int, Wait]) -> set[int]:
    """All ranks that a rank waits for, directly or through others."""
    seen: set[int] = set()
    ahead = list(found[rank].needs)
    while ahead:
        one = ahead.pop()
        if one not in seen:
            seen.add(one)
            ahead += found[one].needs if one in found else ()
    return seen
