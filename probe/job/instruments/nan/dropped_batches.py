"""Dropped batches: searches for NaNs in batches that never reach a backward.

A job that skips steps with a non-finite loss hides bad samples: no backward sees the loss. `loop.data`
detects such a batch when the next one is fetched. The agent's thread, which runs all of this module, reads
some of them and writes python.inputs: rarely, and only batches in host memory. torch inside functions.
"""

from __future__ import annotations

import time

from probe.base.clock import wall_ns
from probe.job.instruments.core.tensor_summaries import batch_summary, tensors_in
from probe.job.instruments.loop.data import Data
from probe.job.instruments.nan.nonfinite_events import inputs_rows
from probe.recording.journal import Journal

FIRST_PAUSE_S, LONGEST_PAUSE_S = 2.0, 600.0
"""First and longest pause between two checks; each pause is twice the previous one."""
SPACING = 50
"""A pause is at least this many times as long as the check took."""


class DroppedBatches:
    """Checks the batches that `data` reported as dropped."""

    def __init__(self, data: Data, journal: Journal) -> None:
        self._data, self._journal = data, journal
        self.looked = 0
        """Number of batches read."""
        self._next_s = 0.0
        self._pause_s = FIRST_PAUSE_S

    def collect(self) -> None:
        """One round on the agent's thread."""
        batch = self._data.dropped
        begun_s = time.monotonic()
        if batch is None or begun_s < self._next_s:
            return
        content = batch.alive()
        if content is not None and all(tensor.is_cpu for _, tensor in tensors_in(content)):
            rows = inputs_rows(batch_summary(content), batch, wall_ns(), "dropped")
            self._journal.append({"table": "python.inputs", "rows": rows})
            self.looked += 1
            took_s = time.monotonic() - begun_s
            self._next_s = time.monotonic() + max(self._pause_s, SPACING * took_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        del content, batch
        self._data.dropped = None
