"""Full-screen terminal for a live view: takes over the terminal, draws, reads keys, and restores it.

Draws on the alternate screen, so that the previous content reappears afterwards; sends only changed lines,
to save bandwidth over ssh. A signal that ends the program ends the view first. Runs in the command's main
thread; other threads call only `wake`. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import termios
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Any, TextIO

from probe_cli.core.terminal import NARROWEST, Output

_TAKE = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_GIVE_BACK = "\x1b[?7h\x1b[?25h\x1b[?1049l"
"""Enter the alternate screen, hide the cursor and cut long lines at the edge; and undo all of that."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_KEY = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z~]|O[A-Za-z])|.", re.DOTALL)
_NAMED = {
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "page up",
    "\x1b[6~": "page down", "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[F": "end",
    "\x1bOF": "end", "\x1b[4~": "end", "\x1b": "escape", "\r": "enter", "\n": "enter",
}


class FullScreen:
    """The terminal of a live view; a context manager."""

    def __init__(self, stdin: TextIO, out: Output) -> None:
        self._input = stdin.fileno()
        self._output = out.stream.fileno()
        self._encoding = out.stream.encoding or "utf-8"
        self._shown: list[str] = []
        self._size = (0, 0)
        self._writing = False
        self._suspended = False
        self._handlers: dict[int, Any] = {}
        self.ended: int | None = None
        """The signal that ended the view, if any."""

    def __enter__(self) -> FullScreen:
        self._modes = termios.tcgetattr(self._input)
        self._woken, self._waker = socket.socketpair()
        self._woken.setblocking(False)
        self._waker.setblocking(False)
        handlers: dict[int, Any] = dict.fromkeys(_ENDING, self._end)
        handlers |= {signal.SIGWINCH: self._nothing, signal.SIGTSTP: self._suspend}
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:  # a signal that nohup ignores stays ignored
                self._handlers[number] = signal.signal(number, handler)
        self._fd_before = signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()
        signal.set_wakeup_fd(self._fd_before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._waker.close()
        self._woken.close()

    def wake(self) -> None:
        """Make `keys` return, because there is something new to draw. Callable from any thread."""
        with contextlib.suppress(OSError):  # the buffer is full, or the view has ended
            self._waker.send(b"\0")

    def size(self) -> tuple[int, int]:
        """(columns, lines) now."""
        try:
            found = os.get_terminal_size(self._output)
        except OSError:
            return 80, 24
        return max(NARROWEST, found.columns or 80), max(4, found.lines or 24)

    def draw(self, lines: Sequence[str]) -> None:
        """Show these lines, which must fit the terminal."""
        size = self.size()
        parts = []
        if size != self._size:
            self._size, self._shown = size, []
            parts.append("\x1b[2J")
        for place, line in enumerate(lines):
            if place >= len(self._shown) or self._shown[place] != line:
                parts.append(f"\x1b[{place + 1};1H\x1b[2K{line}")
        if len(lines) < len(self._shown):
            parts.append(f"\x1b[{len(lines) + 1};1H\x1b[J")
        self._shown = list(lines)
        self._write("".join(parts))

    def keys(self, timeout_s: float) -> list[str]:
        """The pressed keys: a letter, or a name such as `up` or `enter`. Empty after the timeout, a `wake` or
        a signal; then `ended` may be set."""
        if self.ended is None:
            try:
                ready, _, _ = select.select([self._input, self._woken.fileno()], [], [], timeout_s)
                typed = os.read(self._input, 1024) if self._input in ready else None
            except (OSError, ValueError):
                typed = b""
            with contextlib.suppress(OSError):
                while self._woken.recv(1024):
                    pass
            if typed == b"":  # the terminal is gone
                self.ended = signal.SIGHUP
            if self._suspended:
                self._stop_until_continued()
            if typed:
                found = _KEY.findall(typed.decode("utf-8", "replace"))
                return [_NAMED.get(key, key) for key in found if key in _NAMED or key.isprintable()]
        return []

    def _take(self) -> None:
        tty.setcbreak(self._input, termios.TCSANOW)
        self._size = (0, 0)
        self._write(_TAKE)

    def _give_back(self) -> None:
        with contextlib.suppress(termios.error, OSError):  # the terminal may be gone
            termios.tcflow(self._output, termios.TCOON)  # Ctrl-S may have stopped the output
        self._write(_GIVE_BACK)
        with contextlib.suppress(termios.error, OSError):
            termios.tcflush(self._input, termios.TCIFLUSH)
            termios.tcsetattr(self._input, termios.TCSANOW, self._modes)

    def _stop_until_continued(self) -> None:
        """Suspend on Ctrl-Z: the shell has the terminal until it continues this process."""
        self._suspended = False
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "replace")
        try:
            self._writing = True
            while data:
                data = data[os.write(self._output, data) :]
        except OSError:
            if self.ended is None:
                self.ended = signal.SIGHUP
        finally:
            self._writing = False

    def _end(self, number: int, _frame: FrameType | None) -> None:
        again, self.ended = self.ended is not None, number
        if self._writing and not again:
            raise InterruptedError  # out of a write that Ctrl-S blocks

    def _suspend(self, _number: int, _frame: FrameType | None) -> None:
        self._suspended = True

    def _nothing(self, _number: int, _frame: FrameType | None) -> None:
        """Do nothing: the signal's arrival alone ends the wait in `keys`."""
