"""Stall thresholds: when a process counts as late, stalled, busy or starved, with units and sources.

`[stall-thresholds]` in the `parameters.toml` of PROBE_RECIPES overrides them, like the parameters of recipes;
`probe recipes show stall-thresholds` lists the current values. Plain data. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STALL_THRESHOLDS = "stall-thresholds"
"""Their section name among the recipes."""


def _threshold(value: float, unit: str, source: str) -> Any:
    return field(default=value, metadata={"unit": unit, "source": source})


@dataclass(frozen=True)
class StallThresholds:
    """The current thresholds. PROBE_STALL_S, a setting of each job, is the least time that counts as a stall."""

    stall_steps: float = _threshold(4.0, "steps", "a step is late after this many usual steps: a hang should be noticed within five")
    warm_up_s: float = _threshold(300.0, "s", "a step is late after this long while the usual step time is not known: compiling or forming a group takes minutes; our judgement")
    history_factor: float = _threshold(1.5, "ratio", "a wait is a stall beyond this multiple of the longest pause the run recovered from; our judgement")
    history_most_s: float = _threshold(1800.0, "s", "cap on the pauses that count for history_factor: gloo's default timeout of collectives")
    unsure_factor: float = _threshold(3.0, "ratio", "multiplies the limit for threads that poll or compute with the GIL held")
    long_s: float = _threshold(600.0, "s", "a call or checkpoint this long is an alarm: NCCL's default timeout")
    long_moving_s: float = _threshold(3600.0, "s", "the same while the stack keeps changing without a step; our judgement")
    long_factor: float = _threshold(10.0, "ratio", "the same as a multiple of the stall limit, where that is longer")
    quiet_s: float = _threshold(1.0, "s", "training counts as running while its last sign of progress is no older than this")
    quiet_steps: float = _threshold(3.0, "steps", "the same in usual steps")
    busy_ratio: float = _threshold(0.25, "ratio", "of a CPU: a thread that uses more is working, not polling")
    rest_ratio: float = _threshold(0.02, "ratio", "of a CPU: a thread that uses no more is asleep")
    starved_ratio: float = _threshold(0.9, "ratio", "share of its runnable time that a thread waited for a CPU")
    starved_window_ratio: float = _threshold(0.5, "ratio", "a starved thread also spends at least this share of the total time waiting for a CPU")
    throttled_ratio: float = _threshold(0.5, "ratio", "share of periods in which the cgroup used up its CPU quota")
    swap_faults_per_s: float = _threshold(50.0, "1/s", "major faults that slow any loop: 0.1-10 ms each")
    still_ratio: float = _threshold(0.8, "ratio", "share of the observed time: a thread asleep for longer counts as still")
    samples_missed: float = _threshold(3.0, "samples", "once the agent has missed this many, no Python code is running")
