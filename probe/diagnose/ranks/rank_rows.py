"""Explains a rank's wait for others by the state of the other ranks on this host.

Pure. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.states import ALARM, NOTICE


class Peer(NamedTuple):
    """Another rank of the same job on this host; `verdict` is None if it is not late."""

    rank: int
    pid: int
    step: int | None
    verdict: Finding | None


def explain_wait(found: Finding, step: int | None, peers: Iterable[Peer]) -> Finding:
    """The state of a rank in a collective, with the ranks that have not entered it added.

    While one of those is working (a checkpoint, an evaluation), the wait is only a notice. Any other finding
    is returned unchanged."""
    if found.state != states.IN_COLLECTIVE:
        return found
    absent = [peer for peer in peers if peer.verdict is None or peer.verdict.state != states.IN_COLLECTIVE]
    if not absent:
        return found
    lines = [_line(peer, step) for peer in absent]
    known = [peer.verdict for peer in absent if peer.verdict is not None]
    works = any(one.state in states.JOINS_LATER and one.severity != ALARM for one in known)
    first = absent[0]
    what = f"{found.what}; rank {first.rank} (pid {first.pid}) has not entered it: {_state(first)}"
    return replace(
        found, severity=NOTICE if works else found.severity, what=what, why=[*lines, *found.why],
        next=[f"probe {peer.pid} diagnose" for peer in absent[:4]] + found.next[:1],
    )


def _state(peer: Peer) -> str:
    return "its steps are not late" if peer.verdict is None else peer.verdict.state


def _line(peer: Peer, step: int | None) -> str:
    ours = f", this one at {step}" if step is not None else ""
    at = f"its last finished step is {peer.step}{ours}" if peer.step is not None else "no step finished"
    what = "" if peer.verdict is None else f": {peer.verdict.what}"
    return f"rank {peer.rank} (pid {peer.pid}) has not entered the collective{what}; {at}"
