"""Collectives of all ranks, matched: which calls do not fit each other, and who waits for whom.

Calls belong together by process group and sequence number, which torch counts alike on every rank that
is in step. Works on rows that were written before the backend was entered, so it says the same of a job
that gloo aborted a second later. Pure. Standard library only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from probe.diagnose import states
from probe.diagnose.ranks.rank_evidence import DONE, Call, Facts

SAME_SIZE = frozenset({"all_reduce", "broadcast", "reduce", "reduce_scatter", "reduce_scatter_tensor"})
"""Operations whose input has one size and one dtype on all ranks. Gathers may be uneven by design."""
_Content = tuple[str | None, str | None, int | None, str | None]


@dataclass(frozen=True)
class Mismatch:
    """Calls with one group and number that do not fit. `culprits` deviate; `sure` when something says so
    beyond their being the fewer."""

    state: str
    calls: dict[int, Call]
    culprits: tuple[int, ...]
    sure: bool
    others: int
    """A rank that called what was due."""


@dataclass(frozen=True)
class Wait:
    """A rank inside a call, and the ranks that it needs and that are not in it. `call` is None when it is
    seen to wait and no row says in what (C++ called it)."""

    rank: int
    call: Call | None
    needs: frozenset[int]


# What does not fit -------------------------------------------------------------


def mismatch(ranks: Sequence[Facts]) -> Mismatch | None:
    """The earliest calls that do not fit each other; None when all do, as far as rows go back."""
    by_number: dict[tuple[str, int], dict[int, Call]] = defaultdict(dict)
    for facts in ranks:
        for call in facts.calls:
            if call.pg is not None and call.seq is not None and not call.point_to_point:
                by_number[call.pg, call.seq][facts.rank] = call
    for number in sorted(by_number, key=lambda one: min(call.t_ns for call in by_number[one].values())):
        calls = by_number[number]
        if len({_content(call) for call in calls.values()}) > 1:
            found = _unfit(ranks, calls) or _swapped(calls, by_number.get((number[0], number[1] + 1), {}))
            if found is not None:
                return found
    return None


def _unfit(ranks: Sequence[Facts], calls: dict[int, Call]) -> Mismatch | None:
    """What does not fit about calls of one number."""
    ops = {call.op for call in calls.values()}
    if len(ops) > 1:
        if all(call.state == DONE for call in calls.values()):
            return None  # it went through: two names of one operation
        return _mismatch(ranks, calls, states.OP_MISMATCH)
    if not ops <= SAME_SIZE:
        return None
    if len({call.elements for call in calls.values()}) > 1:
        return _mismatch(ranks, calls, states.SIZE_MISMATCH)
    if len({call.dtype for call in calls.values()}) > 1:
        return _mismatch(ranks, calls, states.DTYPE_MISMATCH)
    return None


def _content(call: Call) -> _Content:
    return call.op, call.dtype, call.elements, call.call_site


def _mismatch(ranks: Sequence[Facts], calls: dict[int, Call], state: str) -> Mismatch:
    """Who deviates: the fewer; where they are as many, who did what no rank did before at this place.

    What deviates and is yet usual elsewhere in the loop came at the wrong moment: a matter of order."""
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
    """How often each content was called before in the same group, and each after which other."""
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
    """How usual a rank's call is after the one before it, and at all."""
    call = calls[rank]
    own = next(facts for facts in ranks if facts.rank == rank)
    before = [one for one in own.calls if one.pg == call.pg and one.seq == (call.seq or 0) - 1]
    after = follows[_content(before[-1]), _content(call)] if before else 0
    return after, usual[_content(call)]


def _swapped(calls: dict[int, Call], following: dict[int, Call]) -> Mismatch | None:
    """The same two calls, of one size, in the other order: nothing fails and the values are mixed up."""
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


# Who waits for whom ------------------------------------------------------------


def waits(ranks: Sequence[Facts]) -> dict[int, Wait]:
    """By rank, what it is blocked in. Ranks that are not blocked in a call are not in it."""
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


_NOT_WAITING = frozenset({
    states.STOPPED, states.TRACED, states.HOLDS_GIL, states.WAITING_FOR_DATA, states.CHECKPOINT,
    states.EVALUATION, states.PAUSED, states.ACTED_ON, states.DEADLOCK, states.SWAPPING, states.STARVED,
    states.UNINTERRUPTIBLE, states.IDLE, states.HELD,
})
"""What was seen of a rank outweighs a row that says it is in a call: it is not there, or cannot go on."""


def _seen_waiting(facts: Facts) -> bool:
    return facts.verdict is not None and facts.verdict.state == states.IN_COLLECTIVE


def blocked_in(facts: Facts) -> Call | None:
    """The call that a rank is in and cannot leave; None when it is in none, or not known to be."""
    call = facts.pending
    if facts.killed:  # it gave up waiting: that call is what it waited in
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
    """Whether a rank entered the collective; without a number, whether it is in one of the same group."""
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
    """Ranks that others wait for and that wait for nobody, the most waited for first; and, where there are
    none, the ranks that wait for each other in a circle."""
    counted: Counter[int] = Counter()
    for rank in found:
        for target in _reached(rank, found):
            if target not in found or not found[target].needs:
                counted[target] += 1
    missing = sorted(counted, key=lambda rank: (-counted[rank], rank))
    missing = [rank for rank in missing if rank not in found]  # who is in a complete call keeps nobody
    circle = sorted(rank for rank in found if rank in _reached(rank, found))
    return missing, [] if missing else circle


def _reached(rank: int, found: dict[int, Wait]) -> set[int]:
    """Everybody it waits for, directly or through others."""
    seen: set[int] = set()
    ahead = list(found[rank].needs)
    while ahead:
        one = ahead.pop()
        if one not in seen:
            seen.add(one)
            ahead += found[one].needs if one in found else ()
    return seen
