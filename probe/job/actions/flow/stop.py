"""Stop: end the training cleanly between two steps, optionally after a checkpoint.

The training thread raises SystemExit there: `finally` blocks and exit handlers run as usual. Standard library
only.
"""

from __future__ import annotations

import threading
from typing import Any

from probe.base.errors import ActionRefused, NotUndoable
from probe.job.actions.action import Action, Site, whole_number

HIGHEST_EXIT_CODE = 255


class Stop(Action):
    """End the training thread by SystemExit at the next boundary."""

    name = "stop"
    takes = ("checkpoint", "exit_code", "force")
    undoable = False

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        self._exit_code = whole_number(arguments, "exit_code", 0, most=HIGHEST_EXIT_CODE)
        if site.several_ranks and not site.together and not arguments.get("force"):
            raise ActionRefused(
                f"this is one rank of {site.world_size}: the others would wait for it forever",
                hint="Name the job instead of a rank to stop all ranks after the same step. `--force` stops "
                "only this one.",
            )
        self._checkpoint = self._prepare_checkpoint(arguments.get("checkpoint"))
        self._saved: dict[str, Any] | None = None

    def _prepare_checkpoint(self, path: object) -> Action | None:
        if path is None:
            return None
        from probe.job.actions.saving.checkpoint import Checkpoint

        return Checkpoint({"path": path}, self.site)

    def begin(self) -> None:
        """Save, and end only once that is done and verified."""
        if self._checkpoint is not None:
            self._checkpoint.begin()
            self._saved = self._checkpoint.report()
        self.site.safepoint.leave_with = self._exit_code

    can_take_back = True

    def take_back(self) -> None:
        """Continue the training; a saved checkpoint stays."""
        self.site.safepoint.leave_with = None

    def report(self) -> dict[str, Any]:
        """What was saved, and how the job ends."""
        thread = self.site.recorder.thread
        main = thread == threading.main_thread().ident
        end = f"the process ends with exit code {self._exit_code}" if main else "its thread ends"
        saved = self._saved or {}
        what = f"{saved['what']}; the training stops: {end}" if saved else f"the training stops: {end}"
        notes = [*saved.get("notes", [])]
        if not main:
            notes.append("it does not train on the main thread: the process continues without it")
        return {"what": what, "notes": notes, "checkpoint": saved or None, "exit_code": self._exit_code}

    def undo(self) -> str:
        """Too late."""
        raise NotUndoable("the training has ended")
