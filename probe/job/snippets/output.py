"""Output: captures the output of threads that run snippets, and of no other thread.

While a snippet runs, `sys.stdout` and `sys.stderr` are stand-ins: the snippet's
thread writes into its own buffer, every other thread into the real stream. On
`sys.stdin` the snippet's thread reads nothing. Everything else (encoding, isatty,
…) is the real stream's. A real stream has one stand-in, which serves all snippets
and outlives them: `print` before CPython 3.13.3 holds `sys.stdout` without a
reference of its own (python/cpython#130163), so freeing a stand-in while a thread
of the job prints would crash the job.
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


_buffers: dict[int, Buffer] = {}
"""Buffers of the threads that are diverted now, by thread identifier."""


class _StandIn:
    """A stream that is a buffer to threads that run snippets, and the real stream to all others."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def _mine(self) -> Buffer | None:
        return _buffers.get(threading.get_ident())

    def flush(self) -> None:
        if self._mine() is None and self._stream is not None:
            self._stream.flush()

    def close(self) -> None:
        """Do nothing for a snippet: it must not close the job's streams (`exit()` tries)."""
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
    """At its end for a snippet: `input()` raises EOFError, and the job's input is not read."""

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


_MOST_STAND_INS = 8
"""Limit for each of the three names. A job that redirects its output makes new streams all the time; the
oldest stand-ins are dropped, with the streams that they would keep alive."""

_stand_ins: dict[str, list[_StandIn]] = {name: [] for name in _STREAMS}
"""By name, the stand-ins of the latest streams; the newest at the end."""
_changing = threading.Lock()


def _stand_in(name: str, stream: Any) -> _StandIn:
    """The stand-in of this stream, made at its first use."""
    known = _stand_ins[name]
    found = next((one for one in known if one._stream is stream), None)
    if found is None:
        found = (_Input if name == "stdin" else _Output)(stream)
    else:
        known.remove(found)
    known.append(found)
    del known[:-_MOST_STAND_INS]
    return found


def _place() -> None:
    """Install stand-ins for the streams; again for one that was replaced in between."""
    for name in _STREAMS:
        stream = getattr(sys, name, None)
        if stream is None or not _is_ours(name, stream):
            setattr(sys, name, _stand_in(name, stream))


def _remove() -> None:
    """Remove the stand-ins. A stream that other code has replaced stays; a missing one is restored."""
    for name, known in _stand_ins.items():
        stream = getattr(sys, name, known[-1])
        if _is_ours(name, stream):
            setattr(sys, name, stream._stream)


def _is_ours(name: str, stream: Any) -> bool:
    return any(one is stream for one in _stand_ins[name])


class Diversion:
    """Sends one thread's output into `buffer` from `begin` to `end`; other threads are not affected."""

    def __init__(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._thread: int | None = None

    def begin(self) -> None:
        """Divert the calling thread."""
        with _changing:
            self._thread = threading.get_ident()
            _buffers[self._thread] = self._buffer
            _place()

    def end(self) -> None:
        """Give the thread the real streams back; from any thread, idempotent."""
        with _changing:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            if _buffers.get(thread) is self._buffer:
                del _buffers[thread]
            if not _buffers:
                _remove()

    def abandon(self) -> None:
        """In a forked child: `end`, regardless of which thread held the lock at the fork."""
        global _changing
        _changing = threading.Lock()
        if self._thread is not None:
            _buffers.clear()
        self.end()
