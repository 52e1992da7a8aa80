"""Commit votes across hosts: each host has its own vote, and the coordinating server joins them.

A host's ranks vote with one more member, `ARBITER`, that never marks anything, so they cannot decide `yes` on
their own. The coordinator's own vote has a member for each other host, which it marks once all ranks there
have marked theirs; its decision is then cast on every host. If the ranks of a host have waited for longer
than PROBE_RANK_HOLD_S by then, that host has already decided `no`, and its answer says so.

Runs on the server's event loop and reads files in memory. Standard library only.
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
"""The mark that members set before each question is decided."""
_POLL_S = 0.002
AskHost = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]
"""Calls one host for a phase; raises a `ProbeError`."""


def member(number: int) -> str:
    """A host's name in the coordinator's vote."""
    return f"host{number}"


async def answer(
    directory: Path, name: str, phase: str, asked: dict[str, Any], until_s: float
) -> dict[str, Any]:
    """This host's answer in a phase about its vote. `until_s` is monotonic."""
    vote = CommitVote(directory, name)
    question = str(asked.get("question") or GO)
    if question not in MARKS:
        raise BadRequest(f"`question` must be one of {', '.join(MARKS)}")
    members = asked.get("members") or []
    if not isinstance(members, list) or not all(type(rank) is int for rank in members):
        raise BadRequest("`members` must be a list of ranks")
    why = str(asked.get("why") or "").encode("utf-8", "replace").decode()
    try:
        if phase == "open":
            vote.open([*map(str, members), ARBITER])
            return {}
        if phase == "gather":
            return await _gather(vote, question, until_s)
        return _as_dict(vote.cast(question, bool(asked.get("yes")), why))
    except OSError as error:
        raise NotTogether(f"no such vote on this host: {error.strerror or error}") from None


async def _gather(vote: CommitVote, question: str, until_s: float) -> dict[str, Any]:
    while time.monotonic() < until_s and vote.folder.exists():
        decision = vote.decision(question)
        if decision is not None:
            return _as_dict(decision)
        if vote.missing(MARKS[question]) == [ARBITER]:
            return {"all": True}
        await asyncio.sleep(_POLL_S)
    return {"yes": False, "why": "the agreed step did not start in time"}


def remove(directory: Path, name: str) -> None:
    """Remove the vote, after all ranks of this host have reported the outcome."""
    CommitVote(directory, name).remove()


async def join(
    vote: CommitVote, number: int, ask: AskHost, questions: tuple[str, ...], who: str, until_s: float
) -> None:
    """The coordinator's side for one other host; returns once every question is decided there as here."""
    try:
        for question in questions:
            told = await ask("gather", {"question": question})
            if told.get("all"):
                vote.mark(MARKS[question], member(number))
                if not vote.missing(MARKS[question]):
                    vote.cast(question, True)
            else:
                vote.cast(question, bool(told.get("yes")), str(told.get("why") or ""))
            decision = await _decided(vote, question, until_s)
            there = await ask("decide", {"question": question, **_as_dict(decision)})
            if not (decision.yes and there.get("yes")):
                if question == GO:  # not done there, whatever was decided here: then undo it everywhere
                    vote.cast(STAY, False, f"host {who}: {there.get('why')}")
                return
    except ProbeError as error:
        for question in questions:
            vote.cast(question, False, error.message)


async def _decided(vote: CommitVote, question: str, until_s: float) -> Decision:
    while True:
        decision = vote.decision(question)
        if decision is not None:
            return decision
        if time.monotonic() > until_s:
            return vote.cast(question, False, "the agreed step did not start in time")
        await asyncio.sleep(_POLL_S)


def _as_dict(decision: Decision) -> dict[str, Any]:
    return {"yes": decision.yes, "why": decision.why}
