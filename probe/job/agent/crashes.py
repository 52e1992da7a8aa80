"""Crashes: the stacks of a process that a fatal signal ends, by the standard library's faulthandler.

faulthandler writes the stacks of all threads into `crash.txt` and passes the signal on to the previous
handler, so the process dies as it would have. The job has priority: if it enables faulthandler, or has its
own handler for a fatal signal, ours is disabled; `is_enabled` and `disable` answer as if ours were not there.
Installed, uninstalled and removed in forked children by `endings`. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import os
import signal
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probe.base import descriptors
from probe.job.instruments.core.patch import Patches

FATAL = (signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL)
"""The signals that faulthandler handles."""
_ACTION_BYTES = 512
"""Room for a `struct sigaction` of any libc; its first member is the handler."""
_HANDLER_BYTES = ctypes.sizeof(ctypes.c_void_p)


class _Sink:
    """The file object of faulthandler, which holds the only reference to it while it writes there."""

    def __init__(self, number: int) -> None:
        self._number = number

    def fileno(self) -> int:
        return self._number

    def flush(self) -> None:
        return


class Crashes:
    """Our use of faulthandler."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._patches = Patches()
        self._file: descriptors.Descriptor | None = None
        self._sink: Callable[[], _Sink | None] = lambda: None
        self._actions: dict[int, bytes] = {}
        self._disable = faulthandler.disable

    @property
    def ours(self) -> bool:
        """Whether faulthandler writes to our file now."""
        return self._sink() is not None

    def install(self) -> None:
        """Enable faulthandler, unless something else handles a fatal signal."""
        if faulthandler.is_enabled() or any(map(_handler, actions().values())):
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        self._file = descriptors.opened(self._path, flags, keep=True)
        sink = _Sink(self._file.fileno())
        faulthandler.enable(sink, all_threads=True)
        self._sink = weakref.ref(sink)
        self._actions = actions()
        self._patches.wrap(faulthandler, "enable", self._enable)
        self._patches.wrap(faulthandler, "is_enabled", self._unless_ours)
        self._patches.wrap(faulthandler, "disable", self._unless_ours)

    def uninstall(self) -> None:
        """Restore everything as the job would have it; delete an empty file."""
        self._patches.undo()
        self._give_up()
        with contextlib.suppress(OSError):
            if self._path.stat().st_size == 0:
                self._path.unlink()

    def check(self) -> None:
        """Take the number back from faulthandler if the job has closed our file: it writes to a number and
        cannot check which file that is by now. The agent's thread, every second."""
        if self._file is None or self._file.ours:
            return
        self._patches.undo()
        was_ours = self.ours
        self._give_up()
        if was_ours:
            self.install()

    def leave(self) -> None:
        """At the interpreter's end: stay enabled, so that later fatal signals are recorded until the
        interpreter restores the handlers. If others have replaced ours, give up, to keep theirs."""
        if self.ours and self._others():
            self._give_up()

    def abandon(self) -> None:
        """In a forked child: its crash is not the parent's."""
        self._patches.undo()
        self._give_up()

    def _give_up(self) -> None:
        if self.ours:
            others = self._others()
            self._disable()  # restores the handlers from before ours, even over later ones
            for number, action in others.items():
                _libc().sigaction(number, action, None)
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _others(self) -> dict[int, bytes]:
        """Handlers that have replaced ours since."""
        return {
            number: action
            for number, action in actions().items()
            if _handler(action) not in (_handler(self._actions[number]), 0)
        }

    def _enable(self, original: Any) -> Any:
        def enable(*args: Any, **kwargs: Any) -> Any:
            if self._patches.live[0] and self.ours:
                self._give_up()
            return original(*args, **kwargs)

        return enable

    def _unless_ours(self, original: Any) -> Any:
        def ask() -> Any:
            return False if self._patches.live[0] and self.ours else original()

        return ask


def actions() -> dict[int, bytes]:
    """The handler of each fatal signal, as the kernel keeps it. Raises `OSError`."""
    found: dict[int, bytes] = {}
    for number in FATAL:
        action = ctypes.create_string_buffer(_ACTION_BYTES)
        if _libc().sigaction(int(number), None, action) != 0:
            raise OSError(f"the handler of {number.name} cannot be read")
        found[int(number)] = action.raw
    return found


def _handler(action: bytes) -> int:
    """Address of the handler; 0 for none."""
    return int.from_bytes(action[:_HANDLER_BYTES], "little")


@functools.cache
def _libc() -> Any:
    try:
        libc = ctypes.CDLL(None)
        libc.sigaction  # noqa: B018
    except (OSError, AttributeError, TypeError) as error:
        raise OSError(f"no C library: {error}") from None
    return libc
