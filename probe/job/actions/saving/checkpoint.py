"""Checkpoint: the state of the job in a file from which a later run continues.

Either one file, at the next boundary (`path`), or one every `every` steps in a folder, of which the newest
and the best are kept (`folder`). The training thread copies (`snapshot`); the request's thread, or
`probe-save` for automatic ones, writes and verifies. docs/checkpoint.md describes the file. Standard library
only.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

from probe.base.errors import BadRequest, NotUndoable, ProbeError
from probe.base.isolation import capture, describe, say
from probe.job.actions.action import Action, Site, flag, only, whole_number
from probe.job.actions.saving import verified_file
from probe.job.actions.saving.checkpoint_of_all import SaveOfAll
from probe.job.actions.saving.save import Save
from probe.recording.layout import NULL_DOUBLE
from probe.recording.tables import BY_NAME

PATIENCE = 3
"""Failures in a row after which automatic checkpoints end."""
DEFAULT_KEEP = 3
_LOSS_FIELD = [column.name for column in BY_NAME["python.steps"].columns].index("loss")


class Checkpoint(Action):
    """Save the job once, or every `every` steps; on all ranks together, into one folder."""

    name = "checkpoint"
    begins_anywhere = True

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        arguments = {name: value for name, value in arguments.items() if value is not None}
        super().__init__(arguments, site)
        if ("path" in arguments) == ("folder" in arguments):
            raise BadRequest("a checkpoint takes `path`, a file, or `folder` and `every`, in steps")
        self._one: Save | None = None
        self._many: Automatic | None = None
        self._of_all: SaveOfAll | None = None
        if site.together:
            self._of_all = SaveOfAll(arguments, site)
            self.undoable = False
        elif "path" in arguments:
            only(arguments, "path", "overwrite")
            overwrite = flag(arguments, "overwrite")
            path = verified_file.place_of(arguments["path"])
            verified_file.check_target(path, overwrite)
            self._one = Save(site, path, overwrite=overwrite)
            self.undoable = False
        else:
            self._many = Automatic(arguments, site)
            self.needs_random_states = True

    def begin(self) -> None:
        """Copy the state; or, for automatic ones, begin to count steps."""
        if self._one is not None:
            self._one.begin()
        elif self._of_all is not None:
            self._of_all.begin()
        else:
            self.standing = True

    def report(self) -> dict[str, Any]:
        """Write the file and describe its content."""
        if self._one is not None:
            return self._one.finish()
        if self._of_all is not None:
            return self._of_all.finish()
        assert self._many is not None
        return self._many.describe()

    def at_boundary(self) -> None:
        """Begin an automatic one if it is due."""
        if self._many is not None:
            self._many.at_boundary()
            self.standing = not self._many.ended

    def undo(self) -> str:
        """End automatic checkpoints; the files stay."""
        if self._many is None:
            raise NotUndoable(
                "a checkpoint changes nothing in the run, so there is nothing to undo",
                hint="The file is yours to delete.",
            )
        self.standing = False
        self._many.end()
        return f"no more checkpoints are made; {self._many.summary()}"

    def cancel(self) -> None:
        """Leave no partial file."""
        super().cancel()
        if self._one is not None:
            self._one.give_up()
        if self._of_all is not None:
            self._of_all.give_up()
        if self._many is not None:
            self._many.give_up()


class Kept(NamedTuple):
    """An automatic checkpoint on the disk."""

    path: Path
    identity: tuple[int, ...]
    loss: float | None

    def is_still_ours(self) -> bool:
        """Whether the file at that path is the one that was written."""
        return _identity(self.path) == self.identity


class Automatic:
    """Checkpoints every `every` steps; the newest ones and the best are kept."""

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        only(arguments, "folder", "every", "keep", "best")
        self._site = site
        self._folder = verified_file.place_of(arguments["folder"], "folder")
        verified_file.check_folder(self._folder)
        self._every = whole_number(arguments, "every", least=1)
        self._keep = whole_number(arguments, "keep", DEFAULT_KEEP, least=1)
        if arguments.get("best") not in (None, "loss"):
            raise BadRequest(f"`best` must be loss, not {arguments['best']!r}")
        self._by_loss = arguments.get("best") == "loss"
        self._loss = MeanLoss()
        self._save: Save | None = None
        self._thread: threading.Thread | None = None
        self._kept: list[Kept] = []
        self._made = self._failed = self._failed_in_a_row = self._missed = 0
        self.ended = False

    def describe(self) -> dict[str, Any]:
        """The answer."""
        best = " and the one with the lowest mean loss" if self._by_loss else ""
        return {
            "what": f"every {self._every} steps a checkpoint is written to {self._folder}, and the newest "
            f"{self._keep}{best} are kept",
            "notes": ["only files that this action wrote are ever deleted"],
            "folder": str(self._folder), "every": self._every, "keep": self._keep,
            "best": "loss" if self._by_loss else None,
        }

    def summary(self) -> str:
        """What was written so far."""
        text = f"{self._made} were written and {len(self._kept)} of them are in {self._folder}"
        if self._failed:
            text += f", {self._failed} failed"
        if self._missed:
            text += f", {self._missed} were skipped while the one before was being written"
        return text

    def end(self) -> None:
        """Make no more; one that is being written is finished."""
        self.ended = True

    def give_up(self) -> None:
        """Probe leaves the process: one that is being written is finished quickly or removed."""
        self.ended = True
        if self._save is not None:
            self._save.give_up()

    def at_boundary(self) -> None:
        """On the training thread, at every boundary."""
        if self.ended:
            return
        recorder = self._site.recorder
        if recorder.last_row is not None:
            self._loss.add(recorder.last_row)
        step = recorder.counted_step
        if not step or step % self._every:
            return
        if self._thread is not None and self._thread.is_alive():
            self._missed += 1
            return
        loss = self._loss.take()
        _, error = capture(lambda: self._begin(step, loss))
        if isinstance(error, Exception):
            self._note_failure(step, error)
        elif error is not None:
            raise error  # an interrupt from the keyboard is the job's

    def _begin(self, step: int, loss: float | None) -> None:
        save = Save(self._site, self._free_path(step), finite_only=True)
        save.begin()
        self._save = save
        self._thread = threading.Thread(
            target=lambda: self._finish(save, step, loss), name="probe-save", daemon=True
        )
        self._thread.start()

    def _free_path(self, step: int) -> Path:
        """`step-00001200.pt`, with a number if that file exists already."""
        path = self._folder / f"step-{step:08d}.pt"
        count = 1
        while os.path.lexists(path):
            count += 1
            path = self._folder / f"step-{step:08d}.{count}.pt"
        return path

    def _finish(self, save: Save, step: int, loss: float | None) -> None:
        """On `probe-save`."""
        _, error = capture(save.finish)
        if error is not None:
            self._note_failure(step, error)
            return
        self._made += 1
        self._failed_in_a_row = 0
        self._kept.append(Kept(save.path, _identity(save.path), loss))
        self._prune()

    def _prune(self) -> None:
        """Delete the files that are neither new nor the best, unless they have been replaced."""
        known = [one for one in self._kept if one.loss is not None]
        best = min(known, key=lambda one: one.loss or 0.0) if self._by_loss and known else None
        newest = self._kept[-self._keep :]
        for one in self._kept[: -self._keep]:
            if one is best:
                newest.insert(0, one)
            elif one.is_still_ours():
                with contextlib.suppress(OSError):
                    os.unlink(one.path)
        self._kept = newest

    def _note_failure(self, step: int, error: BaseException) -> None:
        self._failed += 1
        self._failed_in_a_row += 1
        if self._failed_in_a_row >= PATIENCE:
            self.ended = True
        text = error.message if isinstance(error, ProbeError) else describe(error)
        end = "; no more are tried" if self.ended else ""
        say(f"the automatic checkpoint at step {step} was not made: {text}{end}")


class MeanLoss:
    """The mean loss since the last `take`. A device delivers a loss one step late."""

    def __init__(self) -> None:
        self._row: list[Any] | None = None
        self._sum, self._count = 0.0, 0

    def add(self, row: list[Any]) -> None:
        """The fields of a python.steps row, once for each step."""
        self._count_row()
        self._row = row

    def take(self) -> float | None:
        """The mean, and start over; None without any loss, or if one was not finite."""
        self._count_row()
        mean = self._sum / self._count if self._count else None
        self._sum, self._count = 0.0, 0
        return mean if mean is not None and mean - mean == 0.0 else None

    def _count_row(self) -> None:
        row, self._row = self._row, None
        if row is not None and row[_LOSS_FIELD] != NULL_DOUBLE:
            self._sum += row[_LOSS_FIELD]
            self._count += 1


def _identity(path: Path) -> tuple[int, ...]:
    """Identity of a file, to recognize a later one at the same path; empty without a file."""
    try:
        found = os.lstat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
