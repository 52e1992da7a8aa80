"""Stragglers: finds the rank that the others wait for, step after step, although all of them are running.

For each step and rank, two figures are known: how long it worked (its phases, without the time inside
collectives), and how much later than the first rank it reached the collectives. The culprit works longest,
arrives last and waits least. Figures are medians over several steps, so a pause for an evaluation or a
checkpoint does not count. They are relative to each rank's tokens if known, so longer sequences are an
imbalance and not a slow rank. Pure. May import numpy.

Sources of the thresholds: GREYHOUND (USENIX ATC'25) reports a mean delay of 1.34x for fail-slow jobs, found
within 2-3 iterations; NVIDIA's resiliency extension calls a rank a straggler below a relative score of 0.7
(1.43x); ByteRobust samples five rounds before it acts; ResiHP: without normalising by sequence length such
tools alarm several times a run.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from probe.diagnose.ranks import alignment
from probe.diagnose.ranks.rank_evidence import DONE, Call, Facts, Step

SLOW_RATIO = 0.3
"""A straggler costs the others at least this share of a usual step (NVIDIA's scores: 1/0.7 = 1.43x is slow;
GREYHOUND's mean: 1.34x)…"""
SLOW_S = 0.01
"""…and this many seconds: less may be the scheduler of a busy machine (slices of 3-10 ms)…"""
FEWEST_STEPS = 4
"""…on at least this many steps…"""
SHORTEST_S = 2.0
"""…that took this long together. The rest of the five seconds for detection is for evaluating."""
STEADY_RATIO = 0.75
"""…on this share of them: of five rounds one may be an accident, as in ByteRobust."""
WINDOW_STEPS = 256
"""Only this many last steps are considered."""
PERIODIC_RATIO = 0.1
"""A periodic straggler costs the others this share of all time…"""
PERIODIC_STEPS = 4
"""…on at least this many steps, while no other rank is slow. Our judgement."""
TOKENS_RATIO = 0.1
"""Ranks whose tokens differ by more than this share have unequal work."""
EXPLAINED_RATIO = 0.6
"""A rank's excess is due to its data if its tokens explain at least this share."""
TURNS_RATIO = 0.6
"""Imbalance: no rank is last on more than this share of the steps (two ranks taking turns: half)."""
GAPS_RATIO = 0.5
"""If sequence numbers are missing on this share of the steps, C++ issues unrecorded collectives."""
PAUSE_S, PAUSE_STEPS = 0.5, 5.0
"""A single step on which one rank delayed the others is mentioned if it took this much longer."""
WARM_UP_STEPS = 3
_MOST_RANKS = 8

PHASES = ("data", "forward", "backward", "optimizer", "other")
_TIMED = (*PHASES, "comm")
_phases = attrgetter(*(f"{phase}_s" for phase in _TIMED))
KINDS = {
    "data": "input", "forward": "compute", "backward": "compute", "optimizer": "compute",
    "other": "other work",
}


@dataclass(frozen=True)
class Straggler:
    """A rank that is slower than the others. Seconds are medians per step."""

    rank: int
    kind: str
    """`input`, `compute`, `other work` or, if its phases show nothing, `late arrival`."""
    phase: str | None
    excess_s: float
    usual_s: float
    since_step: int
    last_step: int
    steps: int
    """Number of slow steps."""
    evidence: tuple[str, ...]
    period_steps: float | None = None
    """Steps between slow steps, if it is not slow on every step."""
    from_before: bool = False
    """Whether it was already slow on the first compared steps, so that `since_step` is not the start."""


@dataclass(frozen=True)
class Imbalance:
    """Unequal work: a different rank is last each time. `with_tokens`: it follows the ranks' tokens."""

    spread_s: float
    usual_s: float
    last: dict[int, int]
    """Number of steps on which each rank was last."""
    with_tokens: bool


@dataclass(frozen=True)
class Pause:
    """A single step on which one rank made the others wait."""

    rank: int
    step: int
    excess_s: float
    phase: str


_Matrix = npt.NDArray[np.float64]
"""One row per step, one column per rank."""


class Table:
    """The usable steps of all ranks, side by side. `steps` have a wall time, `timed` ones also phases (if
    steps are short, not every step is timed)."""

    def __init__(self, ranks: Sequence[Facts]) -> None:
        self.ranks = [facts.rank for facts in ranks]
        by_rank = [{step.step: step for step in facts.steps if not _odd(step)} for facts in ranks]
        common = set.intersection(*map(set, by_rank)) if by_rank else set()
        self.steps = [step for step in sorted(common) if step >= WARM_UP_STEPS][-WINDOW_STEPS:]
        self.timed = [step for step in self.steps if not any(steps[step].shadow for steps in by_rank)]
        self.wall_s = _matrix([[rows[step].wall_s for rows in by_rank] for step in self.steps], ranks)
        self.usual_s = float(np.median(self.wall_s)) if self.steps else 0.0
        fast = np.sort(self.wall_s.min(axis=1)) if self.steps else np.zeros(1)
        self.fast_s = float(np.median(fast[: max(1, len(fast) // 4)]))
        """Step time without a straggler: the median of the fastest quarter of the known steps."""
        self.end_ns = {step: by_rank[0][step].t_ns for step in self.steps}
        timed = np.array([[_phases(rows[step]) for rows in by_rank] for step in self.timed], np.float64)
        timed = np.nan_to_num(timed.reshape(len(self.timed), len(ranks), len(_TIMED)))  # NULL is NaN here
        self.phase_s = {phase: timed[:, :, place] for place, phase in enumerate(_TIMED)}
        self.more_s = {phase: beyond_others(self.phase_s[phase]) for phase in PHASES}
        self.tokens = _tokens([[rows[step] for rows in by_rank] for step in self.timed], ranks)
        by_cpp = any(by_cpp_too(facts.calls) for facts in ranks)
        waits = bool(self.phase_s["comm"].any())
        self.own = PHASES if waits and not by_cpp else tuple(one for one in PHASES if one != "backward")
        """Phases in which a rank does not wait for others: backward is excluded if C++ averages in it."""
        self.own_s: _Matrix = np.sum([self.phase_s[phase] for phase in self.own], axis=0)
        """Working time of each rank, in its own phases."""

    def lasted_s(self, steps: Sequence[int]) -> float:
        """Time from the end of the first of these steps to the end of the last."""
        return (self.end_ns[steps[-1]] - self.end_ns[steps[0]]) / 1e9 if steps else 0.0

    def since(self, step: int) -> slice:
        """The timed steps from `step` on; the last timed one if there is none."""
        first = next((place for place, one in enumerate(self.timed) if one >= step), len(self.timed) - 1)
        return slice(max(0, first), None)


def beyond_others(figures: _Matrix) -> _Matrix:
    """Each figure minus the median of the other ranks' figures on the same step."""
    count = figures.shape[1]
    if count < 2 or not len(figures):
        return np.zeros_like(figures)
    order = np.sort(figures, axis=1)
    place = figures.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    lower, upper = (count - 2) // 2, (count - 1) // 2
    found = np.zeros_like(figures)
    for middle in (lower, upper):  # without the rank itself, the ranks above it move down by one
        index = np.where(place <= middle, middle + 1, middle)
        found += np.take_along_axis(order, index, axis=1) / 2
    return np.asarray(figures - found)


def by_cpp_too(calls: Sequence[Call]) -> bool:
    """Whether C++ issues collectives, as DistributedDataParallel does within backward: the Flight Recorder
    has some, or, if it is read too rarely, sequence numbers of a group are missing on most steps."""
    if any(call.source == "flight" for call in calls):
        return True
    numbers: dict[str, dict[int, int]] = defaultdict(dict)
    for call in calls:
        if call.pg is not None and call.seq is not None and call.step is not None and not call.point_to_point:
            numbers[call.pg][call.seq] = call.step
    for of_group in numbers.values():
        gaps = {of_group[after] for before, after in pairwise(sorted(of_group)) if after > before + 1}
        if len(gaps) >= FEWEST_STEPS and len(gaps) >= GAPS_RATIO * len(set(of_group.values())):
            return True
    return False


def _matrix(lines: list[list[float]], ranks: Sequence[Facts]) -> _Matrix:
    return np.array(lines, np.float64).reshape(len(lines), len(ranks))


def _odd(step: Step) -> bool:
    return bool(step.sampled) or bool(step.held_s)


def _tokens(lines: list[list[Step]], ranks: Sequence[Facts]) -> _Matrix | None:
    """Tokens (or else samples) of each rank; None if unknown for any rank."""
    counts = [[row.tokens if row.tokens is not None else row.samples for row in line] for line in lines]
    known = [[float(one) for one in line if one is not None] for line in counts]
    return _matrix(known, ranks) if all(len(line) == len(ranks) for line in known) else None


def aligned(ranks: Sequence[Facts]) -> list[Facts] | None:
    """The facts with steps renumbered as the first rank counts them; None if it is ambiguous which steps are
    the same. Attached ranks may start counting at different steps."""
    first = {step.step: step for step in ranks[0].steps}
    near_ns = 0.7e9 * statistics.median([step.wall_s for step in ranks[0].steps] or [0.0])
    for facts in ranks[1:]:
        apart_ns = [abs(first[step.step].t_ns - step.t_ns) for step in facts.steps if step.step in first]
        if len(apart_ns) < FEWEST_STEPS or statistics.median(apart_ns) > near_ns:
            break
    else:
        return list(ranks)
    ends = {facts.rank: [(step.step, step.t_ns) for step in facts.steps] for facts in ranks}
    found = alignment.offsets(ends)
    if found is None:
        return None
    return [
        replace(facts, steps=tuple(step._replace(step=step.step + found[facts.rank]) for step in facts.steps))
        for facts in ranks
    ]


# Lateness ---------------------------------------------------------------------------


def lateness(ranks: Sequence[Facts]) -> tuple[list[int], _Matrix]:
    """Steps, and the largest delay in seconds with which each rank reached the step's collectives after the
    first rank. Derived from waiting times if known (without comparing clocks), else, for ranks of one host,
    from call times."""
    one_host = len({facts.host for facts in ranks}) == 1
    by_number: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for facts in ranks:
        for call in facts.calls:
            if call.pg is None or call.seq is None or call.step is None or call.asynchronous:
                continue
            if call.source == "flight" or call.state == DONE:
                by_number[call.pg, call.seq].append(call)
    found: dict[int, list[float]] = {}
    for calls in by_number.values():
        late_s = _late_s(calls, one_host) if len(calls) == len(ranks) else None
        if late_s is not None:
            step = calls[0].step or 0  # as the first rank counts
            known = found.get(step)
            found[step] = late_s if known is None else list(map(max, known, late_s))
    steps = sorted(found)
    return steps, _matrix([found[step] for step in steps], ranks)


def _late_s(calls: Sequence[Call], one_host: bool) -> list[float] | None:
    """The delay of each rank in one collective, in the order of the ranks; None if unknown."""
    waits = [call.wait_s for call in calls if call.wait_s is not None]
    if len(waits) == len(calls):
        longest = max(waits)
        return [longest - wait_s for wait_s in waits]
    if not one_host:
        return None
    first = min(call.t_ns for call in calls)
    return [(call.t_ns - first) / 1e9 for call in calls]


# Verdicts -------------------------------------------------------------------------


class _Slow(NamedTuple):
    """A slow rank (its column), its median excess, and its slow steps up to now."""

    column: int
    excess_s: float
    since: list[int]
    from_before: bool = False
    """Whether it has been slow for about the whole period considered."""


def find(ranks: Sequence[Facts]) -> Straggler | Imbalance | None:
    """The rank that the others wait for, or an imbalance if it changes; None if neither is clear."""
    known = aligned(ranks) if len(ranks) > 1 else None
    if known is None:
        return None
    ranks, table = known, Table(known)
    if len(table.steps) < FEWEST_STEPS or table.usual_s <= 0 or not table.timed:
        return None
    steps, late_s = lateness(ranks)
    kept = [place for place, step in enumerate(steps) if step in table.end_ns]
    steps, late_s = [steps[place] for place in kept], late_s[kept]
    by_arrival = _persistent(table, steps, late_s)
    by_work = _persistent(table, table.timed, table.own_s)
    if by_arrival is None and by_work is None:
        return _periodic(table, steps, late_s) or _imbalance(table)
    if by_arrival is not None and by_work is not None and by_arrival.column != by_work.column:
        return None  # the evidence disagrees
    chosen = by_arrival or by_work
    assert chosen is not None
    if by_arrival is None and not _others_wait(table, chosen):
        return None
    return _by_tokens(table, chosen) or _straggler(table, chosen)


def _persistent(table: Table, steps: list[int], figures: _Matrix) -> _Slow | None:
    """A rank whose figure has exceeded the others' up to now; None without one."""
    if len(steps) < FEWEST_STEPS:
        return None
    least_s = max(SLOW_S, SLOW_RATIO * table.fast_s)
    excess_s = beyond_others(figures)
    column = int(np.median(excess_s[-FEWEST_STEPS:], axis=0).argmax())
    since = _since(steps, (excess_s[:, column] >= least_s).tolist())
    if len(since) < FEWEST_STEPS or table.lasted_s(since) < SHORTEST_S:
        return None
    median_s = float(np.median(excess_s[-len(since) :, column]))
    from_before = len(since) >= len(steps) - FEWEST_STEPS
    return _Slow(column, median_s, since, from_before) if median_s >= least_s else None


def _since(steps: Sequence[int], slow: Sequence[bool]) -> list[int]:
    """The longest sequence of last steps of which most are slow, including the first and the last ones."""
    if len(slow) < FEWEST_STEPS or sum(slow[-FEWEST_STEPS:]) < FEWEST_STEPS - 1:
        return []
    best, count = len(slow), 0
    for taken, position in enumerate(range(len(slow) - 1, -1, -1), 1):
        count += slow[position]
        if slow[position] and count >= STEADY_RATIO * taken:
            best = position
    return list(steps[best:])


def _others_wait(table: Table, slow: _Slow) -> bool:
    """Whether all ranks' steps take as long as the culprit's: the others wait while it works longer."""
    walls_s = np.median(table.wall_s[[step >= slow.since[0] for step in table.steps]], axis=0)
    return float(walls_s.min()) >= 0.7 * float(walls_s[slow.column])


def _straggler(table: Table, slow: _Slow) -> Straggler:
    rank, timed = table.ranks[slow.column], table.since(slow.since[0])
    more_s = {phase: float(np.median(table.more_s[phase][timed, slow.column])) for phase in PHASES}
    phase = max(more_s, key=lambda name: more_s[name])
    seen = more_s[phase] >= 0.5 * slow.excess_s
    others = [column for column in range(len(table.ranks)) if column != slow.column]
    evidence = []
    for column in [slow.column, *others][:_MOST_RANKS]:
        medians = {name: float(np.median(rows[timed, column])) for name, rows in table.phase_s.items()}
        said = ", ".join(
            f"{'in collectives' if name == 'comm' else name} {_ms(medians[name])}" for name in medians
        )
        evidence.append(f"rank {table.ranks[column]}: {said}")
    return Straggler(
        rank, KINDS[phase] if seen else "late arrival", phase if seen else None, slow.excess_s, table.fast_s,
        slow.since[0], slow.since[-1], slow.since[-1] - slow.since[0] + 1, tuple(evidence),
        from_before=slow.from_before and table.steps[0] > 2 * WARM_UP_STEPS,
    )


def _periodic(table: Table, steps: list[int], late_s: _Matrix) -> Straggler | None:
    """A rank that is slow occasionally by itself: not in work beside the training (an evaluation, a
    checkpoint), and not because it had more data. Judged by its arrival at collectives; if that is unknown
    (inside backward of DistributedDataParallel), by its phases."""
    if table.tokens is None:
        return None
    phases = [phase for phase in table.own if phase != "other"]
    more_s = np.stack([table.more_s[phase] for phase in phases])
    more_s[:, table.tokens > 1.5 * np.median(table.tokens, axis=0)] = 0.0
    by_phase = _now_and_then(table, table.timed, more_s.max(axis=0))
    found = _now_and_then(table, steps, beyond_others(late_s)) or by_phase
    if found is None:
        return None
    places = [table.timed.index(step) for step in found.since if step in table.timed]
    own_s = more_s[:, places, found.column]
    if not places or float(np.median(own_s.max(axis=0))) < 0.5 * found.excess_s:
        return None
    named = [phases[int(one)] for one in own_s.argmax(axis=0)]
    phase = statistics.mode(named)
    evidence = tuple(
        f"step {table.timed[place]}: {name} {_ms(float(longest_s))} longer than the others'"
        for place, name, longest_s in list(zip(places, named, own_s.max(axis=0), strict=True))[-4:]
    )
    return Straggler(
        table.ranks[found.column], KINDS[phase], phase, found.excess_s, table.usual_s, found.since[0],
        found.since[-1], len(found.since), evidence, float(np.median(np.diff(found.since))),
    )


def _now_and_then(table: Table, steps: list[int], excess_s: _Matrix) -> _Slow | None:
    """The only rank that far exceeds the others on several of these steps."""
    if table.lasted_s(steps) < SHORTEST_S:
        return None
    slow = excess_s >= max(2 * SLOW_S, table.usual_s)
    counts = slow.sum(axis=0)
    column = int(counts.argmax())
    places = np.flatnonzero(slow[:, column])
    if len(places) < PERIODIC_STEPS or counts.sum() - counts[column] > len(places) // 4:
        return None
    if len(places) >= STEADY_RATIO * (places[-1] - places[0] + 1):
        return None  # slow on all of these steps: persistent, or it was for a while
    chosen_s = excess_s[places, column]
    whole_s = float(table.wall_s[np.isin(table.steps, steps), column].sum())
    if float(chosen_s.sum()) < PERIODIC_RATIO * whole_s:
        return None
    return _Slow(column, float(np.median(chosen_s)), [steps[place] for place in places])


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


# Unequal work ---------------------------------------------------------------------


def _by_tokens(table: Table, slow: _Slow) -> Imbalance | None:
    """An imbalance if the rank's surplus of tokens explains its excess."""
    if table.tokens is None:
        return None
    timed = table.since(slow.since[0])
    tokens = np.median(table.tokens[timed], axis=0)
    others = float(np.median(np.delete(tokens, slow.column)))
    mine = float(tokens[slow.column])
    if others <= 0 or mine <= others * (1 + TOKENS_RATIO):
        return None
    own_s = float(np.median(table.own_s[timed, slow.column]))
    if own_s * (1 - others / mine) < EXPLAINED_RATIO * slow.excess_s:
        return None
    return Imbalance(slow.excess_s, table.usual_s, {table.ranks[slow.column]: len(slow.since)}, True)


def _imbalance(table: Table) -> Imbalance | None:
    slowest = table.own_s.argmax(axis=1)
    spread_s = float(np.median(table.own_s.max(axis=1) - np.median(table.own_s, axis=1)))
    if spread_s < max(SLOW_S, SLOW_RATIO * table.usual_s) or table.lasted_s(table.timed) < SHORTEST_S:
        return None
    counts = np.bincount(slowest, minlength=len(table.ranks))
    if counts.max() > TURNS_RATIO * len(table.timed):
        return None
    last = {table.ranks[column]: int(counts[column]) for column in np.flatnonzero(counts)}
    same = 0.0 if table.tokens is None else float((table.tokens.argmax(axis=1) == slowest).mean())
    return Imbalance(spread_s, table.usual_s, last, same >= TURNS_RATIO)


def last_pause(ranks: Sequence[Facts]) -> Pause | None:
    """The last step on which one rank alone worked much longer than usual while the others waited."""
    known = aligned(ranks) if len(ranks) > 1 else None
    if known is None:
        return None
    table = Table(known)
    if len(table.timed) < FEWEST_STEPS:
        return None
    excess_s = beyond_others(table.own_s)
    long = np.argwhere(excess_s >= max(PAUSE_S, PAUSE_STEPS * table.usual_s))
    if not len(long):
        return None
    place, column = (int(one) for one in long[-1])
    phase = max(table.own, key=lambda name: float(table.more_s[name][place, column]))
    return Pause(table.ranks[column], table.timed[place], float(excess_s[place, column]), phase)
