"""File reads: finds files that the training thread repeatedly loads with `torch.load` or `numpy.load`.

Counts the calls on each path, and the time in them. HOT PATH: a lookup and two additions per read of a file;
no access to the file system. `run_facts` writes the counts on the agent's thread. Standard library, and the
job's numpy.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from probe.base.isolation import Isolation
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.facts.hyperparameters import Value

MOST_PATHS = 256
"""Maximum number of paths: a training with a file per sample has many, and reads each once per epoch."""
LEAST_CALLS, MOST_TOLD = 32, 4

now_ns = time.monotonic_ns
_ident = threading.get_ident


class _Reads:
    """The calls on one path in training steps: their number, the time in them, and their start. `lazy`: the
    call only opens the file, and its arrays are read when they are used (.npz)."""

    __slots__ = ("calls", "first_ns", "first_step", "lazy", "spent_ns")

    def __init__(self, step: int, begun_ns: int) -> None:
        self.calls = self.spent_ns = 0
        self.lazy = False
        self.first_step, self.first_ns = step, begun_ns


class FileReads:
    """Counts reads. `wrap` wraps `numpy.load`; the wrapper of `torch.load` (`resumption`) calls `read`."""

    def __init__(self, recorder: Recorder, isolation: Isolation) -> None:
        self._recorder = recorder
        self._paths: dict[str, _Reads] = {}
        self._patches = Patches()
        self.read = isolation.guard("file reads", self._read, traced=False)

    def wrap(self) -> None:
        """Wrap `numpy.load`; off the hot path."""
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return
        live, read, mapped, lazy = self._patches.live, self.read, numpy.memmap, numpy.lib.npyio.NpzFile

        def make(original: Any) -> Any:
            def load(*args: Any, **kwargs: Any) -> Any:
                begun_ns = now_ns()
                result = original(*args, **kwargs)
                if live[0] and args and type(result) is not mapped:  # a memory-mapped file is not read
                    read(args[0], begun_ns, type(result) is lazy)
                return result

            return load

        self._patches.wrap(numpy, "load", make)

    def unwrap(self) -> None:
        """Put the original back."""
        self._patches.undo()

    def facts(self) -> Iterator[tuple[str, Value]]:
        """The files read most often, with their counts in training steps."""
        known = [one for one in self._paths.copy().items() if one[1].calls >= LEAST_CALLS]
        for number, (path, reads) in enumerate(sorted(known, key=lambda one: -one[1].calls)[:MOST_TOLD]):
            yield f"reads{number}.path", path[-200:]
            yield f"reads{number}.calls", reads.calls
            yield f"reads{number}.steps", max(1, self._recorder.step - reads.first_step)
            if not reads.lazy:
                yield f"reads{number}.spent_ratio", reads.spent_ns / max(1, now_ns() - reads.first_ns)
            try:
                yield f"reads{number}.bytes", os.stat(path).st_size
            except OSError:
                continue

    # HOT PATH ---------------------------------------------------------------

    def _read(self, file: Any, begun_ns: int, lazy: bool = False) -> None:
        """A file was read, or only opened (`lazy`); that began at `begun_ns` by `now_ns`."""
        recorder = self._recorder
        if recorder.step < 1 or _ident() != recorder.thread:  # before step 1, data and checkpoints are loaded
            return
        path = file if type(file) is str else os.fspath(file) if isinstance(file, os.PathLike) else None
        if type(path) is not str:
            return
        known = self._paths.get(path)
        if known is None:
            if len(self._paths) >= MOST_PATHS:
                return
            known = self._paths[path] = _Reads(recorder.step, begun_ns)
        known.calls += 1
        known.lazy = bool(lazy)
        known.spent_ns += now_ns() - begun_ns
