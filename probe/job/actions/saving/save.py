"""Save: one checkpoint file, from the copy on the training thread to the verified file.

`begin` runs on the training thread, `finish` on the request's thread, or on `probe-save` for automatic
checkpoints. Standard library only.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from pathlib import Path
from typing import Any

from probe.base.errors import ActionFailed, ActionRefused
from probe.base.isolation import capture
from probe.job.actions.action import Site, enumerated
from probe.job.actions.saving import snapshot, verified_file
from probe.job.actions.saving.plain_data import memory_available_bytes, stored_bytes, tensors_in
from probe.job.actions.saving.verified_file import size_text

COPY_ROOM = 2.0
"""A copy needs this many times its size in free memory; else the training thread writes the file itself."""
_FINISH_S, _GIVE_UP_S = 2.0, 10.0
"""How long the end of the process waits for a file that is being written: to finish; then to give up, which
takes as long as torch needs for the rest of it. Python aborts a process that ends while a thread is in
torch's writer."""
MOST_LISTED = 20
"""Limit of left-out names in an answer; the file has all."""


class Save:
    """One checkpoint: `begin` on the training thread, then `finish` on another."""

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
        self._writing = verified_file.Writing(path, self._given_up)
        self._taken: snapshot.Snapshot | None = None
        self._written = False
        self._nonfinite: list[tuple[str, int]] = []
        self._contains: dict[str, dict[str, Any]] = {}
        self.held_s = 0.0

    def begin(self) -> None:
        """Copy the state, or, if memory is short, write it straight into the file."""
        _, error = capture(self._begin)
        if error is not None:
            self._taken = None
            raise without_traces(error)

    def _begin(self) -> None:
        begun_s = time.monotonic()
        verified_file.check_target(self.path, self._overwrite)
        moment = self._moment()
        taken = self._snapshot()
        size_bytes = taken.size_bytes
        verified_file.check_room(self.path.parent, size_bytes)
        available = memory_available_bytes()
        self._taken = taken
        if available is None or available >= COPY_ROOM * size_bytes:
            taken.copy_to_host()
        else:
            self._write()
            self._taken.notes.append(
                f"memory was short ({size_text(available)} free), so nothing was copied and the "
                f"training thread wrote the file itself: it was held for {time.monotonic() - begun_s:.1f} s"
            )
        if not self._site.boundary and moment != self._moment():
            taken.notes.append(
                "the training continued while the state was copied: some parameters may be of one step and "
                "some of the next. Without `--now` all are of one step"
            )
        self.held_s = time.monotonic() - begun_s

    def _snapshot(self) -> snapshot.Snapshot:
        """What to save."""
        return snapshot.take(self._site)

    def _moment(self) -> tuple[Any, ...]:
        """Position of the training, to see later whether it has continued."""
        recorder = self._site.recorder
        return recorder.counted_step, recorder.micro_step, recorder.phase

    def finish(self) -> dict[str, Any]:
        """Write and verify the snapshot; returns the answer. Raises `ProbeError` if there is no new file."""
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
        """The process ends, or probe leaves it: wait a moment for a file that is being written, then drop
        it."""
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
                f"{self._describe_nonfinite()}; {self.path} was not replaced",
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
        """Hook for subclasses."""

    def _publish(self, taken: snapshot.Snapshot) -> dict[str, Any]:
        available = memory_available_bytes()
        load = available is None or available >= verified_file.ROOM * self._writing.size_bytes
        self._writing.verify(load=load)
        self._writing.publish(overwrite=self._overwrite)
        if not load:
            taken.notes.append(
                "memory is short: the file was compared with the bytes written, but not loaded as a test"
            )
        return self._answer(taken)

    def _answer(self, taken: snapshot.Snapshot) -> dict[str, Any]:
        notes = list(taken.notes)
        if self._nonfinite:
            notes.append(f"{self._describe_nonfinite()}: a run that continues from here starts with them")
        if taken.left_out:
            listed = enumerated(taken.left_out, MOST_LISTED)
            notes.append(f"left out because not plain data: {listed}")
        content = taken.content
        step = content["step"]
        at = "the job" if step is None else f"step {step}"
        return {
            "what": f"{at} is saved in {self.path} ({size_text(self._writing.size_bytes)}, verified)",
            "notes": notes,
            "path": str(self.path), "bytes": self._writing.size_bytes, "sha256": self._writing.sha256,
            "step": step, "epoch": content["epoch"], "verified": True,
            "contains": self._contains,
            "found": taken.found, "not_found": taken.not_found, "left_out": taken.left_out[:MOST_LISTED],
            "boundary": content["probe"]["boundary"], "held_ms": self.held_s * 1e3,
            "nonfinite": dict(self._nonfinite),
        }

    def _describe_nonfinite(self) -> str:
        names = enumerated([name for name, _ in self._nonfinite], snapshot.MOST_NAMED)
        total = sum(count for _, count in self._nonfinite)
        return f"{total} values of the parameters are NaN or infinite, in {names}"


def without_traces(error: BaseException) -> BaseException:
    """The error without its tracebacks, whose frames hold the state of the job."""
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error
