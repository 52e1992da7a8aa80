"""Captures the output of threads that run snippets, and no other thread's.

While a snippet runs, `sys.stdout` and `sys.stderr` are stand-ins: the snippet's
thread writes into its own buffer, every other thread into the real stream. On
`sys.stdin` the snippet's thread reads nothing. Everything else (encoding, isatty,
…) is the real stream's. One set of stand-ins serves all snippets that run at the
same time: nested ones could end in another order than they began, and would stay.
Runs on the thread of a snippet. Standard library only.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

_STREAMS = ("stdin", "stdout", "stderr")


class Buffer:
    """Text up to a limit; the rest is counted and dropped."""

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
    """A stream that is a buffer to threads that run snippets, and the real stream to all others."""

    def __init__(self, stream: Any, buffers: dict[int, Buffer]) -> None:
        self._stream = stream
        self._buffers = buffers

    def _mine(self) -> Buffer | None:
        return self._buffers.get(threading.get_ident())

    def flush(self) -> None:
        if self._mine() is None and self._stream is not None:
            self._stream.flush()

    def close(self) -> None:
        """The job's streams are not a snippet's to close (`exit()` tries)."""
        if self._mine() is None:
            self._stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Output(_StandIn):
    def write(self, text: str) -> Any:
        buffer = self._mine()
        if buffer is None:
            return self._stream.write(text)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        return buffer.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)


class _Input(_StandIn):
    """At its end for a snippet: `input()` raises EOFError and the job's input stays the job's."""

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


class _StandIns:
    """Those in place, for as long as some thread is diverted.

    Somebody may keep one of them; then it is the real stream to everybody, also to a thread that comes
    to have the identifier of a snippet's: each set has its own buffers."""

    def __init__(self) -> None:
        self.buffers: dict[int, Buffer] = {}
        self._placed: dict[str, _StandIn] = {}

    def place(self) -> None:
        """Stand in for the streams; again for one that somebody replaced meanwhile."""
        for name in _STREAMS:
            stream = getattr(sys, name, None)
            if stream is None or stream is not self._placed.get(name):
                kind = _Input if name == "stdin" else _Output
                self._placed[name] = kind(stream, self.buffers)
                setattr(sys, name, self._placed[name])

    def remove(self) -> None:
        """A stream that somebody else replaced meanwhile stays; one that is missing comes back."""
        for name, stand_in in self._placed.items():
            if getattr(sys, name, stand_in) is stand_in:
                setattr(sys, name, stand_in._stream)


_in_place: _StandIns | None = None
_changing = threading.Lock()


class Diversion:
    """What one thread prints goes into `buffer` from `begin` to `end`; other threads notice nothing."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._thread = 0
        self._stand_ins: _StandIns | None = None

    def begin(self) -> None:
        """Divert the calling thread."""
        global _in_place
        with _changing:
            if _in_place is None:
                _in_place = _StandIns()
            self._thread, self._stand_ins = threading.get_ident(), _in_place
            _in_place.buffers[self._thread] = self._buffer
            _in_place.place()

    def end(self) -> None:
        """Give the thread the real streams back; from any thread, as often as one likes."""
        global _in_place
        with _changing:
            stand_ins, self._stand_ins = self._stand_ins, None
            if stand_ins is None:
                return
            if stand_ins.buffers.get(self._thread) is self._buffer:
                del stand_ins.buffers[self._thread]
            if not stand_ins.buffers:
                stand_ins.remove()
                _in_place = None

    def abandon(self) -> None:
        """In a forked child: `end`, whoever held what when it was forked."""
        global _changing
        _changing = threading.Lock()
        if self._stand_ins is not None:
            self._stand_ins.buffers.clear()
        self.end()
