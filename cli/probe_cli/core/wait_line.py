"""Tells a person at a terminal what a command waits for, for how long already, and how far it has come.

A thread writes one line of stderr after a moment, keeps it current and removes it. Nothing in a pipe.
Standard library only.
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
"""Delay before anything is said: most commands have answered by then."""
_REFRESH_S = 0.25
_BAR = 20


class Progress:
    """What is waited for, and how far it is: `done` of `total`, where a total is known. `look`, if given,
    sets them anew before the line is written, on its thread. `since_s`: when the wait began, on the
    monotonic clock; now by default."""

    def __init__(
        self, what: str, look: Callable[[Progress], object] | None = None, since_s: float | None = None
    ) -> None:
        self.what = what
        self.done = 0.0
        self.total: float | None = None
        self._look = look
        self._began_s = time.monotonic() if since_s is None else since_s

    def elapsed_s(self) -> float:
        """For how long it has been waited for."""
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


_said: list[Progress] = []
"""What is being waited for: the outermost, which says most."""
_turn: list[Any] = []
"""The lock of the line, while there is one: who holds it writes to the terminal."""


@contextlib.contextmanager
def waiting(
    err: Output, what: str, look: Callable[[Progress], object] | None = None, since_s: float | None = None
) -> Iterator[Progress]:
    """While the block runs, say `what` it waits for: `1.2 s: waiting for …`; and how far it is, if the block
    or `look` (see `Progress`) tell. `look` is called on the line's thread, at a terminal only. `since_s`: see
    `Progress`."""
    progress = Progress(what, look, since_s)
    if not err.moves or _said:
        yield progress
        return
    import threading

    over = threading.Event()
    _turn.append(threading.Lock())
    _said.append(progress)

    def say() -> None:
        shown = False
        while not over.wait(_REFRESH_S if shown else max(_REFRESH_S, QUIET_S - progress.elapsed_s())):
            text = err.style(progress.line()[: (err.width or 80) - 1], "dim")
            with _turn[0]:
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
        _said.remove(progress)
        _turn.clear()


@contextlib.contextmanager
def beside(err: Output) -> Iterator[None]:
    """While the block writes something else to the terminal: without the line, which comes again."""
    if not (err.moves and _turn):
        yield
        return
    with _turn[0]:
        err.stream.write("\r\x1b[K")
        yield
        err.stream.flush()
