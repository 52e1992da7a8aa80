"""Remaining time of a run: from its planned number of steps and the usual time of a step.

Reads python.plan and python.steps from the rings of a running process, at most every `AGAIN_S`. `ps`, `top`,
`health`, the page and the agents' tools all show these fields. Runs in threads of the server.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any, NamedTuple

from probe.base.errors import RecordingError
from probe.diagnose.process.progress import WARM_UP_STEPS
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER, Owner
from probe.recording.reader import RingFile
from probe.recording.recording import Meta
from probe.recording.strings import read_strings

AGAIN_S = 8.0
USUAL_STEPS = 1024
"""The usual time of a step is the mean over this many steps, including evaluations and checkpoints between
them, excluding time held by probe. Shorter runs: all steps except the first `WARM_UP_STEPS`."""
FEWEST_STEPS = 8


class TimeLeft(NamedTuple):
    """The expected end of a run; None means unknown."""

    total_steps: int | None = None
    """Number of recorded steps when the training ends."""
    total_source: str | None = None
    """The source of that number."""
    left_s: float | None = None
    """Remaining time at the usual time of a step."""


UNKNOWN = TimeLeft()


def time_left(meta: Meta, step: int | None) -> TimeLeft:
    """The remaining time of a running process that has finished this step."""
    if step is None:
        return UNKNOWN
    total, source, step_s = _read(meta.rings, meta.owner, int(time.monotonic() / AGAIN_S))
    if total is None:
        return UNKNOWN
    steps = total - (step + 1)  # steps are counted from 0
    return TimeLeft(total, source, None if step_s is None or steps < 0 else steps * step_s)


@functools.lru_cache(maxsize=1024)
def _read(rings: str, owner: Owner, _period: int) -> tuple[int | None, str | None, float | None]:
    """Total, its source, and the usual time of a step."""
    folder = Path(rings)
    try:
        with RingFile(folder / "python.plan.ring", owner) as ring:
            _, plans = ring.last()
            version = ring.version
        if not len(plans) or int(plans[-1]["total_steps"]) == NULL_INTEGER:
            return None, None, None
        texts, number = read_strings(folder / "strings", owner, version), int(plans[-1]["source"])
        with RingFile(folder / "python.steps.ring", owner) as ring:
            highest = ring.highest()
            rows = ring.read(max(WARM_UP_STEPS, highest - USUAL_STEPS), highest)
    except (OSError, RecordingError):  # the version has no plans, or the process has just ended
        return None, None, None
    source = texts[number] if number < len(texts) else None
    return int(plans[-1]["total_steps"]), source, _usual_s(rows)


def _usual_s(rows: Any) -> float | None:
    rows = rows[rows["wall_s"] != NULL_DOUBLE]
    if len(rows) < FEWEST_STEPS:
        return None
    held_s = rows["held_s"].copy()
    held_s[held_s == NULL_DOUBLE] = 0.0
    return float((rows["wall_s"] - held_s).mean())
