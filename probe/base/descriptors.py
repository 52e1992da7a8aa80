"""Descriptors: probe's files and sockets inside the job's process.

A job may close, replace or run out of descriptors at any time: `os.closerange` when it daemonizes, a double
close, `dup2`. Using a number after that would write into the job's checkpoint, or close it. So:

- Descriptors are kept only where needed: memory maps drop theirs (`recording.mapping`), and files read or
  written at once are opened by path.
- A kept descriptor has a high number, which a job that opens files does not get.
- Every use but the first proves by device and inode that the number is still our file. A number that is
  another file by now is forgotten, never closed.

`os.open`, `os.fstat` and the like release the GIL, and before it is back the job may close and reuse the
number. So calls that cannot block (`fstat`, `close`, `fcntl`, `socket`, `accept4`, `pipe2`) run with the
GIL held, an opened file is compared with its path, and pairs of calls (accept and move, prove and close) run
as one C call through iterators, because a thread switch can happen between two bytecodes. A gap of about a
microsecond remains between the proof and a read or write. Standard library only; any thread, never the hot
path.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import io
import os
import resource
import select
import socket
import stat
import struct
import time
from collections.abc import Iterator
from itertools import compress, repeat, tee
from operator import itemgetter
from pathlib import Path
from types import TracebackType
from typing import Any

_HIGH = 512
"""Kept descriptors have numbers from here on; the kernel's table for them is 8 KiB."""
_READ_BYTES = 1 << 16
_TRIES = 4
"""Attempts to open a path that is being renamed."""
_CLOSED = "the job has closed this descriptor of probe's"


class Descriptor:
    """One descriptor of ours. A context manager that closes it."""

    __slots__ = ("_identity", "_number")

    def __init__(self, number: int, own: Identity, *, keep: bool = False) -> None:
        """Take over a number just opened for the file `own`; `keep`: move it to a high number. Raises
        `OSError` when it is another file by now."""
        self._number = _moved_high(number, own) if keep else number
        self._identity = own

    @property
    def ours(self) -> bool:
        """Whether the number is still our file."""
        if self._number < 0:
            return False
        try:
            return identity(self._number) == self._identity
        except OSError:
            return False

    @property
    def plain(self) -> bool:
        """Whether it is a regular file."""
        return stat.S_ISREG(self._identity[2])

    def fileno(self) -> int:
        """The number, proven now. Raises `OSError` when it is closed or another file."""
        if not self.ours:
            self._number = -1
            raise OSError(errno.EBADF, _CLOSED)
        return self._number

    def close(self) -> None:
        """Close it if it is still ours; idempotent."""
        number, self._number = self._number, -1
        if number >= 0:
            _close_own(number, self._identity)

    def __enter__(self) -> Descriptor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def opened(path: str | os.PathLike[str], flags: int, mode: int = 0o600, *, keep: bool = False) -> Descriptor:
    """Open a file, not inherited by the job's children. Raises `OSError`."""
    keep = keep or flags & os.O_ACCMODE != os.O_RDONLY  # only a read may hit a wrong file
    for _ in range(_TRIES):
        before = _file_at(path)
        if before is None and flags & os.O_CREAT:
            return _created(path, flags, mode, keep)
        number = os.open(path, flags | os.O_CLOEXEC, mode)
        own = identity(number)
        if before == own or _is_of(path, number, own):
            return Descriptor(number, own, keep=keep)
    raise OSError(errno.EBADF, _CLOSED)


def _created(path: str | os.PathLike[str], flags: int, mode: int, keep: bool) -> Descriptor:
    """Create a file, proven by its name in its folder; the folder may be renamed in between."""
    folder, name = os.path.split(os.fspath(path))
    with opened(folder or ".", os.O_PATH | os.O_DIRECTORY) as parent:
        number = os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=parent.fileno())
        own = identity(number)
        if _file_at(name, parent.fileno()) != own:
            raise OSError(errno.EBADF, _CLOSED)
    return Descriptor(number, own, keep=keep)


def pipe() -> tuple[Descriptor, Descriptor]:
    """A pipe: read end and write end, both kept."""
    numbers = (ctypes.c_int * 2)(-1, -1)
    library, end = _library(), numbers.__getitem__
    made = map(library.pipe2, [ctypes.byref(numbers)], [os.O_CLOEXEC])
    move, least = repeat(fcntl.F_DUPFD_CLOEXEC), repeat(_least())
    ends = (map(library.fcntl, map(end, [which]), move, least) for which in (0, 1))
    closes = (map(library.close, map(end, [which])) for which in (0, 1))
    [(failed, reading, writing, _, _)] = zip(made, *ends, *closes, strict=True)
    if failed or min(reading, writing) < 0:
        for one in (reading, writing):
            if one >= 0:
                _close_own(one, identity(one))
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return Descriptor(reading, identity(reading)), Descriptor(writing, identity(writing))


def identity(number: int) -> Identity:
    """Device, inode and kind of an open descriptor. Raises `OSError` when it is closed."""
    layout = _STAT.get(os.uname().machine)
    if layout is None:
        found = os.fstat(number)
        return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)
    mode_offset, version = layout
    room = ctypes.create_string_buffer(_STAT_BYTES)
    if hasattr(_library(), "fstat"):
        _called("fstat", number, room)
    else:  # before glibc 2.33
        _called("__fxstat", version, number, room)
    device, inode = struct.unpack_from("<QQ", room, 0)
    return device, inode, stat.S_IFMT(*struct.unpack_from("<I", room, mode_offset))


Identity = tuple[int, int, int]
_STAT_BYTES = 256
_STAT = {"x86_64": (24, 1), "aarch64": (16, 0)}
"""Offset of `st_mode` in `struct stat`, after device and inode, and the version argument of `__fxstat`."""


@functools.cache
def _library() -> Any:
    """The C library, called with the GIL held: for calls that cannot block."""
    return ctypes.PyDLL(None, use_errno=True)


@functools.cache
def _waiting_library() -> Any:
    """The C library, called without the GIL: for calls that may block."""
    return ctypes.CDLL(None, use_errno=True)


def _called(name: str, *arguments: Any) -> int:
    """Call a function of the C library. Raises `OSError`."""
    result = int(getattr(_library(), name)(*arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _close_own(number: int, own: Identity) -> None:
    """Close a number if it is that file, with no thread switch in between."""
    if os.uname().machine not in _STAT or not hasattr(_library(), "fstat"):
        with contextlib.suppress(OSError):
            if identity(number) == own:
                _called("close", number)
        return
    room = ctypes.create_string_buffer(_STAT_BYTES)
    found = map(_SECOND, zip(map(_library().fstat, [number], [room]), map(bytes, [room]), strict=True))
    same = map(struct.pack("<QQ", *own[:2]).__eq__, map(_DEVICE_AND_INODE, found))
    list(map(_library().close, compress([number], same)))


_SECOND, _DEVICE_AND_INODE = itemgetter(1), itemgetter(slice(0, 16))


def _made_high(make: Iterator[int]) -> int:
    """The descriptor that a C call returns, moved to a high number with no thread switch in between: only C
    code runs these iterators. Raises `OSError` with that call's reason."""
    library, least = _library(), _least()
    made, tested, moved, closed = tee(make, 4)
    is_made, is_made_again = tee(map((-1).__lt__, tested))
    highs = map(library.fcntl, compress(moved, is_made), repeat(fcntl.F_DUPFD_CLOEXEC), repeat(least))
    closes = map(library.close, compress(closed, is_made_again))
    found = list(zip(made, highs, closes, strict=False))
    if not found:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    [(_, high, _)] = found
    if high < 0:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return int(high)


def _file_at(path: str | os.PathLike[str], folder: int | None = None) -> Identity | None:
    """The file at a path, relative to an open folder or the current one; None without one."""
    try:
        found = os.stat(path, dir_fd=folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)


def _is_of(path: str | os.PathLike[str], number: int, own: Identity) -> bool:
    """Whether a number just opened by a path is still that file: before we had the GIL again, the job may
    have closed it and opened a file of its own. A file replaced since is recognized by its old name."""
    if _file_at(path) == own:
        return True
    with contextlib.suppress(OSError):
        name = os.readlink(f"/proc/self/fd/{number}").removesuffix(" (deleted)")
        return name == os.path.realpath(path)
    return False


def _moved_high(number: int, own: Identity) -> int:
    """Move a descriptor to a high number, if there is a free one. Raises `OSError` when the number is
    another file by now."""
    least = _least()
    if number >= least:
        return number
    try:
        high = _called("fcntl", number, fcntl.F_DUPFD_CLOEXEC, least)
    except OSError:
        return number
    found = identity(high)
    if found != own:
        _close_own(high, found)
        raise OSError(errno.EBADF, _CLOSED)
    _close_own(number, own)
    return high


def _least() -> int:
    """The lowest number for kept descriptors."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _HIGH if most == resource.RLIM_INFINITY else min(_HIGH, most // 2)


# Files ------------------------------------------------------------------------


class File(io.RawIOBase):
    """An open file whose reads, writes and close are proven, for `io.BufferedWriter` and the like."""

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
        """Always."""
        return True

    def fileno(self) -> int:
        """The number, proven now."""
        return self._descriptor.fileno()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position; returns it from the start."""
        return os.lseek(self.fileno(), offset, whence)

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; returns the number of bytes."""
        return os.readv(self.fileno(), [buffer])

    def write(self, data: Any) -> int:
        """Write `data`; returns the number of bytes written."""
        return os.write(self.fileno(), data)

    def close(self) -> None:
        """Close it if it is still ours."""
        if not self.closed:
            self._descriptor.close()
            super().close()


def reading(path: str | os.PathLike[str]) -> File:
    """Open a file for reading, without a buffer."""
    return File(opened(path, os.O_RDONLY), writable=False)


def writing(descriptor: Descriptor, buffer_bytes: int = io.DEFAULT_BUFFER_SIZE) -> io.BufferedWriter:
    """A buffered writer for a new file."""
    return io.BufferedWriter(File(descriptor, writable=True), buffer_bytes)


def read(path: str | os.PathLike[str], most_bytes: int = -1) -> bytes:
    """Content of a file, or its first `most_bytes`. Raises `OSError`."""
    with opened(path, os.O_RDONLY) as descriptor:
        parts: list[bytes] = []
        left, offset = most_bytes, 0
        while left:
            # By offset: a read from a wrong file then moves no position.
            wanted = _READ_BYTES if left < 0 else min(left, _READ_BYTES)
            part = os.pread(descriptor.fileno(), wanted, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            left -= len(part) if left > 0 else 0
        return b"".join(parts)


def names(folder: str | os.PathLike[str]) -> list[str]:
    """Names in a folder. Raises `OSError`. (`os.listdir` closes its own descriptor without a proof.)"""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY, keep=True) as descriptor:
        if not hasattr(_waiting_library(), "getdents64"):  # before glibc 2.30
            return os.listdir(folder)
        found: list[str] = []
        room = ctypes.create_string_buffer(_READ_BYTES)
        while True:
            size = _waiting_library().getdents64(descriptor.fileno(), room, _READ_BYTES)
            if size <= 0:
                break
            found += _entries(room.raw[:size])
        if size < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(folder))
        return found


def _entries(raw: bytes) -> Iterator[str]:
    """The names in an array of `struct linux_dirent64`."""
    start = 0
    while start < len(raw):
        (length,) = struct.unpack_from("<H", raw, start + 16)
        name = raw[start + 19 : start + length].partition(b"\0")[0]
        if name not in (b".", b".."):
            yield os.fsdecode(name)
        start += length


def read_text(path: str | os.PathLike[str]) -> str:
    """Text of a file with any bytes; for files of the kernel and our own."""
    return read(path).decode("utf-8", "replace")


def read_lines(path: str | os.PathLike[str]) -> list[str]:
    """Lines of a file, without line ends."""
    return read_text(path).splitlines()


def sync(folder: Path) -> None:
    """Make the names in a folder survive a crash of the machine. Raises `OSError`."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        os.fsync(descriptor.fileno())


# Sockets ----------------------------------------------------------------------


class Socket(socket.socket):
    """A socket that is proven before every use and after each wait. Never raises SIGPIPE: a client that
    disconnects must not end a job that keeps that signal's default action."""

    def __init__(
        self, family: int = -1, kind: int = -1, protocol: int = -1, fileno: int | None = None
    ) -> None:
        if fileno is None:
            family = socket.AF_INET if family == -1 else family
            kind, protocol = socket.SOCK_STREAM if kind == -1 else kind, max(protocol, 0)
            kind_and_flags = int(kind) | socket.SOCK_CLOEXEC
            fileno = _made_high(map(_library().socket, [int(family)], [kind_and_flags], [protocol]))
        own = identity(fileno)
        super().__init__(family, kind, protocol, fileno)
        self._identity = own

    def kept(self) -> Socket:
        """The same socket with a high number; this object is detached."""
        timeout_s = self.gettimeout()
        moved = Socket(self.family, self.type, self.proto, _moved_high(self.detach(), self._identity))
        moved.settimeout(timeout_s)
        return moved

    @property
    def ours(self) -> bool:
        """Whether the number is still this socket."""
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
        """Wait until the socket is ready, within its time-out. Raises `TimeoutError`."""
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
        """The next connection, with a high number."""
        self._prove()
        if self.gettimeout() is None:  # may block, so without the GIL; listeners in a job have a time-out
            number, _ = self._accept()  # type: ignore[attr-defined]
            high = _moved_high(number, identity(number))
        else:
            self._wait(select.POLLIN, self._until_s())
            self._prove()
            listener, flags = self.fileno(), socket.SOCK_CLOEXEC
            high = _made_high(map(_library().accept4, [listener], [None], [None], [flags]))
        connection = Socket(self.family, self.type, self.proto, high)
        return connection, "" if self.family == socket.AF_UNIX else connection.getpeername()

    def recv(self, size: int, flags: int = 0) -> bytes:
        """As `socket.socket`."""
        self._prove()
        self._wait(select.POLLIN, self._until_s())
        self._prove()
        return super().recv(size, flags)

    def send(self, data: Any, flags: int = 0) -> int:
        """As `socket.socket`."""
        self._prove()
        self._wait(select.POLLOUT, self._until_s())
        self._prove()
        return super().send(data, flags | socket.MSG_NOSIGNAL)

    def sendall(self, data: Any, flags: int = 0) -> None:
        """As `socket.socket`; the time-out covers all of it."""
        until_s = self._until_s()
        rest = memoryview(data)
        while rest:
            self._prove()
            self._wait(select.POLLOUT, until_s)
            self._prove()
            rest = rest[super().send(rest, flags | socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL) :]

    def shutdown(self, how: int) -> None:
        """As `socket.socket`."""
        self._prove()
        super().shutdown(how)

    def close(self) -> None:
        """Close it if it is still ours."""
        if self.fileno() >= 0:
            _close_own(self.detach(), self._identity)
        super().close()
