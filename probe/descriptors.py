"""Descriptors: files and sockets of ours in a process that is somebody else's.

A job may close, replace or run out of descriptors whenever it likes: `os.closerange` when it
daemonises, a double close, `dup2`. What used a number after that would write into the job's
checkpoint, or close it. So:

- Nothing keeps a descriptor that can do without: memory maps give theirs up (`recording.mapping`),
  what is read or written in one go is opened by its path.
- A descriptor that is kept has a high number, which a job that opens files does not get.
- Every use but the first proves by device and inode that the number still means our file, then acts.
  A number that means something else is forgotten, never closed.

Between the proof and the use another thread of the job has about a microsecond; nothing in a
process can close that gap. Standard library only; any thread, never the hot path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import resource
import select
import socket
import stat
import time
from pathlib import Path
from types import TracebackType
from typing import Any

_HIGH = 512
"""Kept descriptors have numbers from here on: the kernel's table for them is 8 KiB."""
_READ_BYTES = 1 << 16


class Descriptor:
    """One descriptor of ours. A context manager that closes it."""

    __slots__ = ("_identity", "_number")

    def __init__(self, number: int, *, keep: bool = False) -> None:
        """Take over a number that was opened just now; `keep`: move it out of the way of the job's."""
        self._number = _moved_high(number) if keep else number
        self._identity = identity(self._number)

    @property
    def ours(self) -> bool:
        """Whether the number still means our file."""
        if self._number < 0:
            return False
        try:
            return identity(self._number) == self._identity
        except OSError:
            return False

    @property
    def plain(self) -> bool:
        """Whether it is a plain file, no folder, pipe or device."""
        return stat.S_ISREG(self._identity[2])

    def fileno(self) -> int:
        """The number, proven this instant. Raises `OSError` when it is closed or means something else."""
        if not self.ours:
            self._number = -1
            raise OSError(errno.EBADF, "the job has closed this descriptor of probe's")
        return self._number

    def close(self) -> None:
        """Close it if it is still ours. Again: nothing."""
        ours, number = self.ours, self._number
        self._number = -1
        if ours:
            with contextlib.suppress(OSError):
                os.close(number)

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def opened(path: str | os.PathLike[str], flags: int, mode: int = 0o600, *, keep: bool = False) -> Descriptor:
    """Open a file; children that the job starts do not inherit it."""
    return Descriptor(os.open(path, flags | os.O_CLOEXEC, mode), keep=keep)


def pipe() -> tuple[Descriptor, Descriptor]:
    """A pipe: the end to read, kept, and the end to write."""
    reading, writing = os.pipe()
    return Descriptor(reading, keep=True), Descriptor(writing)


def identity(number: int) -> tuple[int, int, int]:
    """What a descriptor stands for: device, inode, kind. Raises `OSError` when it is closed."""
    found = os.fstat(number)
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)


def _moved_high(number: int) -> int:
    """The same file under a high number; the low one is free again. Where there is none, the low one."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = _HIGH if most == resource.RLIM_INFINITY else min(_HIGH, most // 2)
    if number >= least:
        return number
    try:
        high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, least)
    except OSError:
        return number
    os.close(number)
    return high


# Files ------------------------------------------------------------------------


class File(io.RawIOBase):
    """An open file whose every read, write and close is proven, for `io.BufferedWriter` and the like."""

    def __init__(self, descriptor: Descriptor, *, writable: bool) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._writable = writable

    def readable(self) -> bool:
        """Whether it was opened to be read."""
        return not self._writable

    def writable(self) -> bool:
        """Whether it was opened to be written."""
        return self._writable

    def seekable(self) -> bool:
        """Files are."""
        return True

    def fileno(self) -> int:
        """The number, proven this instant."""
        return self._descriptor.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place; where that is from the start."""
        return os.lseek(self.fileno(), offset, whence)

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` as far as the file goes; how far."""
        return os.readv(self.fileno(), [buffer])

    def write(self, data: Any) -> int:
        """Write what the kernel takes of `data`; how much."""
        return os.write(self.fileno(), data)

    def close(self) -> None:
        """Close it if it is still ours."""
        if not self.closed:
            self._descriptor.close()
            super().close()


def reading(path: str | os.PathLike[str]) -> File:
    """A file to read; without a buffer."""
    return File(opened(path, os.O_RDONLY), writable=False)


def writing(descriptor: Descriptor, buffer_bytes: int = io.DEFAULT_BUFFER_SIZE) -> io.BufferedWriter:
    """A new file to write, through a buffer."""
    return io.BufferedWriter(File(descriptor, writable=True), buffer_bytes)


def read(path: str | os.PathLike[str], most_bytes: int = -1) -> bytes:
    """What a file holds, or its first `most_bytes`. Raises `OSError`."""
    with opened(path, os.O_RDONLY) as descriptor:
        parts: list[bytes] = []
        left = most_bytes
        while left:
            part = os.read(descriptor.fileno(), _READ_BYTES if left < 0 else min(left, _READ_BYTES))
            if not part:
                break
            parts.append(part)
            left -= len(part) if left > 0 else 0
        return b"".join(parts)


def read_text(path: str | os.PathLike[str]) -> str:
    """A file's text, whatever bytes it holds; for files of the kernel and our own."""
    return read(path).decode("utf-8", "replace")


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """A file's lines, without their ends."""
    return read_text(path).splitlines()


def sync(folder: Path) -> None:
    """Have the names in a folder survive a crash of the machine. Raises `OSError`."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor.fileno())


# Sockets ----------------------------------------------------------------------


class Socket(socket.socket):
    """A socket whose every use is proven, after what it waited for and not before. Never a SIGPIPE: a job
    that wants to end by that signal, as tools for pipes do, must not end because who asked has gone."""

    def __init__(
        self, family: int = -1, kind: int = -1, protocol: int = -1, fileno: int | None = None
    ) -> None:
        super().__init__(family, kind, protocol, fileno)
        self._identity = identity(self.fileno())

    def kept(self) -> Socket:
        """The same socket with a number out of the way of the job's; this object is of no use then."""
        timeout_s = self.gettimeout()
        moved = Socket(self.family, self.type, self.proto, _moved_high(self.detach()))
        moved.settimeout(timeout_s)
        return moved

    @property
    def ours(self) -> bool:
        """Whether the number still means this socket."""
        number = self.fileno()
        if number < 0:
            return False
        try:
            return identity(number) == self._identity
        except OSError:
            return False

    def _prove(self) -> None:
        if not self.ours:
            self.detach()
            raise OSError(errno.EBADF, "the job has closed this socket of probe's")

    def _wait(self, event: int, until_s: float | None) -> None:
        """Until the socket is ready, as long as its time-out allows. Raises `TimeoutError`."""
        if self.gettimeout() == 0:
            return
        ready = select.poll()
        ready.register(self.fileno(), event)
        left_ms = None if until_s is None else max(0.0, until_s - time.monotonic()) * 1e3
        if not ready.poll(left_ms):
            raise TimeoutError("timed out")

    def _until_s(self) -> float | None:
        timeout_s = self.gettimeout()
        return None if timeout_s is None else time.monotonic() + timeout_s

    def accept(self) -> tuple[Socket, Any]:
        """The next connection, with a number that may be kept."""
        self._prove()
        number, address = self._accept()  # type: ignore[attr-defined]
        return Socket(self.family, self.type, self.proto, _moved_high(number)), address

    def recv(self, size: int, flags: int = 0) -> bytes:
        """As of any socket."""
        self._prove()
        self._wait(select.POLLIN, self._until_s())
        self._prove()
        return super().recv(size, flags)

    def send(self, data: Any, flags: int = 0) -> int:
        """As of any socket."""
        self._prove()
        self._wait(select.POLLOUT, self._until_s())
        self._prove()
        return super().send(data, flags | socket.MSG_NOSIGNAL)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """As of any socket; the time-out is for all of it."""
        until_s = self._until_s()
        rest = memoryview(data)
        while rest:
            self._prove()
            self._wait(select.POLLOUT, until_s)
            self._prove()
            rest = rest[super().send(rest, flags | socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]

    def shutdown(self, how: int) -> None:
        """As of any socket."""
        self._prove()
        super().shutdown(how)

    def close(self) -> None:
        """Close it if it is still ours."""
        if self.fileno() >= 0 and not self.ours:
            self.detach()
        super().close()
