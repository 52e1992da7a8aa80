"""The thresholds by which a process counts as late, stalled, busy or starved, with their units and sources.

`[stall-thresholds]` in the `parameters.toml` of PROBE_RECIPES overrides them as it does those of recipes;
`probe recipes show stall-thresholds` lists the values in force. Plain data. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STALL_THRESHOLDS = "stall-thresholds"
"""Their name among the recipes."""


def _threshold(value: float, unit: str, source: str) -> Any:
    return field(default=value, metadata={"unit": unit, "source": source})


@dataclass(frozen=True)
class StallThresholds:
    """The thresholds in force. PROBE_STALL_S, a setting of each job, is the least time that is a stall."""

    stall_steps: float = _threshold(
        4.0, "steps", "a step is late after so many usual ones: a hang is to be noticed within five"
    )
    warm_up_s: float = _threshold(
        300.0, "s", "… before there is a usual step: compiling or forming a group takes minutes. Judgement"
    )
    history_factor: float = _threshold(1.5, "ratio", "… where a run went on from longer pauses. Judgement")
    history_most_s: float = _threshold(
        1800.0, "s", "longer pauses make a run no more patient: gloo's default time limit of collectives"
    )
    unsure_factor: float = _threshold(3.0, "ratio", "longer, for what polls or computes with the GIL held")
    long_s: float = _threshold(600.0, "s", "a long call or checkpoint is an alarm: NCCL's default time limit")
    long_moving_s: float = _threshold(3600.0, "s", "… going from line to line without a step. Judgement")
    long_factor: float = _threshold(10.0, "ratio", "… or so many times what is a stall, where that is longer")
    quiet_s: float = _threshold(1.0, "s", "training goes on as usual while its last sign is no older")
    quiet_steps: float = _threshold(3.0, "steps", "… or than so many usual steps")
    busy_ratio: float = _threshold(0.25, "ratio", "of a core: a thread that uses more works, not polls")
    rest_ratio: float = _threshold(0.02, "ratio", "of a core: a thread that uses no more is asleep")
    starved_ratio: float = _threshold(0.9, "ratio", "of the time a thread wanted to run it waited for a core")
    starved_window_ratio: float = _threshold(0.5, "ratio", "… and that was so much of all time")
    throttled_ratio: float = _threshold(0.5, "ratio", "of periods in which the control group was out of CPU")
    swap_faults_per_s: float = _threshold(50.0, "1/s", "major faults that slow any loop: 0.1-10 ms each")
    still_ratio: float = _threshold(0.8, "ratio", "of the time watched: a thread asleep so long is still")
    samples_missed: float = _threshold(3.0, "samples", "missed by the agent: Python does not run")
