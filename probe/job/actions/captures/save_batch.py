"""Save batch: writes the batch of the last NaN or infinity that was traced, else the last batch, to a file.

The NaN detector keeps that batch if it is small enough (`batch_history.LARGEST_BYTES`), until the next event
or until it is dropped here. The request's thread writes it; the training is not involved. Standard library
only; torch inside functions.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from probe.base.errors import ActionFailed, ActionRefused
from probe.job.actions.action import Action, Site, flag
from probe.job.actions.captures.artifact import Artifact
from probe.job.actions.saving.plain_data import LEFT_OUT, Plain
from probe.job.instruments.core.tensor_summaries import content_hash, tensors_in
from probe.job.instruments.loop.batch_history import as_list

VERSION = 1
TRACED_S = 5.0
"""How long to wait for the trace of the event."""


class SaveBatch(Action):
    """Write the kept batch to `path` with `torch.save`; `drop`: release it afterwards."""

    name = "save_batch"
    takes = ("path", "overwrite", "drop")
    writes = "path"
    undoable = False
    reading = True

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        self._drop = flag(arguments, "drop")
        self._kept = site.kept_batch()
        if self._kept is None:
            raise ActionRefused(
                "no batch is held: none came from a DataLoader yet, or it was too large",
                hint="`SELECT * FROM python.nonfinite` lists the events; their indices name the samples.",
            )
        self._artifact = Artifact(arguments)
        self._plain: dict[str, Any] | None = None
        self._notes: list[str] = []

    def begin(self) -> None:
        """Collect the content; no tensor is copied."""
        if self._kept is None:
            return
        _, batch = self._kept
        left_out: list[str] = []
        content = Plain(left_out, self._notes).of(batch.content, "batch")
        if left_out:
            self._notes.append(f"left out because not plain data: {', '.join(left_out[:8])}")
        self._plain = {
            "version": VERSION, "batch": None if content is LEFT_OUT else content,
            "indices": as_list(batch.indices), "loader": batch.loader, "step": batch.step,
            "micro_step": batch.micro_step, "event": None,
        }

    def report(self) -> dict[str, Any]:
        """Write it."""
        plain, self._plain = self._plain, None
        if plain is None or self._kept is None:
            raise ActionFailed("probe left the process; no file was written")
        event, batch = self._kept
        if event is None:
            self._notes.append("no NaN or infinity was seen, so this is the latest batch")
        else:
            plain["event"] = self._traced(event)
        then = (plain["event"] or {}).get("content_hash")
        if then and then != content_hash(list(tensors_in(batch.content))):
            self._notes.append("the program changed the batch in place: it differs from what the model saw")

        def write(path: Path) -> None:
            import torch

            torch.save(plain, path)

        size_bytes = self._artifact.fill(write)
        if self._drop:
            self.site.drop_batch()
        return {
            "what": f"batch of step {batch.step}, micro step {batch.micro_step}, into {self._artifact}",
            "notes": self._notes, "path": str(self._artifact.path), "bytes": size_bytes,
            "step": batch.step, "micro_step": batch.micro_step, "indices": plain["indices"],
        }

    def _traced(self, event: Any) -> dict[str, Any] | None:
        """The event's row, once it has been traced; None, with a note, if that takes too long."""
        until_s = time.monotonic() + TRACED_S
        while not event.row and time.monotonic() < until_s:
            time.sleep(0.01)
        if event.row:
            return dict(event.row)
        self._notes.append("its origin is still being traced, and is not in the file")
        return None

    def cancel(self) -> None:
        """Release it."""
        self._kept = self._plain = None
