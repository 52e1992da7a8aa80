"""The command on a pseudo-terminal: in this process with its streams there, or as a process of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from probe_cli.main import run

_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[=>]|\([A-Z0-9])")
PATIENCE_S = 60.0


def plain(text: str) -> str:
    """What a terminal shows of `text`: without colours and moves of the cursor."""
    return _ESCAPES.sub("", text).replace("\r\n", "\n").replace("\r", "")


@contextlib.contextmanager
def terminal(columns: int, lines: int = 50) -> Iterator[tuple[int, int]]:
    """(controller, terminal): descriptors of a pseudo-terminal of that size."""
    controller, made = pty.openpty()
    try:
        fcntl.ioctl(made, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        yield controller, made
    finally:
        os.close(controller)
        os.close(made)


def run_on_terminal(
    words: Sequence[str], environ: Mapping[str, str], columns: int, lines: int = 50
) -> tuple[int, str]:
    """Exit code of the command, run in this process, and what its terminal shows; without a pager, unless the
    environment names one."""
    shown: list[bytes] = []
    with terminal(columns, lines) as (controller, made):

        def read() -> None:
            while b"\x04END\x04" not in b"".join(shown[-2:]):
                shown.append(os.read(controller, 1 << 16))

        reader = threading.Thread(target=read)
        reader.start()
        with (
            open(os.dup(made), "w", encoding="utf-8") as out,
            open(os.dup(made), "w", encoding="utf-8") as err,
            open(os.dup(made), encoding="utf-8") as stdin,
            contextlib.redirect_stdout(out),  # where a command's --help goes
        ):
            code = run(words, {"PAGER": "cat", **environ, "TERM": "xterm"}, out, err, stdin)
        os.write(made, b"\x04END\x04")
        reader.join(PATIENCE_S)
        assert not reader.is_alive()
    return code, plain(b"".join(shown).decode(errors="replace").partition("\x04END\x04")[0])


class Typist:
    """The command as a process of its own on a terminal: what is typed, and what it shows."""

    def __init__(
        self, words: Sequence[str], environ: Mapping[str, str], folder: Path, columns: int = 80,
        lines: int = 50, term: str = "xterm",
    ) -> None:
        self._stack = contextlib.ExitStack()
        self._controller, made = self._stack.enter_context(terminal(columns, lines))
        self._terminal = made
        self.modes_before = termios.tcgetattr(made)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "probe_cli", *words], stdin=made, stdout=made, stderr=made,
            env={**environ, "TERM": term, "PAGER": "cat", "PROMPT_TOOLKIT_NO_CPR": "1"}, cwd=folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self._stack.callback(self._end)
        self.shown = ""
        self._seen = 0

    def __enter__(self) -> Typist:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE_S)

    def type(self, text: str) -> None:
        """Press these keys; control characters are keys too."""
        os.write(self._controller, text.encode())

    @property
    def modes(self) -> list[object]:
        """How the terminal treats what is typed, now."""
        return termios.tcgetattr(self._terminal)

    def resize(self, columns: int, lines: int) -> None:
        """Make the terminal another size; the command gets a SIGWINCH."""
        fcntl.ioctl(self._controller, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, text: str) -> str:
        """What it has shown since it was last waited for something, up to `text`; `(one|another)` is either
        text."""
        deadline = time.monotonic() + PATIENCE_S
        either = text[1:-1].split("|") if text.startswith("(") and text.endswith(")") else [text]
        while not (found := [one for one in either if one in plain(self.shown)[self._seen :]]):
            ready, _, _ = select.select([self._controller], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"never shown: {text!r}; shown:\n{plain(self.shown)}"
            part = os.read(self._controller, 1 << 16)
            self.shown += part.decode(errors="replace")
        before, self._seen = self._seen, plain(self.shown).index(found[0], self._seen) + len(found[0])
        return plain(self.shown)[before : self._seen]

    def ends(self) -> int:
        """Its exit code, once it has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end; shown:\n{plain(self.shown)}"
            self._read(0.05)
        while self._read(0.0):  # what it showed last
            pass
        return self.process.wait(PATIENCE_S)

    def _read(self, wait_s: float) -> bool:
        """Read what it shows within that time; whether it was anything."""
        ready, _, _ = select.select([self._controller], [], [], wait_s)
        if ready:
            self.shown += os.read(self._controller, 1 << 16).decode(errors="replace")
        return bool(ready)
