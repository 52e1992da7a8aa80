"""Coordinated requests: every rank of a job acts before the same step, or none does. The server's side.

    prepare   every rank validates the request; if one refuses, it is dropped everywhere
    arm       every rank receives the agreed step, the first that all ranks can learn of in time
    open      all are armed: from now on the ranks decide by themselves, by the commit vote
    outcome   the result on each rank

The server may be killed at any point: a prepared request expires, and an armed rank waits at its step only if
the vote was opened. Each job has one such request at a time. Runs on the server's event loop; votes are files
in memory.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from probe.base import clock
from probe.base.commit_vote import EARLY, GO, STAY, CommitVote, Decision, remove_old
from probe.base.errors import (
    ActionFailed,
    AgentMissing,
    AgentUnreachable,
    HostUnreachable,
    NotTogether,
    ProbeError,
    ProcessDead,
    TooMany,
    from_dict,
)
from probe.base.rank_sets import named
from probe.server.agents import asking
from probe.server.hosts import agreed_step, vote_relay
from probe.server.hosts.agreed_step import Place
from probe.server.hosts.rank_group import RankGroup, Reply, ask_phase, by_text

LEAD_S = (0.4, 0.8, 1.6, 3.2)
"""How long before the agreed step all ranks must know it; longer in each retry."""
_PREPARE_S = 8.0
_LEAST_ACK_S, _MOST_ACK_S = 0.3, 3.0
_BUSY_S = 0.05
_ACTION_S = 120.0
"""Time for an action after its step: a large file on a slow disk."""
NOTHING = ". Nothing was changed on any rank"
_KEPT_S = 10.0
"""How long another host's vote stays after all its ranks have answered."""
_UNREACHABLE = (ProcessDead, AgentMissing, AgentUnreachable, HostUnreachable)


class Outcome(NamedTuple):
    """The result of one try. `replies` hold the agents' answers to the phase `outcome`."""

    name: str
    replies: list[Reply]
    go: Decision | None
    stay: Decision | None

    @property
    def too_early(self) -> bool:
        """Whether a rank learned of the step too late; the request is then retried."""
        return self.go is not None and not self.go.yes and self.go.why == EARLY


async def do_together(group: RankGroup, asked: dict[str, Any], wait_s: float) -> Outcome | None:
    """Run a request on every rank, or on none. None: it only reads, and was not run.

    Raises the refusal of all ranks, or `NotTogether`."""
    if group.found.missing:
        raise NotTogether("; ".join(group.found.missing), hint="`probe JOB ranks` lists the ranks.")
    deadline = time.monotonic() + wait_s
    for lead_s in LEAD_S:
        found = await _Try(group, asked, deadline).run(lead_s)
        if found is None or not found.too_early or time.monotonic() > deadline:
            break
    if found is not None:
        raise_unless_done(found)
    return found


class _Try:
    """One round of the four phases."""

    def __init__(self, group: RankGroup, asked: dict[str, Any], deadline: float) -> None:
        self._group = group
        self._asked = asked
        self._deadline = deadline
        self._settings = group.service.settings
        self._name = f"all-{secrets.token_hex(3)}"
        self._vote = CommitVote(group.service.registry.directory, self._name)
        self._questions: tuple[str, ...] = (GO,)

    async def run(self, lead_s: float) -> Outcome | None:
        """See `do_together`."""
        prepared = await self._prepare()
        told = [reply.answer or {} for reply in prepared]
        if all(one.get("reading") for one in told):
            await self._drop(prepared, "it only reads")
            return None
        if all(one.get("can_take_back") for one in told):
            self._questions = (GO, STAY)
        try:
            if not self._asked.get("wait_anyway"):
                _require_no_stall(prepared)
            agreed = agreed_step.agree(_places(prepared), lead_s, clock.wall_ns())
        except ProbeError as error:
            await self._drop(prepared, error.message)
            raise
        await self._group.service.call(remove_old, self._group.service.registry.directory)
        self._vote.make()
        steps = {str(rank): step for rank, step in agreed.steps.items()}
        ack_s = _MOST_ACK_S if agreed.in_s is None else agreed.in_s - _LEAST_ACK_S / 4
        if not await self._arm(steps, max(_LEAST_ACK_S, min(_MOST_ACK_S, ack_s))):
            await self._drop(prepared, EARLY)
        return await self._see_through()

    async def _prepare(self) -> list[Reply]:
        """Prepare it on every rank; if one refuses, drop it everywhere and raise the refusal."""
        while True:
            replies = await self._group.phase(self._phase("prepare", self._asked, _PREPARE_S))
            refused = [reply for reply in replies if reply.error is not None]
            if not refused:
                return replies
            busy = all(isinstance(reply.error, TooMany) for reply in refused)
            why = f"rank {refused[0].rank}: {_message(refused[0])}"
            await self._drop([reply for reply in replies if reply.error is None], why)
            if not busy or time.monotonic() > self._deadline:
                raise refusal(refused, len(replies))
            await asyncio.sleep(_BUSY_S)

    async def _arm(self, steps: dict[str, int], ack_s: float) -> bool:
        """Give every rank its step, and open the vote; returns whether all were told in time."""
        asked = {"hold_s": self._settings.rank_hold_s, "wait_s": max(0.1, self._left_s())}
        body = {**self._phase("arm", asked, _MOST_ACK_S), "steps": steps}
        try:
            replies = await asyncio.wait_for(self._group.phase(body), ack_s)
            late = any(reply.error is not None for reply in replies)
            if not late:
                await asyncio.gather(*(self._open(number) for number in range(len(self._group.hosts))))
        except (asyncio.TimeoutError, ProbeError):
            late = True
        if late:
            self._vote.cast(GO, False, EARLY)
            return False
        hosts = [vote_relay.member(number) for number in range(len(self._group.hosts))]
        self._vote.open([*(str(one.meta.rank) for one in self._group.here), *hosts])
        return True

    async def _open(self, number: int) -> None:
        met = self._group.hosts[number]
        await self._group.ask_host(met, self._phase("open", {"members": list(met.ranks)}, _MOST_ACK_S))

    async def _see_through(self) -> Outcome:
        """Wait for the outcome. If a rank becomes unreachable, vote no for the ranks that wait for it."""
        last_s = self._left_s() + self._settings.rank_hold_s
        joins = [
            asyncio.ensure_future(self._join(number, last_s)) for number in range(len(self._group.hosts))
        ]
        replies: list[Reply] = []
        body = self._phase("outcome", {"wait_s": last_s + _ACTION_S}, last_s + 2 * _ACTION_S)
        async for reply in self._group.phase_as_they_come(body):
            replies.append(reply)
            if isinstance(reply.error, _UNREACHABLE):
                self._vote.cast(GO, False, f"rank {reply.rank}: {reply.error.message}")
        for one in joins:
            one.cancel()
        go, stay = self._vote.decision(GO), self._vote.decision(STAY)
        if all(reply.answer is not None for reply in replies):
            self._vote.remove()  # else a rank may still have to read it
        return Outcome(self._name, sorted(replies, key=lambda reply: reply.rank), go, stay)

    async def _join(self, number: int, last_s: float) -> None:
        met = self._group.hosts[number]

        async def ask(phase: str, asked: dict[str, Any]) -> dict[str, Any]:
            return await self._group.ask_host(met, self._phase(phase, asked, last_s))

        until_s = time.monotonic() + last_s
        await vote_relay.join(
            self._vote, number, ask, self._questions, met.host.name, until_s
        )

    async def _drop(self, replies: Sequence[Reply], why: str) -> None:
        """Drop it on the ranks that have prepared it."""
        if replies:
            group = self._group.only([reply.rank for reply in replies])
            await group.phase(self._phase("drop", {"why": why}, _MOST_ACK_S))

    def _left_s(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _phase(self, phase: str, asked: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        return {"id": self._name, "phase": phase, "asked": asked, "timeout_s": timeout_s}


def _require_no_stall(prepared: Sequence[Reply]) -> None:
    """Raise `NoBoundary` if a rank is known to be stalled: all wait for it, or with it."""
    said = [(reply.rank, str(why)) for reply in prepared if (why := (reply.answer or {}).get("stalled"))]
    if said:
        raise asking.stalled("the job", _each(by_text(said)))


def _places(prepared: Sequence[Reply]) -> dict[int, Place]:
    found: dict[int, Place] = {}
    for reply in prepared:
        told = reply.answer or {}
        ends = [(int(step), int(t_ns)) for step, t_ns in told.get("ends") or ()]
        step = told.get("step")
        found[reply.rank] = Place(
            step if isinstance(step, int) else None, ends, bool(told.get("paused")),
            bool(told.get("from_start")),
        )
    return found


async def host_phase(group: RankGroup, body: dict[str, Any]) -> dict[str, Any]:
    """`POST /v1/together`: one phase for the ranks of this host, from another host's server."""
    directory, name, phase = group.service.registry.directory, str(body["id"]), body["phase"]
    if phase in ("open", "gather", "decide"):
        until_s = time.monotonic() + body["timeout_s"]
        return await vote_relay.answer(directory, name, phase, body["asked"], until_s)
    if phase == "arm":
        try:
            CommitVote(directory, name).make()
        except OSError as error:
            raise NotTogether(f"the vote cannot be created here: {error.strerror or error}") from None
    replies = await ask_phase(group.service, group.here, body)
    if phase == "outcome" and all(reply.answer is not None for reply in replies):
        # The other server still reads the decision here.
        asyncio.get_running_loop().call_later(_KEPT_S, vote_relay.remove, directory, name)
    return {"ranks": [reply.as_dict() for reply in replies]}


# Outcome ---------------------------------------------------------------------


def answers(outcome: Outcome) -> list[Reply]:
    """The answer or the error of each rank."""
    found: list[Reply] = []
    for reply in outcome.replies:
        told = reply.answer
        if told is None:
            found.append(reply)
        elif "error" in told:
            found.append(reply._replace(answer=None, error=from_dict(told, 500)))
        else:
            found.append(reply._replace(answer=told.get("answer") or {}))
    return found


def step_of(outcome: Outcome) -> int | None:
    """The step before which it was done, by the lowest rank's count."""
    steps = [reply.answer.get("step") for reply in outcome.replies if reply.answer is not None]
    return next((step for step in steps if isinstance(step, int)), None)


def refusal(refused: Sequence[Reply], of: int) -> ProbeError:
    """The error when ranks refuse: the common one if all do, else which ranks refuse and why."""
    said = by_text([(reply.rank, _message(reply)) for reply in refused])
    first = next(reply.error for reply in refused if reply.rank == said[0][0][0])
    assert first is not None
    if len(refused) == of and len({type(reply.error) for reply in refused}) == 1:
        text = said[0][1] if len(said) == 1 else _each(said)
        return type(first)(text, hint=first.hint)
    return NotTogether(f"{_each(said)}{NOTHING}", hint=first.hint)


def raise_unless_done(outcome: Outcome) -> None:
    """Raise why the request was not done on all ranks, if it was not."""
    go, stay = outcome.go, outcome.stay
    replies = answers(outcome)
    failed = [reply for reply in replies if reply.error is not None]
    if go is None or not go.yes:
        raise NotTogether(_not_done(outcome))
    if stay is None or stay.yes:
        return
    own = [reply for reply in failed if not isinstance(reply.error, NotTogether)]
    if len(own) == len(replies):
        raise refusal(own, len(replies))
    stuck = [reply for reply in own if isinstance(reply.error, ActionFailed) and stay.why in _message(reply)]
    if stuck:
        raise ActionFailed(f"{_each(by_text([(reply.rank, _message(reply)) for reply in stuck]))}")
    raise NotTogether(f"{stay.why}. Changes on other ranks were undone before step {step_of(outcome)}")


def _not_done(outcome: Outcome) -> str:
    """Why the request was cancelled, which other ranks are gone, and where the ranks are that did not reach
    the step. A killed rank cannot vote, and the first no may be of a rank that failed because of it."""
    why = outcome.go.why if outcome.go is not None else "the vote was not decided"
    where: list[tuple[int, str]] = []
    gone = [
        (reply.rank, _message(reply)) for reply in outcome.replies
        if isinstance(reply.error, _UNREACHABLE) and not why.startswith(f"rank {reply.rank}:")
    ]
    for reply in outcome.replies:
        told = reply.answer or {}
        if told.get("where") and not told.get("came"):
            where.append((reply.rank, str(told["where"])))
    detail = f" ({_each(by_text(where))})" if where else ""
    others = f"; {_each(by_text(gone))}" if gone else ""
    return f"{why}{detail}{others}{NOTHING}"


def _each(said: Sequence[tuple[list[int], str]]) -> str:
    return "; ".join(f"{named(ranks)}: {text}" for ranks, text in said)


def _message(reply: Reply) -> str:
    return reply.error.message if reply.error is not None else ""
