"""Checkpoint: the state of the job in a file that a later run continues from.

Either one file, at the next boundary (`path`); or, standing, one every so many
steps in a folder, of which the newest and the best are kept (`folder`). The
training thread copies (`snapshot`), the request's thread, or `probe-save` for
standing ones, writes and verifies (`saving`). docs/checkpoint.md describes the
file. Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from probe.agent.isolation import capture, describe, say
from probe.control.action import Action, Site, only, whole_number
from probe.control.actions import saving, snapshot
from probe.control.actions.plain_data import memory_available_bytes, stored_bytes, tensors_in
from probe.errors import ActionFailed, ActionRefused, BadRequest, NotUndoable, ProbeError
from probe.recording.layout import NULL_DOUBLE
from probe.tables import BY_NAME

if TYPE_CHECKING:
    from probe.control.actions.checkpoint_of_all import SaveOfAll

COPY_ROOM = 2.0
"""So many times its size must be free in memory for a copy; else the training thread writes itself."""
PATIENCE = 3
"""Automatic checkpoints that fail one after the other before no more are tried."""
DEFAULT_KEEP = 3
_LOSS_FIELD = [column.name for column in BY_NAME["python.steps"].columns].index("loss")
_FINISH_S, _GIVE_UP_S = 2.0, 10.0
"""How long the end of the process waits for a file that is being written: to be finished; then to be given
up, which takes as long as torch takes to walk over the rest of it. Python aborts a process that ends while a
thread is in torch's writer."""
MOST_LISTED = 20
"""Of what was left out, so many are listed in the answer; the file names all."""


class Save:
    """One checkpoint on its way: `begin` on the training thread, then `finish` on another."""

    def __init__(
        self, site: Site, path: Path, *, overwrite: bool = False, finite_only: bool = False
    ) -> None:
        self._site = site
        self.path = path
        self._overwrite = overwrite
        self._finite_only = finite_only
        self._process = os.getpid()
        self._given_up = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._writing = saving.Writing(path, self._given_up)
        self._taken: snapshot.Snapshot | None = None
        self._written = False
        self._nonfinite: list[tuple[str, int]] = []
        self._contains: dict[str, dict[str, Any]] = {}
        self.held_s = 0.0

    def begin(self) -> None:
        """Take the state: a copy, or, where memory is short, straight into the file."""
        _, error = capture(self._begin)
        if error is not None:
            self._taken = None
            raise _without_traces(error)

    def _begin(self) -> None:
        begun_s = time.monotonic()
        saving.check_target(self.path, self._overwrite)
        moment = self._moment()
        taken = self._snapshot()
        size_bytes = taken.size_bytes
        saving.check_room(self.path.parent, size_bytes)
        available = memory_available_bytes()
        self._taken = taken
        if available is None or available >= COPY_ROOM * size_bytes:
            taken.copy_to_host()
        else:
            self._write()
            self._taken.notes.append(
                f"memory was short ({saving.size_text(available)} free), so nothing was copied and the "
                f"training thread wrote the file itself: it was held for {time.monotonic() - begun_s:.1f} s"
            )
        if not self._site.boundary and moment != self._moment():
            taken.notes.append(
                "the training went on while it was taken: its parameters may be of two steps, some of one "
                "and some of the next. Without `--now` all are of one"
            )
        self.held_s = time.monotonic() - begun_s

    def _snapshot(self) -> snapshot.Snapshot:
        """What is to be saved."""
        return snapshot.take(self._site)

    def _moment(self) -> tuple[Any, ...]:
        """Where the training is: it differs later when the training went on."""
        recorder = self._site.recorder
        return recorder.counted_step, recorder.micro_step, recorder.phase

    def finish(self) -> dict[str, Any]:
        """Write and verify what was taken; the answer. Raises a `ProbeError` when there is no new file."""
        taken = self._taken
        if taken is None:
            raise ActionFailed("probe left the process before the file was written; there is no new file")
        self._idle.clear()
        atexit.register(self.give_up)
        try:
            if not self._written:
                self._write()
            return self._publish(taken)
        finally:
            self._writing.discard()
            self._taken = None  # as large as the model
            self._idle.set()
            atexit.unregister(self.give_up)

    def give_up(self) -> None:
        """The process ends, or probe leaves it: a moment for a file that is being written, then no file."""
        if os.getpid() != self._process:
            return  # a forked child: the file is its parent's
        if not self._idle.wait(_FINISH_S):
            self._given_up.set()
            self._idle.wait(_GIVE_UP_S)
        self._writing.discard()
        self._taken = None

    def _write(self) -> None:
        assert self._taken is not None
        self._nonfinite = snapshot.nonfinite_parameters(self._taken)
        if self._nonfinite and self._finite_only:
            raise ActionRefused(f"{self._describe_nonfinite()}; the ones before are kept")
        if self._nonfinite and self.path.exists():
            raise ActionRefused(
                f"{self._describe_nonfinite()}; {self.path} was not replaced by that",
                hint="Name a new file to keep this state too.",
            )
        self._contains = {
            name: {
                "kind": kind, "tensors": sum(1 for _ in tensors_in(held)), "bytes": stored_bytes(held),
            }
            for name, kind in self._taken.kinds.items() for held in (self._taken.held(name),)
        }
        self._before_writing(self._taken)
        self._writing.write(self._taken.content)
        self._written = True

    def _before_writing(self, taken: snapshot.Snapshot) -> None:
        """What is left to do with what was taken."""

    def _publish(self, taken: snapshot.Snapshot) -> dict[str, Any]:
        available = memory_available_bytes()
        load = available is None or available >= saving.ROOM * self._writing.size_bytes
        self._writing.verify(load=load)
        self._writing.publish(overwrite=self._overwrite)
        if not load:
            taken.notes.append(
                "memory is short: the file was compared with what was written, and not loaded to try it"
            )
        return self._answer(taken)

    def _answer(self, taken: snapshot.Snapshot) -> dict[str, Any]:
        notes = list(taken.notes)
        if self._nonfinite:
            notes.append(f"{self._describe_nonfinite()}: a run that continues from here begins with that")
        if taken.left_out:
            more = len(taken.left_out) - MOST_LISTED
            listed = ", ".join(taken.left_out[:MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
            notes.append(f"left out, being no plain data: {listed}")
        content = taken.content
        step = content["step"]
        at = "the job" if step is None else f"step {step}"
        return {
            "what": f"{at} is saved in {self.path} ({saving.size_text(self._writing.size_bytes)}, verified)",
            "notes": notes,
            "path": str(self.path), "bytes": self._writing.size_bytes, "sha256": self._writing.sha256,
            "step": step, "epoch": content["epoch"], "verified": True,
            "contains": self._contains,
            "found": taken.found, "not_found": taken.not_found, "left_out": taken.left_out[:MOST_LISTED],
            "boundary": content["probe"]["boundary"], "held_ms": self.held_s * 1e3,
            "nonfinite": dict(self._nonfinite),
        }

    def _describe_nonfinite(self) -> str:
        names = ", ".join(name for name, _ in self._nonfinite[: snapshot.MOST_NAMED])
        more = len(self._nonfinite) - snapshot.MOST_NAMED
        total = sum(count for _, count in self._nonfinite)
        return (
            f"{total} values of the parameters are NaN or infinite, in {names}"
            f"{f' and {more} more' if more > 0 else ''}"
        )


class Checkpoint(Action):
    """Save the job once, or every so many steps; on all ranks together, into one folder."""

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
            from probe.control.actions.checkpoint_of_all import SaveOfAll

            self._of_all = SaveOfAll(arguments, site)
            self.undoable = False
        elif "path" in arguments:
            only(arguments, "path", "overwrite")
            overwrite = arguments.get("overwrite", False)
            if not isinstance(overwrite, bool):
                raise BadRequest("`overwrite` must be true or false")
            path = saving.place_of(arguments["path"])
            saving.check_target(path, overwrite)
            self._one = Save(site, path, overwrite=overwrite)
            self.undoable = False
        else:
            self._many = Automatic(arguments, site)
            self.needs_random_states = True

    def begin(self) -> None:
        """Take the state now; or, for automatic ones, begin to count steps."""
        if self._one is not None:
            self._one.begin()
        elif self._of_all is not None:
            self._of_all.begin()
        else:
            self.standing = True

    def report(self) -> dict[str, Any]:
        """Write the file and say what is in it."""
        if self._one is not None:
            return self._one.finish()
        if self._of_all is not None:
            return self._of_all.finish()
        assert self._many is not None
        return self._many.describe()

    def at_boundary(self) -> None:
        """An automatic one when it is due."""
        if self._many is not None:
            self._many.at_boundary()
            self.standing = not self._many.ended

    def undo(self) -> str:
        """No more automatic ones; the files stay."""
        if self._many is None:
            raise NotUndoable(
                "a checkpoint changes nothing in the run, so there is nothing to put back",
                hint="The file is yours to delete.",
            )
        self.standing = False
        self._many.end()
        return f"no more checkpoints are made; {self._many.summary()}"

    def cancel(self) -> None:
        """Leave nothing half written."""
        super().cancel()
        if self._one is not None:
            self._one.give_up()
        if self._of_all is not None:
            self._of_all.give_up()
        if self._many is not None:
            self._many.give_up()


class Kept(NamedTuple):
    """An automatic checkpoint that is on the disk."""

    path: Path
    identity: tuple[int, ...]
    loss: float | None

    def is_still_ours(self) -> bool:
        """Whether the file at that path is the one that was written."""
        return _identity(self.path) == self.identity


class Automatic:
    """Checkpoints every so many steps; the newest ones and the best are kept."""

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        only(arguments, "folder", "every", "keep", "best")
        self._site = site
        self._folder = saving.place_of(arguments["folder"], "folder")
        saving.check_folder(self._folder)
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
        """The answer to who asked for them."""
        best = " and the one with the lowest mean loss" if self._by_loss else ""
        return {
            "what": f"every {self._every} steps a checkpoint is written to {self._folder}, and the newest "
            f"{self._keep}{best} are kept",
            "notes": ["only files that this action wrote are ever deleted"],
            "folder": str(self._folder), "every": self._every, "keep": self._keep,
            "best": "loss" if self._by_loss else None,
        }

    def summary(self) -> str:
        """What came of it so far."""
        text = f"{self._made} were written and {len(self._kept)} of them are in {self._folder}"
        if self._failed:
            text += f", {self._failed} failed"
        if self._missed:
            text += f", {self._missed} were passed over while the one before was being written"
        return text

    def end(self) -> None:
        """No more; one that is being written will be there."""
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
        """`step-00001200.pt`; a file of that name that is there already is left alone."""
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
        """Delete what is neither new nor the best, as long as it is what was written."""
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
    """The mean loss of the steps since it was last taken. A device delivers a loss a step late."""

    def __init__(self) -> None:
        self._row: list[Any] | None = None
        self._sum, self._count = 0.0, 0

    def add(self, row: list[Any]) -> None:
        """The fields of a python.steps row, once for each step."""
        self._count_row()
        self._row = row

    def take(self) -> float | None:
        """The mean, and begin anew; None without any loss, and where one was not finite."""
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
    """What tells a file from another at the same path; empty when there is none."""
    try:
        found = os.lstat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _without_traces(error: BaseException) -> BaseException:
    """An error whose traces no longer hold on to what their frames held: the state of the job."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
