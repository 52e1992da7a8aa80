"""Tells a person at a terminal what a command waits for, and for how long already.

A thread writes one line of stderr after a moment, keeps its time current and removes it. Nothing in a pipe.
Standard library only.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe_cli.core.terminal import Output

QUIET_S = 0.5
"""Delay before anything is said: most commands have answered by then."""
_REFRESH_S = 0.25
_said: list[str] = []
"""What is being waited for, the outermost first: that says most."""


@contextlib.contextmanager
def waiting(err: Output, what: str) -> Iterator[None]:
    """While the block runs, say `what` it waits for: `1.2 s: waiting for …`."""
    if not err.moves or _said:
        yield
        return
    import threading

    over = threading.Event()
    _said.append(what)

    def say() -> None:
        began, shown = time.monotonic(), False
        while not over.wait(_REFRESH_S if shown else QUIET_S):
            text = f"{time.monotonic() - began:.1f} s: {what}"
            err.stream.write(f"\r\x1b[K{err.style(text[: (err.width or 80) - 1], 'dim')}")
            err.stream.flush()
            shown = True
        if shown:
            err.stream.write("\r\x1b[K")
            err.stream.flush()

    thread = threading.Thread(target=say, name="waiting", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _said.remove(what)
