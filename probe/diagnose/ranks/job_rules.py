"""Job rules: the verdict on a multi-rank job: which rank is the cause, which ranks only wait or fail with it.

Rules in a fixed order, the first match decides: mismatched calls; the rank that died first; the rank that the
others wait for; the rank that is slower than the others; else the state of the worst rank. Pure: the same
facts give the same verdict. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from probe.base import rank_sets
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process import wording
from probe.diagnose.ranks import deaths, stragglers
from probe.diagnose.ranks.collective_order import Mismatch, Wait, mismatch, roots, waits
from probe.diagnose.ranks.rank_evidence import Call, Facts
from probe.diagnose.ranks.slower import slower
from probe.diagnose.states import ALARM, NOTICE, OK

OWN_CAUSE = states.HELD_UP | {states.SLOW_STEP, states.BUSY, states.WARM_UP}
"""States of a rank that explain why the others wait for it; they become the state of the job."""
_MOST_LINES = 8


def diagnose_job(ranks: Sequence[Facts], missing: Sequence[str] = ()) -> Finding:
    """The verdict on all ranks of a job, of which at least one is known. `missing`: lines about missing
    information, such as hosts that do not answer."""
    known = sorted(ranks, key=lambda facts: facts.rank)
    for rule in RULES:
        found = rule(known)
        if found is not None:
            return _with_missing(found, known, missing)
    return _with_missing(_fine(known), known, missing)


def _with_missing(found: Finding, ranks: list[Facts], missing: Sequence[str]) -> Finding:
    absent = set(range(ranks[0].world_size)) - {facts.rank for facts in ranks}
    lines = list(missing)
    if absent and not missing:
        whom = rank_sets.named(absent)
        lines.append(f"there is no information about {whom}: not recorded, or on a host that does not answer")
    return replace(found, why=[*found.why, *lines])


# Mismatched calls --------------------------------------------------------------

_FIT = {
    states.OP_MISMATCH: "called a different collective",
    states.SIZE_MISMATCH: "passed a tensor of a different size",
    states.DTYPE_MISMATCH: "passed a tensor of a different dtype",
    states.ORDER_MISMATCH: "called the collectives in a different order",
}


def _mismatched(ranks: list[Facts]) -> Finding | None:
    found = mismatch(ranks)
    if found is None:
        return None
    first = found.culprits[0]
    ours, due = found.calls[first], found.calls[found.others]
    what = (
        f"{rank_sets.named(found.culprits)} {_FIT[found.state]} at #{ours.seq:,} of "
        f"{_group(ours)}: {_call_text(found.state, ours)} against {_call_text(found.state, due)}"
    )
    if not found.sure:
        what += "; it is not certain which of the two is wrong"
    lines = [
        f"rank {rank}: {call.op} of {call.content}, called at {call.place}, {call.state}"
        for rank, call in _shown_calls(found)
    ]
    lines += _ends(ranks)
    return Finding(found.state, ALARM, what, lines, _next(ranks, first, calls=ours), found.culprits)


def _shown_calls(found: Mismatch) -> list[tuple[int, Call]]:
    """The culprits' calls, then some of the others'."""
    ordered = sorted(found.calls.items(), key=lambda one: (one[0] not in found.culprits, one[0]))
    return ordered[:_MOST_LINES]


def _group(call: Call) -> str:
    return "the default group" if call.pg in (None, "0") else f"group {call.pg} (ranks {call.ranks})"


def _short(place: str) -> str:
    """A place without its folders."""
    return place.rpartition("/")[2]


def _call_text(state: str, call: Call) -> str:
    """What distinguishes a call from the expected one."""
    where = f"at {_short(call.place)}"
    if state in (states.SIZE_MISMATCH, states.DTYPE_MISMATCH):
        return f"{call.op} of {call.content} {where}"
    return f"{call.op} {where}"


# Missing ranks -------------------------------------------------


def _hang(ranks: list[Facts]) -> Finding | None:
    if not any(facts.killed or facts.off for facts in ranks):
        return None
    waiting = waits(ranks)
    if not waiting:
        return None
    missing, circle = roots(waiting)
    if missing:
        return _missing_rank(ranks, waiting, missing)
    if circle:
        return _circle(ranks, waiting, circle)
    return _complete(ranks, waiting)


def _missing_rank(ranks: list[Facts], waiting: dict[int, Wait], missing: list[int]) -> Finding | None:
    by_rank = {facts.rank: facts for facts in ranks}
    first = min(missing, key=lambda rank: _suspicion(by_rank.get(rank)))
    culprits = tuple(sorted(rank for rank in missing if _suspicion(by_rank.get(rank))[0]
                            == _suspicion(by_rank.get(first))[0]))
    culprit = by_rank.get(first)
    wait = _wait_for(first, waiting)
    victims = sorted(rank for rank in waiting if rank not in culprits)
    joined = _not_joined(culprits, wait, [waiting[rank] for rank in victims])
    state, severity = states.MISSING_RANK, _severity(ranks, waiting)
    if culprit is not None and culprit.killed:
        return None  # the rules on deaths report it
    if culprit is None:  # it may be in the call, or gone
        state = states.UNKNOWN
        unknown = f"there is no information about {rank_sets.named(culprits)}"
        what = f"{_waiting(wait, waiting)}; the reason is unknown: {unknown}"
    elif culprit.state == "finished":
        what = f"{joined}: rank {first} has finished ({culprit.how}), at {deaths.step(culprit)}"
    else:
        verdict = culprit.verdict
        if verdict is not None and verdict.state in OWN_CAUSE:
            state = verdict.state
            what = f"rank {first}: {verdict.what}; {joined}"
        else:
            what = f"{joined}{_instead(culprit)}"
        if _works(culprit):
            severity = NOTICE
    lines = _culprit_lines(culprit)
    lines += [_wait_line(by_rank[rank], waiting[rank]) for rank in victims[:_MOST_LINES]]
    return Finding(state, severity, what, lines, _next(ranks, first), culprits)


def _works(culprit: Facts) -> bool:
    """Whether it will join by itself: its activity is known to take long, or its training thread writes rows
    (an evaluation, whose batches arrive)."""
    verdict = culprit.verdict
    if verdict is not None and verdict.state in states.JOINS_LATER:
        return verdict.severity != ALARM
    return culprit.gets_on and (verdict is None or verdict.severity == OK)


def _suspicion(facts: Facts | None) -> tuple[int, float]:
    """Sort key of missing ranks: first ranks whose own state is an alarm, then the longest quiet, then
    unknown ones."""
    if facts is None:
        return 2, 0.0
    verdict = facts.verdict
    convicted = (verdict is not None and verdict.severity == ALARM) or not facts.lives
    return (0 if convicted else 1), -(facts.quiet_s or 0.0)


def _wait_for(rank: int, waiting: dict[int, Wait]) -> Wait:
    """The first wait that needs the rank directly, preferring waits whose call is known."""
    direct = [wait for wait in waiting.values() if rank in wait.needs]
    return min(direct, key=lambda wait: (wait.call is None, wait.call.t_ns if wait.call else 0))


def _waiting(wait: Wait, waiting: dict[int, Wait]) -> str:
    """`ranks 0,2 wait in all_reduce #41 (default group)`."""
    ranks = sorted(one.rank for one in waiting.values() if one is wait or _same_call(one, wait))
    name = "backward (gradient averaging)" if wait.call is None else wait.call.name
    return f"{rank_sets.named(ranks)} {wording.verb(ranks, 'waits', 'wait')} in {name}"


def _same_call(one: Wait, other: Wait) -> bool:
    if one.call is None or other.call is None:
        return one.call is other.call
    return (one.call.pg, one.call.seq) == (other.call.pg, other.call.seq)


def _not_joined(culprits: Sequence[int], wait: Wait, waiting: Iterable[Wait]) -> str:
    """`rank 1 never joined all_reduce #54,611 (default group); ranks 0,2-3 wait in it`."""
    whom = rank_sets.named(culprits)
    victims = [one.rank for one in waiting if one is wait or (wait.call and _same_call(one, wait))]
    wait_verb = wording.verb(victims, "waits", "wait")
    if wait.call is None:
        victims = [one.rank for one in waiting]
        wait_verb = wording.verb(victims, "waits", "wait")
        return f"{rank_sets.named(victims)} {wait_verb} for {whom} in backward (gradient averaging)"
    if wait.call.point_to_point:
        other = "received" if "send" in (wait.call.op or "") else "sent"
        return f"{whom} never {other}; {rank_sets.named(victims)} {wait_verb} in {wait.call.name}"
    return f"{whom} never joined {wait.call.name}; {rank_sets.named(victims)} {wait_verb} in it"


def _instead(culprit: Facts) -> str:
    """Text for where the culprit is instead."""
    where = f" in {culprit.frame}" if culprit.frame else ""
    phase = f", phase {culprit.phase}" if culprit.phase and culprit.phase != "other" else ""
    return f": rank {culprit.rank} is{where or ' elsewhere'}{phase}" if where or phase else ""


def _culprit_lines(culprit: Facts | None) -> list[str]:
    if culprit is None:
        return []
    lines = []
    if culprit.verdict is not None:
        lines.append(f"{culprit.name}: {culprit.verdict.what}")
        lines += culprit.verdict.why[:4]
    else:
        lines.append(f"{culprit.name}: {culprit.how or culprit.state}, {culprit.line()}")
    if culprit.last_call is not None:
        lines.append(f"its last collective: {deaths.last_call(culprit)}")
    return lines


def _wait_line(facts: Facts, wait: Wait) -> str:
    if wait.call is None:
        inside = "in backward (gradient averaging), according to its stack"
    else:
        inside = f"in {wait.call.name}, called at {wait.call.place}"
    gave_up = f"; it {deaths.how(facts)}" if facts.killed else ""
    return f"{facts.name} waits {inside}; {facts.line()}{gave_up}"


def _circle(ranks: list[Facts], waiting: dict[int, Wait], circle: list[int]) -> Finding:
    """The verdict on ranks that wait for each other: calls in different orders, or a missing send or
    receive."""
    calls = {rank: call for rank in circle if (call := waiting[rank].call) is not None}
    said = "; ".join(
        f"rank {rank} is in {call.name} at {_short(call.place)}" for rank, call in list(calls.items())[:4]
    )
    by_rank = {facts.rank: facts for facts in ranks}
    lines = [_wait_line(by_rank[rank], waiting[rank]) for rank in list(waiting)[:_MOST_LINES]]
    severity = _severity(ranks, waiting)
    left_out = _left_out(calls)
    if left_out is not None:
        wait = next(
            wait for wait in waiting.values()
            if left_out in wait.needs and wait.call is not None and wait.call.point_to_point
        )
        what = f"{_not_joined([left_out], wait, [wait])} but has moved on: {said}"
        return Finding(states.MISSING_RANK, severity, what, lines, _next(ranks, left_out), (left_out,))
    culprits = _against_the_order(ranks, calls)
    lines.append("all ranks of a group must call its collectives in the same order")
    what = f"{rank_sets.named(circle)} wait for each other: {said}"
    return Finding(states.ORDER_MISMATCH, severity, what, lines, _next(ranks, culprits[0]), culprits)


def _left_out(calls: dict[int, Call]) -> int | None:
    """A rank that others wait for in a send or receive while it is in a collective: it skipped that call."""
    for call in calls.values():
        there = calls.get(call.peer) if call.point_to_point and call.peer is not None else None
        if there is not None and not there.point_to_point:
            return call.peer
    return None


def _against_the_order(ranks: Sequence[Facts], calls: dict[int, Call]) -> tuple[int, ...]:
    """Of ranks that wait for each other in different groups, those whose order of calls is new; all of them
    if that is not conclusive."""
    before: set[tuple[object, ...]] = set()
    last: dict[int, tuple[object, ...]] = {}
    for facts in ranks:
        keys = [(call.pg, call.op, call.call_site) for call in facts.calls]
        pairs = list(pairwise(keys))
        if facts.rank in calls and pairs:
            last[facts.rank] = pairs.pop()
        before.update(pairs)
    unusual = tuple(rank for rank in sorted(calls) if rank in last and last[rank] not in before)
    return unusual if unusual and len(unusual) < len(calls) else tuple(sorted(calls))


def _complete(ranks: list[Facts], waiting: dict[int, Wait]) -> Finding | None:
    """The verdict on a call from which no rank is missing, but which does not complete. Blames the network
    only if every member is seen in the call."""
    named = [wait for wait in waiting.values() if wait.call is not None]
    if not named or any(facts.killed for facts in ranks) or _severity(ranks, waiting) != ALARM:
        return None
    by_rank = {facts.rank: facts for facts in ranks}
    call = named[0].call
    assert call is not None
    inside = {rank for rank, wait in waiting.items() if wait is named[0] or _meets(wait, named[0])}
    members = {named[0].rank, call.peer} if call.point_to_point else call.members(ranks[0].world_size)
    lines = [_wait_line(by_rank[rank], wait) for rank, wait in list(waiting.items())[:_MOST_LINES]]
    unseen = sorted(rank for rank in members if rank is not None and rank not in inside)
    if unseen or None in members:
        others = [by_rank[rank] for rank in unseen if rank in by_rank]
        lines = [*(f"{one.name}: {one.line()}{_instead(one)}" for one in others[:_MOST_LINES]), *lines]
        what = f"{_waiting(named[0], waiting)}; the reason is unknown: "
        what += f"{rank_sets.named(unseen)} not seen in it" if unseen else "the other rank is not known"
        return Finding(states.UNKNOWN, ALARM, what, lines, _next(ranks, min(waiting)))
    said = f"{rank_sets.named(inside)} {wording.verb(inside, 'is', 'are')} in {call.name}"
    what = f"{said}, and it does not complete: check the network and the NCCL or gloo settings"
    return Finding(states.IN_COLLECTIVE, ALARM, what, lines, _next(ranks, min(waiting)))


def _meets(one: Wait, other: Wait) -> bool:
    """Whether two waits are in the same call, or are a matching send and receive."""
    if one.call is None or other.call is None:
        return False
    if other.call.point_to_point:
        return one.call.point_to_point and one.rank == other.call.peer and one.call.peer in (other.rank, None)
    return not one.call.point_to_point and _same_call(one, other)


def _severity(ranks: Sequence[Facts], waiting: dict[int, Wait]) -> str:
    """Alarm if a rank has waited too long or has failed, else notice."""
    for facts in ranks:
        looked = facts.verdict is not None and facts.verdict.severity == ALARM
        if facts.killed or (looked and facts.lives) or (facts.rank in waiting and facts.is_late):
            return ALARM
    return NOTICE


# Other verdicts ---------------------------------------------------------------------

_WORST = (ALARM, NOTICE, OK)


def _alone(ranks: list[Facts]) -> Finding | None:
    """The verdict on ranks with a problem of their own, while no other rank waits for them yet."""
    worst = sorted(
        (one for one in ranks if one.verdict is not None and one.lives and one.verdict.severity != OK),
        key=lambda facts: (_WORST.index(facts.verdict.severity), facts.rank),  # type: ignore[union-attr]
    )
    if not worst:
        return None
    first = worst[0].verdict
    assert first is not None
    same = [facts.rank for facts in worst if facts.verdict is not None and facts.verdict.state == first.state]
    lines = [f"{facts.name}: {facts.verdict.what}" for facts in worst[:_MOST_LINES] if facts.verdict]
    culprits = tuple(same) if len(same) < len(ranks) else ()
    what = f"{rank_sets.named(same)}: {first.what}"
    return Finding(first.state, first.severity, what, [*lines, *first.why], first.next, culprits)


def _fine(ranks: list[Facts]) -> Finding:
    living = [facts for facts in ranks if facts.lives]
    lines = [f"{facts.name}: {facts.how or facts.state}, {facts.line()}" for facts in ranks[:_MOST_LINES]]
    if not living:
        last = max((facts.step for facts in ranks if facts.step is not None), default=None)
        at = f", at step {last:,}" if last is not None else ""
        return Finding(states.FINISHED, OK, f"all {len(ranks)} ranks have finished{at}", lines)
    steps = [facts.step for facts in living if facts.step is not None]
    usual = [facts.usual_step_s for facts in living if facts.usual_step_s is not None]
    state = states.RUNNING if steps else states.IDLE
    what = f"{len(living)} ranks run"
    if steps:
        what += f", at step {max(steps):,}"
    if usual:
        what += f"; a step usually takes {wording.seconds(max(usual))}"
    pause = stragglers.last_pause(living)
    if pause is not None:
        lines.append(
            f"at step {pause.step:,} the other ranks waited {wording.seconds(pause.excess_s)} for rank "
            f"{pause.rank} (in phase {pause.phase}), once"
        )
    return Finding(state, OK, what, lines)


RULES: tuple[Callable[[list[Facts]], Finding | None], ...] = (
    _mismatched, deaths.cause, _hang, deaths.left_early, deaths.first_of_all, slower, _alone,
)
"""The rules in order: the first that finds something decides."""


# Evidence and commands --------------------------------------------------------------


def _ends(ranks: Sequence[Facts]) -> list[str]:
    """Lines on how ranks ended because of the mismatch."""
    return [f"{facts.name} then {deaths.how(facts)}" for facts in ranks if facts.killed][:_MOST_LINES]


def _next(ranks: Sequence[Facts], rank: int, calls: Call | None = None) -> list[str]:
    job = ranks[0].job
    found = [f"probe {job}/{rank} backtrace --workers", f"probe {job} backtrace"]
    if calls is not None:
        found.append(
            f'probe {job} query "SELECT rank, op, dtype, shapes, call_site, state FROM python.collectives '
            f"WHERE pg = '{calls.pg}' AND seq = {calls.seq} ORDER BY rank\""
        )
    return found
