"""The thresholds by which a process counts as late, stalled, busy or starved, with their units and sources.

`[stall-thresholds]` in the `parameters.toml` of PROBE_RECIPES overrides them as it does those of recipes;
`probe recipes show stall-thresholds` lists the values in force. Plain data. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from probe.diagnose.recipes.recipe import Parameter

STALL_THRESHOLDS = "stall-thresholds"
"""Their name among the recipes."""


def _threshold(value: float, unit: str, source: str) -> Any:
    return field(default=value, metadata={"unit": unit, "source": source})


@dataclass(frozen=True)
class StallThresholds:
    """The thresholds in force. PROBE_STALL_S, a setting of each job, is the least time that is a stall."""

    stall_steps: float = _threshold(
        4.0, "steps", "a step is late after so many usual ones. A hang is to be noticed within five seconds "
        "or five usual steps, and looking takes one of them",
    )
    warm_up_s: float = _threshold(
        300.0, "s", "the same before there is a usual step: compiling, reading an index or forming a group "
        "takes minutes. Judgement",
    )
    history_factor: float = _threshold(
        1.5, "ratio", "a pause may be so much longer than the longest that the run went on from. Judgement"
    )
    history_most_s: float = _threshold(
        1800.0, "s", "longer pauses do not make a run more patient: the default time limit of gloo's "
        "collectives, after which a group gives up",
    )
    unsure_factor: float = _threshold(
        3.0, "ratio", "what wakes up now and then, or computes with the GIL held, is given so many times "
        "longer",
    )
    long_s: float = _threshold(
        600.0, "s", "computing in one call for so long, or writing a checkpoint, is an alarm: NCCL's default "
        "time limit, after which the other ranks give up",
    )
    long_moving_s: float = _threshold(
        3600.0, "s", "moving from line to line without a step for so long is an alarm: it may be an "
        "evaluation or a last export. Judgement",
    )
    long_factor: float = _threshold(
        10.0, "ratio", "… or for so many times what counts as a stall, where that is longer"
    )
    quiet_s: float = _threshold(1.0, "s", "training goes on as usual while its last sign is no older")
    quiet_steps: float = _threshold(3.0, "steps", "… or than so many usual steps")
    busy_ratio: float = _threshold(
        0.25, "ratio", "a thread that uses so much of a core works; one that waits and polls uses 0.02 or "
        "less",
    )
    rest_ratio: float = _threshold(0.02, "ratio", "a thread that uses no more of a core is asleep")
    starved_ratio: float = _threshold(
        0.9, "ratio", "starved: of the time it wanted to run it waited for a core for so much, and runs ten "
        "times slower",
    )
    starved_window_ratio: float = _threshold(0.5, "ratio", "… and that was so much of all time")
    throttled_ratio: float = _threshold(
        0.5, "ratio", "… or its control group was out of CPU in so many periods"
    )
    swap_faults_per_s: float = _threshold(
        50.0, "1/s", "major faults that slow any loop: at 0.1-10 ms each, half a percent to half of its time"
    )
    still_ratio: float = _threshold(
        0.8, "ratio", "asleep without a break for so much of the time it was watched: it does not poll"
    )
    samples_missed: float = _threshold(
        3.0, "samples", "the agent's thread is shut out of the interpreter when it missed so many"
    )


PARAMETERS = {
    one.name: Parameter(one.name, getattr(StallThresholds, one.name), **one.metadata)
    for one in fields(StallThresholds)
}
"""The built-in thresholds, as the parameters of recipes are listed."""
