"""Memory snapshot: every block of the device's allocator, as pytorch.org/memory_viz opens it.

Taken at a boundary, written by the request's thread. Standard library only; torch
inside functions.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

from probe.control.action import Action, Site, only
from probe.control.actions.artifact import Artifact
from probe.control.actions.saving import size_text
from probe.errors import ActionFailed, ActionRefused


class MemorySnapshot(Action):
    """Write the allocator's state to `path`."""

    name = "memory_snapshot"
    undoable = False
    begins_anywhere = True

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        only(arguments, "path", "overwrite")
        torch: Any = sys.modules["torch"]
        if not torch.cuda.is_available() or not torch.cuda.is_initialized():
            raise ActionRefused(
                "the job uses no CUDA device: there is no allocator to look at",
                hint="The process's own memory over time is in process.memory.",
            )
        self._artifact = Artifact(arguments)
        self._snapshot: Any = None

    def begin(self) -> None:
        """Take it: no work is put on the device, and none is waited for."""
        self._snapshot = sys.modules["torch"].cuda.memory._snapshot()

    def report(self) -> dict[str, Any]:
        """Write it; how much is allocated in how many segments."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            raise ActionFailed("probe left the process; no file was written")
        segments = snapshot.get("segments", [])
        reserved = sum(segment.get("total_size", 0) for segment in segments)
        allocated = sum(segment.get("allocated_size", 0) for segment in segments)
        traced = any(snapshot.get("device_traces", []))

        def write(path: Path) -> None:
            with open(path, "wb") as file:
                pickle.dump(snapshot, file)

        size_bytes = self._artifact.fill(write)
        notes = [] if traced else [
            "without a history: the job did not call torch.cuda.memory._record_memory_history()"
        ]
        return {
            "what": f"{size_text(allocated)} allocated of {size_text(reserved)} reserved in {len(segments)} "
                    f"segments, into {self._artifact.path} ({size_text(size_bytes)})",
            "notes": notes, "path": str(self._artifact.path), "bytes": size_bytes,
            "allocated_bytes": allocated, "reserved_bytes": reserved, "segments": len(segments),
        }

    def cancel(self) -> None:
        """Let go of it."""
        self._snapshot = None
