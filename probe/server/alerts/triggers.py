"""Triggers: cheap signs of trouble in the last rows of a run, on which the recipes run at once.

A loss that is not finite, a loss far above those before it, little free memory, a new record in the process's
journal (such as the origin of a NaN). The recipes decide what it means. A few reads per second and run;
called on the server's threads. May import numpy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from probe.base.errors import RecordingError
from probe.diagnose.recipes.recipe import Recipe
from probe.recording import places
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER
from probe.recording.reader import Rows, open_ring
from probe.recording.recording import Meta
from probe.server.recordings.registry import Recorded

NONFINITE_ROWS = 128
"""Newest losses that are checked for NaN and infinity."""
SHORT_RATIO = 0.1
"""Share of free memory below which it runs short."""


class SpikeThresholds(NamedTuple):
    """The parameters in force of the recipe `loss-spike`."""

    window: int
    enough: int
    sigmas: float


def spike_thresholds(recipes: Mapping[str, Recipe]) -> SpikeThresholds | None:
    """The thresholds of a loss spike; None if the user's own recipe of that name has no such parameters."""
    try:
        parameters = recipes["loss-spike"].parameters
        window, enough, sigmas = (float(parameters[name].value) for name in SpikeThresholds._fields)
        return SpikeThresholds(max(1, int(window)), int(enough), sigmas)
    except (KeyError, ValueError):
        return None


class Triggers:
    """The signs of one process; `check` says whether there is a new one."""

    def __init__(self) -> None:
        self.rows = 0
        """Rows of the tables that recipes read, at the last check: changes when there are new ones."""
        self._highest: dict[str, int] = {}
        self._bad = False
        self._high = False
        self._short = False
        self._journal_bytes = -1
        self._samples = 0

    def check(self, recorded: Recorded, spikes: SpikeThresholds | None) -> bool:
        """Whether there is a new sign since the last check; none when the rings are gone."""
        found = [False]
        with contextlib.suppress(OSError, RecordingError):
            found.append(self._losses(recorded.meta, spikes))
        with contextlib.suppress(OSError, RecordingError):
            found.append(self._memory(recorded.meta))
        with contextlib.suppress(OSError):
            size = places.journals(recorded.folder)[0].stat().st_size
            found.append(self._journal_bytes not in (-1, size))
            self._journal_bytes = size
        self.rows = sum(self._highest.values()) + max(0, self._journal_bytes)
        return any(found)

    def _losses(self, meta: Meta, spikes: SpikeThresholds | None) -> bool:
        known = self._highest.get("python.steps", 0)
        window = NONFINITE_ROWS if spikes is None else max(NONFINITE_ROWS, spikes.window)
        with open_ring(meta, "python.steps") as ring:
            highest = self._highest["python.steps"] = ring.highest(known)
            # Rows that were read before are read again: their losses may have been added since.
            rows = ring.read(max(0, highest - window), highest) if highest > known else None
        bad = rows is not None and self._new("_bad", bool(_nonfinite(rows[-NONFINITE_ROWS:]).any()))
        spike = rows is not None and spikes is not None and _is_high(rows, highest - known, spikes)
        high = rows is not None and self._new("_high", spike)
        with open_ring(meta, "python.losses") as ring:
            before = self._highest.get("python.losses", 0)
            highest = self._highest["python.losses"] = ring.highest(before)
            if highest > before and rows is None:  # no step ends any more, but there are losses
                newest = ring.read(max(0, highest - NONFINITE_ROWS), highest)
                bad = self._new("_bad", bool(_nonfinite(newest).any()))
        return bad or high

    def _memory(self, meta: Meta) -> bool:
        with open_ring(meta, "process.memory") as ring:
            self._samples, rows = ring.last(self._samples)
        if not len(rows) or "available_bytes" not in (rows.dtype.names or ()):
            return False
        left, limit = int(rows[-1]["available_bytes"]), int(rows[-1]["limit_bytes"])
        short = NULL_INTEGER not in (left, limit) and left < SHORT_RATIO * limit
        return self._new("_short", short)

    def _new(self, name: str, now: bool) -> bool:
        """Whether a sign is new since the last check."""
        before = getattr(self, name)
        setattr(self, name, now)
        return now and not before


def _nonfinite(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    losses = rows["loss"]
    return np.asarray((losses != NULL_DOUBLE) & ~np.isfinite(losses))


def _is_high(rows: Rows, new: int, spikes: SpikeThresholds) -> bool:
    """Whether one of the `new` last losses is far above those before them."""
    losses = rows["loss"][-spikes.window :]
    known = losses[(losses != NULL_DOUBLE) & np.isfinite(losses)]
    new = min(max(new, 1), 16)
    before, last = known[:-new], known[-new:]
    if len(before) < spikes.enough:
        return False
    usual = float(np.median(before))
    scatter = 1.4826 * float(np.median(np.abs(before - usual)))
    return bool(last.max() - usual > spikes.sigmas * max(scatter, 0.002 * abs(usual)))
