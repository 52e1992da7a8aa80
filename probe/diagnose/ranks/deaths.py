"""Rank deaths: which rank of a job died first by itself, and which died as a consequence.

When one rank dies, the others fail in their next collective, or the launcher ends them a second later. Pure.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from probe.base import rank_sets
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process import wording
from probe.diagnose.ranks.rank_evidence import DONE, Facts
from probe.diagnose.states import ALARM, NOTICE

_REACTIONS = re.compile(
    r"gloo|nccl|Connection (closed|reset|refused)|DistBackendError|DistNetworkError|Broken pipe|"
    r"Timed out|timeout|ProcessGroup|\bpeer\b|TCPStore|Socket", re.IGNORECASE,
)
"""Exceptions caused by another rank's death: a network call failed."""
_MOST_LINES = 8
_LONGEST = 200


def cause(ranks: list[Facts]) -> Finding | None:
    """The first rank that died by itself; None without one."""
    causes = [facts for facts in _killed(ranks) if not is_reaction(facts)]
    return _died_first(ranks, causes[0]) if causes else None


def left_early(ranks: list[Facts]) -> Finding | None:
    """A rank that finished while the others still needed it."""
    killed = _killed(ranks)
    finished = [facts for facts in ranks if facts.state == "finished"]
    gone = sorted(finished, key=lambda facts: facts.ended_ns or 0)
    # Do not compare end times: a leaving rank closes its connections first and ends a second later.
    if not gone or not killed or not all(facts.raised and is_reaction(facts) for facts in killed):
        return None
    first = gone[0]
    others = [facts.rank for facts in ranks if facts is not first]
    what = (
        f"rank {first.rank} finished early, at {step(first)}, before {rank_sets.named(others)}: "
        f"{rank_sets.named([facts.rank for facts in killed])} failed without it"
    )
    lines = [f"{first.name}: {first.how}, {first.line()}"]
    lines += [_after(facts, first) for facts in ranks if facts is not first][:_MOST_LINES]
    return Finding(states.MISSING_RANK, ALARM, what, lines, _next_dead(first), (first.rank,))


def first_of_all(ranks: list[Facts]) -> Finding | None:
    """The rank that ended first, even if its end looks like a consequence of another's."""
    killed = _killed(ranks)
    return _died_first(ranks, killed[0]) if killed else None


def _killed(ranks: Sequence[Facts]) -> list[Facts]:
    return sorted((facts for facts in ranks if facts.killed), key=lambda facts: facts.ended_ns or 0)


def _died_first(ranks: list[Facts], first: Facts) -> Finding:
    killed = _killed(ranks)
    others = [facts for facts in ranks if facts is not first]
    after = [_after(facts, first) for facts in others]
    lines = [f"{first.name} {how(first)}; {first.line()}"]
    if first.frame:
        lines.append(f"its last stack: {first.frame}")
    lines += [f"its last collective: {last_call(first)}"] if first.last_call is not None else []
    lines += after[:_MOST_LINES]
    interrupted = all("interrupted" in facts.how for facts in killed)
    ended = how(first).replace("died", "died first,", 1).replace("failed", "failed first", 1)
    what = f"rank {first.rank} {ended}, at {step(first)}"
    victims = [facts.rank for facts in others if facts.killed]
    if victims:
        what += f"; {rank_sets.named(victims)} ended because of it"
    waiting = [facts.rank for facts in others if facts.lives]
    if waiting:
        what += f"; {rank_sets.named(waiting)} {wording.verb(waiting, 'is', 'are')} still alive"
    if all(is_reaction(facts) for facts in killed) and len(killed) == len(ranks) > 1:
        what = f"all ranks ended within {_spread(killed)}, rank {first.rank} first: {how(first)}"
    severity = NOTICE if interrupted else ALARM
    return Finding(states.DEAD_RANK, severity, what, lines, _next_dead(first), (first.rank,))


def is_reaction(facts: Facts) -> bool:
    """Whether its end looks like a consequence of another rank's end or of a failed collective."""
    if facts.how == "SIGTERM":  # sent by a launcher to the remaining ranks
        return True
    last = facts.last_call
    inside = last is not None and last.state != DONE
    if facts.how == "SIGABRT":
        return inside
    return facts.raised is not None and bool(_REACTIONS.search(facts.raised))


def _after(facts: Facts, first: Facts) -> str:
    if not facts.killed:
        return f"{facts.name}: {facts.how or facts.state}, {facts.line()}"
    apart = ""
    if facts.ended_ns is not None and first.ended_ns is not None:
        apart = f" {wording.seconds(abs(facts.ended_ns - first.ended_ns) / 1e9)} "
        apart += "later" if facts.ended_ns >= first.ended_ns else "before"
    last = f"; its last collective: {last_call(facts)}" if facts.last_call is not None else ""
    return f"{facts.name} {how(facts)}{apart}, {facts.line()}{last}"


def how(facts: Facts) -> str:
    """How it ended: `died of SIGKILL`, `failed: ValueError: …`."""
    if facts.raised is not None:
        short = facts.raised if len(facts.raised) <= _LONGEST else facts.raised[: _LONGEST - 1] + "…"
        return f"failed: {short}"
    return f"died of {facts.how}" if facts.state == "dead" else f"failed: {facts.how}"


def last_call(facts: Facts) -> str:
    """The call that the rank entered last; there must be one."""
    last = facts.last_call
    assert last is not None
    return f"{last.name}, called at {last.place}, {last.state}"


def step(facts: Facts) -> str:
    """The rank's last finished step."""
    return f"step {facts.step:,}" if facts.step is not None else "its first step"


def _spread(killed: Sequence[Facts]) -> str:
    times = [facts.ended_ns for facts in killed if facts.ended_ns is not None]
    return wording.seconds((max(times) - min(times)) / 1e9) if times else "an unknown time"


def _next_dead(first: Facts) -> list[str]:
    job = f"{first.job}/{first.rank}"
    return [
        f"probe {job} backtrace", f"probe {job} diagnose",
        f'probe {first.job} query "SELECT rank, pg, seq, op, state, call_site FROM python.collectives '
        'ORDER BY t_ns DESC LIMIT 20"',
    ]
