"""Output of one thread, kept apart from everybody else's.

While a snippet runs, `sys.stdout` and `sys.stderr` are stand-ins that give the
snippet's thread its own buffer and every other thread the real stream; on
`sys.stdin` the snippet's thread finds nothing to read. What is not a write or a
read (encoding, isatty, …) is the real stream's. Standard library only; the eval
thread.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

_NOBODY = 0
"""No thread has this identifier."""


class Buffer:
    """Text up to a limit; what is beyond it is counted and dropped."""

    def __init__(self, limit_bytes: int) -> None:
        self._parts: list[str] = []
        self._left = limit_bytes
        self.dropped_bytes = 0

    def write(self, text: str) -> int:
        """Keep what fits; returns the length of `text`, as a stream does."""
        head = text[: self._left]
        data = head.encode("utf-8", "surrogatepass")
        if len(data) > self._left:
            head = data[: self._left].decode("utf-8", "ignore")
            data = head.encode("utf-8")
        self._parts.append(head)
        self._left -= len(data)
        if len(head) < len(text):
            self._left = 0
            self.dropped_bytes += size_bytes(text[len(head) :])
        return len(text)

    def text(self) -> str:
        """Everything kept."""
        return "".join(self._parts)


def size_bytes(text: str) -> int:
    """Length of a text in UTF-8, without a copy of a long plain one."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


class _StandIn:
    """A stream that means one thing to one thread, and the real stream to all others."""

    def __init__(self, stream: Any, thread: int) -> None:
        self._stream = stream
        self._thread = thread

    def _mine(self) -> bool:
        return threading.get_ident() == self._thread

    def release(self) -> None:
        """Be the real stream to everybody: somebody may keep this object, and idents are used again."""
        self._thread = _NOBODY

    def flush(self) -> None:
        if not self._mine() and self._stream is not None:
            self._stream.flush()

    def close(self) -> None:
        """The job's streams are not a snippet's to close (`exit()` tries)."""
        if not self._mine():
            self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Output(_StandIn):
    def __init__(self, stream: Any, thread: int, buffer: Buffer) -> None:
        super().__init__(stream, thread)
        self._buffer = buffer

    def write(self, text: str) -> Any:
        if not self._mine():
            return self._stream.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        return self._buffer.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)


class _Input(_StandIn):
    """At its end for the snippet: `input()` raises EOFError and the job's input stays the job's."""

    def read(self, *size: Any) -> Any:
        return "" if self._mine() else self._stream.read(*size)

    def readline(self, *size: Any) -> Any:
        return "" if self._mine() else self._stream.readline(*size)

    def readlines(self, *size: Any) -> Any:
        return [] if self._mine() else self._stream.readlines(*size)

    def fileno(self) -> Any:
        if self._mine():
            raise OSError("a snippet has no input")
        return self._stream.fileno()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        line = self.readline()
        if not line:
            raise StopIteration
        return line


class Diversion:
    """What one thread prints goes into `buffer` from `begin` to `end`; other threads notice nothing."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._stand_ins: dict[str, _StandIn] = {}

    def begin(self) -> None:
        """Divert the calling thread."""
        thread = threading.get_ident()
        self._stand_ins["stdin"] = sys.stdin = _Input(sys.stdin, thread)
        self._stand_ins["stdout"] = sys.stdout = _Output(sys.stdout, thread, self._buffer)
        self._stand_ins["stderr"] = sys.stderr = _Output(sys.stderr, thread, self._buffer)

    def end(self) -> None:
        """Put the real streams back; from any thread, as often as one likes.

        A stream that somebody else replaced meanwhile stays; one that is missing comes back."""
        for name, stand_in in self._stand_ins.items():
            stand_in.release()
            if getattr(sys, name, stand_in) is stand_in:
                setattr(sys, name, stand_in._stream)
