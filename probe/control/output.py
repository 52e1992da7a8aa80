"""Output of one thread, kept apart from everybody else's.

While a snippet runs, `sys.stdout` and `sys.stderr` are stand-ins that give the
snippet's thread its own buffer and every other thread the real stream. What is
not a write (encoding, fileno, isatty, …) is the real stream's. Standard library
only; the eval thread.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any


class Buffer:
    """Text up to a limit; what is beyond it is counted and dropped."""

    def __init__(self, limit_bytes: int) -> None:
        self._parts: list[str] = []
        self._left = limit_bytes
        self.dropped_bytes = 0

    def write(self, text: str) -> int:
        """Keep what fits; returns the length of `text`, as a stream does."""
        size = len(text.encode("utf-8", "replace")) if len(text) <= self._left else self._left + 1
        if size <= self._left:
            self._parts.append(text)
            self._left -= size
        else:
            kept = text[: self._left].encode("utf-8", "replace")[: self._left].decode("utf-8", "ignore")
            self._parts.append(kept)
            self._left = 0
            self.dropped_bytes += len(text) - len(kept)
        return len(text)

    def text(self) -> str:
        """Everything kept."""
        return "".join(self._parts)


class _Dispatch:
    """Stands in for a stream: one thread writes to the buffer, the others to the stream."""

    def __init__(self, stream: Any, thread: int, buffer: Buffer) -> None:
        self._stream = stream
        self._thread = thread
        self._buffer = buffer

    def write(self, text: str) -> Any:
        if threading.get_ident() == self._thread:
            if not isinstance(text, str):
                raise TypeError(f"write() argument must be str, not {type(text).__name__}")
            return self._buffer.write(text)
        return self._stream.write(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        if threading.get_ident() != self._thread and self._stream is not None:
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def captured(buffer: Buffer) -> Iterator[None]:
    """Send what the calling thread prints into `buffer`; other threads notice nothing."""
    thread = threading.get_ident()
    stand_ins = {name: _Dispatch(getattr(sys, name), thread, buffer) for name in ("stdout", "stderr")}
    for name, stand_in in stand_ins.items():
        setattr(sys, name, stand_in)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if getattr(sys, name) is stand_in:
                setattr(sys, name, stand_in._stream)
