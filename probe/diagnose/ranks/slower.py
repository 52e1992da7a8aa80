"""The verdict on a job whose ranks all run: one rank makes the others wait, or the work is unequal.

Formats the results of `stragglers`. Pure. Standard library only.
"""

from __future__ import annotations

from probe.base import rank_sets
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process import wording
from probe.diagnose.ranks import stragglers
from probe.diagnose.ranks.rank_evidence import Facts
from probe.diagnose.ranks.stragglers import Imbalance, Straggler
from probe.diagnose.states import NOTICE

_MOST_LINES = 8
_CPU_RATIO = 0.5
"""A straggler lacks CPU time if its waits for a CPU explain this share of its excess. Our judgement."""
_WHERE = {
    "data": "waiting for its DataLoader", "forward": "in forward", "backward": "in backward",
    "optimizer": "in the optimizer's step",
    "other": "outside of data loading, forward, backward and optimizer", None: "outside every timed phase",
}
"""Text for where a straggler spends the time, by phase."""


def slower(ranks: list[Facts]) -> Finding | None:
    """The verdict on ranks that all run; None if no rank makes the others wait."""
    living = [facts for facts in ranks if facts.lives]
    if len(living) < 2 or len(living) < len(ranks) or any(facts.off for facts in living):
        return None
    found = stragglers.find(living)
    if isinstance(found, Straggler):
        return _straggler(living, found)
    return _imbalance(living, found) if found is not None else None


def _straggler(ranks: list[Facts], found: Straggler) -> Finding:
    excess, usual = wording.seconds(found.excess_s), wording.seconds(found.usual_s)
    if found.period_steps is not None:
        every = f", about every {found.period_steps:g} steps" if found.period_steps >= 2 else ""
        when = f"on {found.steps} steps since step {found.since_step:,}{every}"
    else:
        when = f"since step {found.since_step:,}, for {found.steps} steps"
        if found.from_before and found.since_step > stragglers.WARM_UP_STEPS:
            when = f"since step {found.since_step:,} or earlier, for at least {found.steps} steps"
    others = [facts.rank for facts in ranks if facts.rank != found.rank]
    lacking = _lacking_cpu(ranks, found)
    why = " because it waits for a CPU" if lacking else ""
    what = f"rank {found.rank} is slower than the others{why}: {excess} more per step (usually {usual}), "
    what += f"{_WHERE[found.phase]}, {when}"
    lines = [*lacking, f"{rank_sets.named(others)} {wording.verb(others, 'waits', 'wait')} for it"]
    lines += found.evidence[:_MOST_LINES]
    if found.kind == "input":
        lines.append("its DataLoader is slow: check the storage and the number of workers on that host")
    job = f"{ranks[0].job}/{found.rank}"
    ask = [f"probe {job} backtrace --workers" if found.kind == "input" else f"probe {job} backtrace"]
    ask.append(
        f'probe {ranks[0].job} query "SELECT rank, median(data_s), median(forward_s), median(backward_s), '
        f'median(comm_s) FROM python.steps WHERE step >= {found.since_step} GROUP BY rank ORDER BY rank"'
    )
    return Finding(states.STRAGGLER, NOTICE, what, lines, ask, (found.rank,))


def _lacking_cpu(ranks: list[Facts], found: Straggler) -> list[str]:
    """The line about a straggler that lacks CPU time, as on an overloaded host; empty if that is not why."""
    waits = {facts.rank: facts.cpu_wait_ratio for facts in ranks}
    own = waits[found.rank]
    if found.period_steps is not None or own is None:  # when it waited within a period is not known
        return []
    if own * (found.usual_s + found.excess_s) < _CPU_RATIO * found.excess_s:
        return []
    others = ", ".join(
        f"rank {rank} {wording.percent(ratio)}"
        for rank, ratio in list(waits.items())[:_MOST_LINES] if rank != found.rank and ratio is not None
    )
    compared = f" ({others})" if others else ""
    return [
        f"its training thread was ready to run, but waited for a CPU {wording.percent(own)} of the time"
        f"{compared}: too many processes or threads for the CPUs of its host",
    ]


def _imbalance(ranks: list[Facts], found: Imbalance) -> Finding:
    last = ", ".join(f"rank {rank} in {count} steps" for rank, count in found.last.items())
    tokens = "; the slowest rank is the one with the most tokens" if found.with_tokens else ""
    what = (
        f"the ranks have unequal work: on each step (usually {wording.seconds(found.usual_s)}) one takes "
        f"{wording.seconds(found.spread_s)} longer than the others, and a different one each time{tokens}"
    )
    if len(found.last) == 1:
        [one] = found.last
        what = (
            f"rank {one} has more work than the others: its steps have more tokens and take "
            f"{wording.seconds(found.spread_s)} longer"
        )
    ask = (
        f'probe {ranks[0].job} query "SELECT rank, median(tokens), max(tokens), median(wall_s) '
        'FROM python.steps GROUP BY rank ORDER BY rank"'
    )
    culprits = tuple(found.last) if len(found.last) == 1 else ()
    return Finding(states.IMBALANCE, NOTICE, what, [f"last to arrive: {last}"], [ask], culprits)
