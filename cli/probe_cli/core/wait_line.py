"""Wait line: shows in a terminal what a command waits for, the elapsed time and the progress.

After a short delay a thread writes one line to stderr, updates it and finally removes it. Writes nothing in a
pipe. Standard library only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from probe_cli.core.figures import bar

if TYPE_CHECKING:
    from probe_cli.core.terminal import Output

QUIET_S = 0.5
"""Delay before the line appears: most commands have answered by then."""
_REFRESH_S = 0.25
_BAR = 20


class Progress:
    """Progress of a wait: `what` it waits for, and `done` of `total` if a total is known. `look`, if given,
    updates them before each write, on the line's thread. `since_s`: start of the wait on the monotonic
    clock; now by default."""

    def __init__(
        self, what: str, look: Callable[[Progress], object] | None = None, since_s: float | None = None
    ) -> None:
        self.what = what
        self.done = 0.0
        self.total: float | None = None
        self._look = look
        self._began_s = time.monotonic() if since_s is None else since_s

    def elapsed_s(self) -> float:
        """Time since the wait began."""
        return time.monotonic() - self._began_s

    def line(self) -> str:
        """`1.2 s: reading the log`, `1.2 s: ██████████░░░░░░░░░░  50 % reading the log`."""
        if self._look is not None:
            self._look(self)
        text = f"{self.elapsed_s():.1f} s: "
        if self.total is not None and self.total > 0:
            ratio = max(0.0, min(1.0, self.done / self.total))
            text += f"{bar(int(ratio * _BAR) / _BAR, _BAR):░<{_BAR}} {100 * ratio:3.0f} % "
        return text + self.what


_shown: list[Progress] = []
"""The wait shown now: the outermost, which is the most informative."""
_line_lock: list[Any] = []
"""The lock of the line while there is one; its holder may write to the terminal."""


@contextlib.contextmanager
def waiting(
    err: Output, what: str, look: Callable[[Progress], object] | None = None, since_s: float | None = None
) -> Iterator[Progress]:
    """While the block runs, show `what` it waits for: `1.2 s: waiting for …`; with its progress, if the block
    or `look` update it. `look` is called on the line's thread, only in a terminal. See `Progress`."""
    progress = Progress(what, look, since_s)
    if not err.moves or _shown:
        yield progress
        return
    import threading

    over = threading.Event()
    _line_lock.append(threading.Lock())
    _shown.append(progress)

    def say() -> None:
        shown = False
        while not over.wait(_REFRESH_S if shown else max(_REFRESH_S, QUIET_S - progress.elapsed_s())):
            text = err.style(progress.line()[: (err.width or 80) - 1], "dim")
            with _line_lock[0]:
                err.stream.write(f"\r\x1b[K{text}")
                err.stream.flush()
            shown = True
        if shown:
            err.stream.write("\r\x1b[K")
            err.stream.flush()

    thread = threading.Thread(target=say, name="waiting", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        over.set()
        thread.join()
        _shown.remove(progress)
        _line_lock.clear()


@contextlib.contextmanager
def beside(err: Output) -> Iterator[None]:
    """Hide the wait line while the block writes to the terminal; the line reappears afterwards."""
    if not (err.moves and _line_lock):
        yield
        return
    with _line_lock[0]:
        err.stream.write("\r\x1b[K")
        yield
        err.stream.flush()
