"""Signs in the last rows of a run that are worth a round of recipes at once: cheap to see, no verdict.

A loss that is not finite, one far above those before it, memory that runs short, a record of the process
itself (it noted a NaN's origin). What they mean is for the recipes to say. A few reads a second for each run;
called on the server's threads. May import numpy.
"""

from __future__ import annotations

import contextlib

import numpy as np

from probe.base.errors import RecordingError
from probe.recording import places
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER
from probe.recording.reader import Rows, open_ring
from probe.recording.recording import Meta
from probe.server.recordings.registry import Recorded

WINDOW = 128
ENOUGH = 40
SIGMAS = 6.0
"""Of the losses before: as the recipe on spikes has them (OLMo: 6 standard deviations over 128 steps)."""
SHORT_RATIO = 0.1
"""Memory that is left, of all there is."""


class Triggers:
    """What was seen of one process; `look` says whether there is a new sign."""

    def __init__(self) -> None:
        self.rows = 0
        """Rows of the tables that recipes judge, as of the last look: changes when there are new ones."""
        self._highest: dict[str, int] = {}
        self._bad = False
        self._high = False
        self._short = False
        self._journal_bytes = -1
        self._samples = 0

    def look(self, recorded: Recorded) -> bool:
        """Whether something began since the last look. Nothing when the rings are gone."""
        found = [False]
        with contextlib.suppress(OSError, RecordingError):
            found.append(self._losses(recorded.meta))
        with contextlib.suppress(OSError, RecordingError):
            found.append(self._memory(recorded.meta))
        with contextlib.suppress(OSError):
            size = places.journals(recorded.folder)[0].stat().st_size
            found.append(self._journal_bytes not in (-1, size))
            self._journal_bytes = size
        self.rows = sum(self._highest.values()) + max(0, self._journal_bytes)
        return any(found)

    def _losses(self, meta: Meta) -> bool:
        known = self._highest.get("python.steps", 0)
        with open_ring(meta, "python.steps") as ring:
            highest = self._highest["python.steps"] = ring.highest(known)
            # The last few once more: their losses may have come since.
            rows = ring.read(max(0, highest - WINDOW), highest) if highest > known else None
        bad = rows is not None and self._new("_bad", bool(_nonfinite(rows).any()))
        high = rows is not None and self._new("_high", _is_high(rows, highest - known))
        with open_ring(meta, "python.losses") as ring:
            before = self._highest.get("python.losses", 0)
            highest = self._highest["python.losses"] = ring.highest(before)
            if highest > before and rows is None:  # no step ends any more, and there are losses
                bad = self._new("_bad", bool(_nonfinite(ring.read(max(0, highest - WINDOW), highest)).any()))
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
        """Whether a sign is there that was not at the look before."""
        before = getattr(self, name)
        setattr(self, name, now)
        return now and not before


def _nonfinite(rows: Rows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    losses = rows["loss"]
    return np.asarray((losses != NULL_DOUBLE) & ~np.isfinite(losses))


def _is_high(rows: Rows, new: int) -> bool:
    """Whether one of the `new` last losses is far above those before them."""
    losses = rows["loss"]
    known = losses[(losses != NULL_DOUBLE) & np.isfinite(losses)]
    new = min(max(new, 1), 16)
    before, last = known[:-new], known[-new:]
    if len(before) < ENOUGH:
        return False
    usual = float(np.median(before))
    scatter = 1.4826 * float(np.median(np.abs(before - usual)))
    return bool(last.max() - usual > SIGMAS * max(scatter, 0.002 * abs(usual)))
