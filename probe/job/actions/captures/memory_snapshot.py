"""Memory snapshot: every block of the device's allocator, as pytorch.org/memory_viz opens it.

In a job on the host, or on a device for which torch has no snapshot, it holds the memory use of models,
gradients and optimizers instead. Taken at a boundary, written by the request's thread. Standard library only;
torch inside functions.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from probe.base import accelerator, descriptors
from probe.base.errors import ActionFailed
from probe.job.actions.action import Action, Site
from probe.job.actions.captures.artifact import Artifact
from probe.job.actions.saving.verified_file import size_text
from probe.job.snippets.guard.memory_allowance import resident_bytes


class MemorySnapshot(Action):
    """Write the snapshot to `path`, pickled."""

    name = "memory_snapshot"
    takes = ("path", "overwrite")
    writes = "path"
    undoable = False
    begins_anywhere = True

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        self._blocks = False
        """Whether the snapshot is the device allocator's."""
        self._artifact = Artifact(arguments)
        self._snapshot: dict[str, Any] | None = None

    def begin(self) -> None:
        """Take it, without waiting for the device."""
        device = accelerator.current()
        found = None if device is None else device.snapshot()
        self._blocks = found is not None
        self._snapshot = _held(self.site) if found is None else found

    def report(self) -> dict[str, Any]:
        """Write it and summarize it."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            raise ActionFailed("probe left the process; no file was written")

        def write(path: Path) -> None:
            with descriptors.writing(descriptors.opened(path, os.O_WRONLY)) as file:
                pickle.dump(snapshot, file)

        size_bytes = self._artifact.fill(write)
        what, notes = _device_summary(snapshot) if self._blocks else _held_summary(snapshot)
        return {
            "what": f"{what}, into {self._artifact}", "notes": notes, "path": str(self._artifact.path),
            "bytes": size_bytes, "device": self._blocks,
        }

    def cancel(self) -> None:
        """Release it."""
        self._snapshot = None


def _device_summary(snapshot: dict[str, Any]) -> tuple[str, list[str]]:
    segments = snapshot.get("segments", [])
    reserved = sum(segment.get("total_size", 0) for segment in segments)
    allocated = sum(segment.get("allocated_size", 0) for segment in segments)
    what = f"{size_text(allocated)} allocated of {size_text(reserved)} reserved in {len(segments)} segments"
    if any(snapshot.get("device_traces", [])):
        return what, []
    return what, ["without a history: the job did not call _record_memory_history() of its device's memory"]


def _held(site: Site) -> dict[str, Any]:
    """Known parts of the memory, in bytes; shared memory counts once. None for gradients in the
    middle of a step: backward may write them."""
    seen: set[int] = set()
    roots, optimizers = site.modules(), site.optimizers()
    parameters = [one for root in roots for one in root.parameters()]
    gradients = None
    if site.recorder.owns_gradients():
        gradients = [one.grad for one in parameters if one.grad is not None]
    found = {
        "parameters": _bytes(parameters, seen),
        "buffers": _bytes((one for root in roots for one in root.buffers()), seen),
        "gradients": None if gradients is None else _bytes(gradients, seen),
        "optimizer_state": _bytes(
            (value for one in optimizers for state in one.state.values() for value in state.values()), seen
        ),
    }
    return {**found, "resident": resident_bytes()}


def _bytes(values: Iterable[Any], seen: set[int]) -> int:
    """Bytes behind tensors, without storages that were counted before."""
    tensor = sys.modules["torch"].Tensor
    total = 0
    for value in values:
        if isinstance(value, tensor) and value.layout is sys.modules["torch"].strided and not value.is_meta:
            storage = value.untyped_storage()
            if storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                total += storage.nbytes()
    return total


def _held_summary(snapshot: dict[str, Any]) -> tuple[str, list[str]]:
    known = {name.replace("_", " "): size for name, size in snapshot.items() if size is not None}
    parts = [f"{name} {size_text(size)}" for name, size in known.items()]
    device = accelerator.current()
    notes = [
        "the job uses no device: this is about the memory of the process" if device is None else
        f"torch has no snapshot of this device's allocator ({device.kind}): this is about the job's tensors"
    ]
    if snapshot["gradients"] is None:
        notes.append("gradients were not counted: backward may write them while they are read")
    return ", ".join(parts), notes
