"""Ballots of a job on several hosts: each host has its own, and the server that was asked joins them.

A host's ranks vote among themselves with one member more, `ARBITER`, who never marks anything: so they
cannot decide `yes` alone. The arbiter's own ballot has a member for each other host, whose mark it leaves
when all ranks there have left theirs; what is decided there it then casts everywhere. A host whose ranks
have waited for PROBE_RANK_HOLD_S meanwhile has decided `no` for itself, and says so.

Runs on the server's event loop, which looks at files that are in memory. Standard library only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from probe.base.commit_vote import COME, DID, GO, STAY, CommitVote, Decision
from probe.base.errors import BadRequest, NotTogether, ProbeError

ARBITER = "arbiter"
MARKS = {GO: COME, STAY: DID}
"""What members leave behind before each question is decided."""
_LOOK_S = 0.002
AskHost = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Asks one host for a phase, with what it is told in it; raises a `ProbeError`."""


def member(number: int) -> str:
    """A host's name in the arbiter's ballot."""
    return f"host{number}"


async def answer(
    directory: Path, name: str, phase: str, asked: dict[str, Any], until_s: float
) -> dict[str, Any]:
    """What another host's server does in a phase that is about its ballot. `until_s` is monotonic."""
    ballot = CommitVote(directory, name)
    question = str(asked.get("question") or GO)
    if question not in MARKS:
        raise BadRequest(f"`question` must be one of {', '.join(MARKS)}")
    members = asked.get("members") or []
    if not isinstance(members, list) or not all(type(rank) is int for rank in members):
        raise BadRequest("`members` must be a list of ranks")
    why = str(asked.get("why") or "").encode("utf-8", "replace").decode()
    try:
        if phase == "open":
            ballot.open([*map(str, members), ARBITER])
            return {}
        if phase == "gather":
            return await _gather(ballot, question, until_s)
        return _as_dict(ballot.cast(question, bool(asked.get("yes")), why))
    except OSError as error:
        raise NotTogether(f"there is no such vote here: {error.strerror or error}") from None


async def _gather(ballot: CommitVote, question: str, until_s: float) -> dict[str, Any]:
    while time.monotonic() < until_s and ballot.folder.exists():
        decision = ballot.decision(question)
        if decision is not None:
            return _as_dict(decision)
        if ballot.missing(MARKS[question]) == [ARBITER]:
            return {"all": True}
        await asyncio.sleep(_LOOK_S)
    return {"yes": False, "why": "the agreed step did not begin in time"}


def remove(directory: Path, name: str) -> None:
    """All ranks of this host have said what came of it."""
    CommitVote(directory, name).remove()


async def join(
    ballot: CommitVote, number: int, ask: AskHost, questions: tuple[str, ...], who: str, until_s: float
) -> None:
    """The arbiter's side for one other host: until every question is decided there as here."""
    try:
        for question in questions:
            told = await ask("gather", {"question": question})
            if told.get("all"):
                ballot.mark(MARKS[question], member(number))
                if not ballot.missing(MARKS[question]):
                    ballot.cast(question, True)
            else:
                ballot.cast(question, bool(told.get("yes")), str(told.get("why") or ""))
            decision = await _decided(ballot, question, until_s)
            there = await ask("decide", {"question": question, **_as_dict(decision)})
            if not (decision.yes and there.get("yes")):
                if question == GO:  # it was not done there, whatever was decided here: then nowhere
                    ballot.cast(STAY, False, f"host {who}: {there.get('why')}")
                return
    except ProbeError as error:
        for question in questions:
            ballot.cast(question, False, error.message)


async def _decided(ballot: CommitVote, question: str, until_s: float) -> Decision:
    while True:
        decision = ballot.decision(question)
        if decision is not None:
            return decision
        if time.monotonic() > until_s:
            return ballot.cast(question, False, "the agreed step did not begin in time")
        await asyncio.sleep(_LOOK_S)


def _as_dict(decision: Decision) -> dict[str, Any]:
    return {"yes": decision.yes, "why": decision.why}
