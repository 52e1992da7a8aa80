"""Stragglers: which rank the others wait for, step after step, although all get on.

Of each step it is known how long each rank worked (its phases, without the time inside collectives) and
how much later than the first it came to the collectives. The culprit works longest, comes last and waits
least; the others are its victims. Medians over several steps, so that a pause for an evaluation or a
checkpoint is none; relative to the tokens of each rank where they are known, so that long sequences are an
imbalance and no slow rank. Pure. Standard library only.

Sources of the thresholds: GREYHOUND (USENIX ATC'25) reports a mean delay of 1.34x for fail-slow jobs, found
within 2-3 iterations; NVIDIA's resiliency extension calls a rank a straggler below a relative score of 0.7
(1.43x); ByteRobust samples five rounds before it acts; ResiHP: without normalising by sequence length such
tools alarm several times a run.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from probe.diagnose.facts import DONE, Facts, Step

SLOW_RATIO = 0.3
"""A straggler costs the others so much of a usual step, at least (1/0.7 = 1.43x is what NVIDIA's scores
take for slow, 1.34x the mean of GREYHOUND's cases)."""
SLOW_S = 0.01
"""…and so many seconds: below, it is the scheduler of a busy machine (its slices are 3-10 ms)."""
FEWEST_STEPS = 4
"""…on so many steps at least…"""
SHORTEST_S = 2.5
"""…that took so long together. Half of the five seconds in which it is to be noticed."""
STEADY_RATIO = 0.75
"""…on so many of them. Five rounds, of which one may be an accident, as ByteRobust has it."""
WINDOW_STEPS = 256
"""No further back than this; at the fewest seconds that count, so many steps take SHORTEST_S."""
PERIODIC_RATIO = 0.1
"""A rank that is slow on some steps only is one when it costs the others so much of all time…"""
PERIODIC_STEPS = 4
"""…on so many steps, and the others are never the slow one there. Judgement."""
TOKENS_RATIO = 0.1
"""Ranks whose tokens differ by more have unequal work by their data."""
EXPLAINED_RATIO = 0.6
"""A rank's excess is its data's when this share of it goes with its tokens."""
TURNS_RATIO = 0.6
"""Imbalance: no rank comes last on more of the steps than this (two ranks in turns: half)."""
PAUSE_S, PAUSE_STEPS = 0.5, 5.0
"""A single step on which one rank kept the others waiting is worth a line when it took so much longer."""
WARM_UP_STEPS = 3

PHASES = ("data", "forward", "backward", "optimizer", "other")
KINDS = {
    "data": "input", "forward": "compute", "backward": "compute", "optimizer": "compute",
    "other": "other work",
}


@dataclass(frozen=True)
class Straggler:
    """One rank that is slower than the others. Seconds are medians per step."""

    rank: int
    kind: str
    """`input`, `compute`, `other work` or, when its phases show nothing, `late arrival`."""
    phase: str | None
    excess_s: float
    usual_s: float
    since_step: int
    last_step: int
    steps: int
    """Slow ones."""
    evidence: tuple[str, ...]
    period_steps: float | None = None
    """Every how many steps it is slow, where it is not on each."""


@dataclass(frozen=True)
class Imbalance:
    """Unequal work: who comes last changes. `with_tokens` when it follows the tokens of the ranks."""

    spread_s: float
    usual_s: float
    last: dict[int, int]
    """On how many steps each rank came last."""
    with_tokens: bool


@dataclass(frozen=True)
class Pause:
    """A single step on which one rank kept the others waiting."""

    rank: int
    step: int
    excess_s: float
    phase: str


class Table:
    """Steps of all ranks, side by side; those that tell something."""

    def __init__(self, ranks: Sequence[Facts]) -> None:
        self.ranks = [facts.rank for facts in ranks]
        by_rank = {facts.rank: {step.step: step for step in facts.steps} for facts in ranks}
        common = set.intersection(*(set(steps) for steps in by_rank.values())) if by_rank else set()
        plain = [
            step for step in sorted(common)
            if step >= WARM_UP_STEPS and not any(_odd(steps[step]) for steps in by_rank.values())
        ]
        self.numbers = plain[-WINDOW_STEPS:]
        self.rows = {rank: {step: steps[step] for step in self.numbers} for rank, steps in by_rank.items()}
        walls = [row.wall_s for rows in self.rows.values() for row in rows.values()]
        self.usual_s = statistics.median(walls) if walls else 0.0
        contaminated = any(call.source == "flight" for facts in ranks for call in facts.calls)
        waits = any(row.comm_s is not None for rows in self.rows.values() for row in rows.values())
        self.phases = PHASES if waits and not contaminated else tuple(
            phase for phase in PHASES if phase != "backward"
        )
        """Those in which a rank does not wait for others: backward is not one when C++ averages in it."""

    def own_s(self, rank: int, step: int) -> float:
        """What the rank worked in the step, in the phases that are its own."""
        return sum(_phase_s(self.rows[rank][step], phase) for phase in self.phases)

    def excess_s(self, rank: int, step: int, of: Callable[[int, int], float]) -> float:
        """A rank's figure beyond the median of the others'."""
        others = [of(other, step) for other in self.ranks if other != rank]
        return of(rank, step) - statistics.median(others)

    def more_s(self, rank: int, step: int, phase: str) -> float:
        """How much longer a phase of the rank took than the others'."""
        return self.excess_s(rank, step, lambda one, at: _phase_s(self.rows[one][at], phase))


def _odd(step: Step) -> bool:
    return bool(step.sampled) or bool(step.shadow) or bool(step.held_s)


def _phase_s(step: Step, phase: str) -> float:
    return float(getattr(step, f"{phase}_s") or 0.0)


# How late each rank came ------------------------------------------------------------


def lateness(ranks: Sequence[Facts]) -> dict[int, dict[int, float]]:
    """By step and rank: by how many seconds it came later than the first to the collectives of the step,
    the largest of them. From how long each waited where that is known (no clocks are compared), else from
    when each called, among ranks of one host."""
    one_host = len({facts.host for facts in ranks}) == 1
    by_number: dict[tuple[str, int], dict[int, tuple[int, float | None, int]]] = defaultdict(dict)
    for facts in ranks:
        for call in facts.calls:
            if call.pg is None or call.seq is None or call.step is None or call.asynchronous:
                continue
            if call.source == "flight" or call.state == DONE:
                by_number[call.pg, call.seq][facts.rank] = (call.t_ns, call.wait_s, call.step)
    found: dict[int, dict[int, float]] = defaultdict(lambda: dict.fromkeys((f.rank for f in ranks), 0.0))
    for calls in by_number.values():
        if len(calls) < len(ranks):
            continue
        late_s = _late_s(calls, one_host)
        if late_s is not None:
            step = max(step for _, _, step in calls.values())
            for rank, seconds in late_s.items():
                found[step][rank] = max(found[step][rank], seconds)
    return dict(found)


def _late_s(calls: Mapping[int, tuple[int, float | None, int]], one_host: bool) -> dict[int, float] | None:
    waits = {rank: wait_s for rank, (_, wait_s, _) in calls.items() if wait_s is not None}
    if len(waits) == len(calls):
        longest = max(waits.values())
        return {rank: longest - wait_s for rank, wait_s in waits.items()}
    if not one_host:
        return None
    first = min(t_ns for t_ns, _, _ in calls.values())
    return {rank: (t_ns - first) / 1e9 for rank, (t_ns, _, _) in calls.items()}


# Verdicts -------------------------------------------------------------------------


def find(ranks: Sequence[Facts]) -> Straggler | Imbalance | None:
    """The rank that the others wait for, or that it is another one each time; None when neither is clear."""
    if len(ranks) < 2:
        return None
    table = Table(ranks)
    late = lateness(ranks)
    if len(table.numbers) < FEWEST_STEPS or table.usual_s <= 0:
        return None
    by_arrival = _persistent(table, {step: late[step] for step in table.numbers if step in late})
    by_work = _persistent(
        table, {step: {rank: table.own_s(rank, step) for rank in table.ranks} for step in table.numbers}
    )
    chosen = by_arrival or by_work
    if chosen is None:
        return _periodic(table) or _imbalance(table)
    if by_arrival is not None and by_work is not None and by_arrival[0] != by_work[0]:
        return None  # the evidence disagrees
    if by_arrival is None and not _others_wait(table, chosen[0], chosen[2]):
        return None
    return _by_tokens(table, *chosen) or _straggler(table, *chosen)


def _persistent(
    table: Table, figures: Mapping[int, Mapping[int, float]]
) -> tuple[int, float, list[int]] | None:
    """A rank, its median excess and the steps since which it lasts up to now; None without one."""
    steps = sorted(figures)
    if len(steps) < FEWEST_STEPS:
        return None
    least_s = max(SLOW_S, SLOW_RATIO * _fast_s(table))
    for rank in table.ranks:
        excess = {step: table.excess_s(rank, step, lambda one, at: figures[at][one]) for step in steps}
        since = _since(steps, [excess[step] >= least_s for step in steps])
        wall_s = sum(table.rows[rank][step].wall_s for step in since if step in table.rows[rank])
        if len(since) >= FEWEST_STEPS and wall_s >= SHORTEST_S:
            median_s = statistics.median(excess[step] for step in since)
            if median_s >= least_s:
                return rank, median_s, since
    return None


def _fast_s(table: Table) -> float:
    """A step as it would be without the straggler: the median of the fastest quarter of the steps known."""
    walls = sorted(min(rows[step].wall_s for rows in table.rows.values()) for step in table.numbers)
    return statistics.median(walls[: max(1, len(walls) // 4)])


def _since(steps: Sequence[int], slow: Sequence[bool]) -> list[int]:
    """The longest run of last steps, most of which are slow, the last ones for sure; the first is slow."""
    if len(slow) < FEWEST_STEPS or sum(slow[-FEWEST_STEPS:]) < FEWEST_STEPS - 1:
        return []
    best = len(slow)
    count = 0
    for taken, position in enumerate(range(len(slow) - 1, -1, -1), 1):
        count += slow[position]
        if slow[position] and count >= STEADY_RATIO * taken:
            best = position
    return list(steps[best:])


def _others_wait(table: Table, culprit: int, since: Sequence[int]) -> bool:
    """Whether the steps of all are as long as the culprit's: what it works longer, the others wait."""
    walls = {rank: statistics.median(table.rows[rank][step].wall_s for step in since) for rank in table.ranks}
    return min(walls.values()) >= 0.7 * walls[culprit]


def _straggler(table: Table, rank: int, excess_s: float, since: list[int]) -> Straggler:
    more = {
        phase: statistics.median(table.more_s(rank, step, phase) for step in since) for phase in PHASES
    }
    phase = max(more, key=lambda name: more[name])
    seen = more[phase] >= 0.5 * excess_s
    evidence = []
    for one in table.ranks:
        own = [
            f"{name} {_ms(statistics.median(_phase_s(table.rows[one][step], name) for step in since))}"
            for name in PHASES
        ]
        comm = [row.comm_s for step in since if (row := table.rows[one][step]).comm_s is not None]
        waits = f", in collectives {_ms(statistics.median(comm))}" if comm else ""
        evidence.append(f"rank {one}: {', '.join(own)}{waits}")
    return Straggler(
        rank, KINDS[phase] if seen else "late arrival", phase if seen else None, excess_s,
        table.usual_s, since[0], since[-1], len(since), tuple(evidence),
    )


def _periodic(table: Table) -> Straggler | None:
    """A rank that is slow now and then, and by itself: not in what is done beside the training (an
    evaluation, a checkpoint), and not because it had more to do."""
    tokens = _tokens(table, table.numbers)
    slow: dict[int, list[tuple[int, float, str]]] = defaultdict(list)
    for step in table.numbers:
        for rank in table.ranks:
            for phase in table.phases[:-1]:
                excess_s = table.more_s(rank, step, phase)
                if excess_s >= max(2 * SLOW_S, table.usual_s):
                    slow[rank].append((step, excess_s, phase))
    if not slow or tokens is None:
        return None
    rank = max(slow, key=lambda one: len(slow[one]))
    usual_tokens = statistics.median(tokens[rank].values())
    found = [one for one in slow[rank] if tokens[rank][one[0]] <= 1.5 * usual_tokens]
    wall_s = sum(table.rows[rank][step].wall_s for step in table.numbers)
    lost_s = sum(excess_s for _, excess_s, _ in found)
    others = sum(len(rows) for one, rows in slow.items() if one != rank)
    if len(found) < PERIODIC_STEPS or others > len(found) // 4 or wall_s < SHORTEST_S:
        return None
    if lost_s < PERIODIC_RATIO * wall_s:
        return None
    phase = statistics.mode(phase for _, _, phase in found)
    between = [later[0] - earlier[0] for earlier, later in pairwise(found)]
    excess_s = statistics.median(one[1] for one in found)
    evidence = tuple(f"step {step}: {phase} {_ms(more_s)} longer" for step, more_s, phase in found[-4:])
    return Straggler(
        rank, KINDS[phase], phase, excess_s, table.usual_s, found[0][0], found[-1][0], len(found), evidence,
        statistics.median(between),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


# Unequal work ---------------------------------------------------------------------


def _by_tokens(table: Table, rank: int, excess_s: float, since: list[int]) -> Imbalance | None:
    """An imbalance when the rank has that many more tokens than the others."""
    tokens = _tokens(table, since)
    if tokens is None:
        return None
    mine = statistics.median(tokens[rank].values())
    others = statistics.median(statistics.median(tokens[one].values()) for one in table.ranks if one != rank)
    if others <= 0 or mine <= others * (1 + TOKENS_RATIO):
        return None
    own_s = statistics.median(table.own_s(rank, step) for step in since)
    if own_s * (1 - others / mine) < EXPLAINED_RATIO * excess_s:
        return None
    return Imbalance(excess_s, table.usual_s, {rank: len(since)}, True)


def _imbalance(table: Table) -> Imbalance | None:
    spreads: list[float] = []
    last: dict[int, int] = defaultdict(int)
    for step in table.numbers:
        own = {rank: table.own_s(rank, step) for rank in table.ranks}
        slowest = max(own, key=lambda rank: own[rank])
        spreads.append(own[slowest] - statistics.median(own.values()))
        last[slowest] += 1
    spread_s = statistics.median(spreads)
    wall_s = sum(table.rows[table.ranks[0]][step].wall_s for step in table.numbers)
    if spread_s < max(SLOW_S, SLOW_RATIO * table.usual_s) or wall_s < SHORTEST_S:
        return None
    if max(last.values()) > TURNS_RATIO * len(table.numbers):
        return None
    return Imbalance(spread_s, table.usual_s, dict(sorted(last.items())), _follows_tokens(table))


def _follows_tokens(table: Table) -> bool:
    """Whether the rank with the most tokens is the slowest on most steps."""
    tokens = _tokens(table, table.numbers)
    if tokens is None:
        return False
    same = sum(
        max(table.ranks, key=lambda rank: tokens[rank][step])
        == max(table.ranks, key=lambda rank: table.own_s(rank, step))
        for step in table.numbers
    )
    return same >= TURNS_RATIO * len(table.numbers)


def _tokens(table: Table, steps: Sequence[int]) -> dict[int, dict[int, int]] | None:
    """Tokens (where there are none: samples) by rank and step; None when a rank does not tell."""
    found: dict[int, dict[int, int]] = {}
    for rank in table.ranks:
        rows = [table.rows[rank][step] for step in steps]
        told = [row.tokens if row.tokens is not None else row.samples for row in rows]
        if any(one is None for one in told):
            return None
        found[rank] = {step: one for step, one in zip(steps, told, strict=True) if one is not None}
    return found


def last_pause(ranks: Sequence[Facts]) -> Pause | None:
    """The last step on which one rank alone worked much longer than usual while the others waited."""
    if len(ranks) < 2:
        return None
    table = Table(ranks)
    if len(table.numbers) < FEWEST_STEPS:
        return None
    least_s = max(PAUSE_S, PAUSE_STEPS * table.usual_s)
    for step in reversed(table.numbers):
        for rank in table.ranks:
            excess_s = table.excess_s(rank, step, table.own_s)
            if excess_s >= least_s:
                phase = max(table.phases, key=lambda name: _phase_s(table.rows[rank][step], name))
                return Pause(rank, step, excess_s, phase)
    return None
