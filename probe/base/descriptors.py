"""Descriptors: files and sockets of ours in a process that is somebody else's.

A job may close, replace or run out of descriptors whenever it likes: `os.closerange` when it
daemonises, a double close, `dup2`. What used a number after that would write into the job's
checkpoint, or close it. So:

- Nothing keeps a descriptor that can do without: memory maps give theirs up (`recording.mapping`),
  what is read or written in one go is opened by its path.
- A descriptor that is kept has a high number, which a job that opens files does not get.
- Every use but the first proves by device and inode that the number still means our file, then acts.
  A number that means something else is forgotten, never closed.

`os.open`, `os.fstat` and their like give up the GIL, and who wants it back waits while the job runs on:
milliseconds in which it may close the number and get it again. So what cannot block (`fstat`, `close`,
`fcntl`, `socket`, `accept4`, `pipe2`) is called with the GIL held, what was opened is compared with its path,
and what belongs together (accept and move, prove and close) is one call of C that goes through iterators:
between two bytecodes, too, a thread may lose its turn. Between the proof of a read or a write and the call
itself another thread of the job has about a microsecond; nothing in a process can close that gap. Standard
library only; any thread, never the hot path.
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
"""Kept descriptors have numbers from here on: the kernel's table for them is 8 KiB."""
_READ_BYTES = 1 << 16
_TRIES = 4
"""Of opening a path that is renamed at that very moment, there and back."""
_CLOSED = "the job has closed this descriptor of probe's"


class Descriptor:
    """One descriptor of ours. A context manager that closes it."""

    __slots__ = ("_identity", "_number")

    def __init__(self, number: int, own: Identity, *, keep: bool = False) -> None:
        """Take over a number that was opened just now and stands for `own`; `keep`: move it out of the way
        of the job's. Raises `OSError` when it stands for something else by now."""
        self._number = _moved_high(number, own) if keep else number
        self._identity = own

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
            raise OSError(errno.EBADF, _CLOSED)
        return self._number

    def close(self) -> None:
        """Close it if it is still ours. Again: nothing."""
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
    """Open a file; children that the job starts do not inherit it. Raises `OSError`."""
    keep = keep or flags & os.O_ACCMODE != os.O_RDONLY  # what goes astray is to be a read
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
    """Open a file that was not there: proven by its name in its folder, which may be renamed meanwhile."""
    folder, name = os.path.split(os.fspath(path))
    with opened(folder or ".", os.O_PATH | os.O_DIRECTORY) as parent:
        number = os.open(name, flags | os.O_CLOEXEC, mode, dir_fd=parent.fileno())
        own = identity(number)
        if _file_at(name, parent.fileno()) != own:
            raise OSError(errno.EBADF, _CLOSED)
    return Descriptor(number, own, keep=keep)


def pipe() -> tuple[Descriptor, Descriptor]:
    """A pipe: the end to read and the end to write, both kept."""
    numbers = (ctypes.c_int * 2)(-1, -1)  # which nobody can close
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
    """What a descriptor stands for: device, inode, kind. Raises `OSError` when it is closed."""
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
"""Where `st_mode` is in `struct stat`, behind device and inode, and the version that `__fxstat` wants."""


@functools.cache
def _library() -> Any:
    """The C library, called with the GIL held: for what cannot block."""
    return ctypes.PyDLL(None, use_errno=True)


@functools.cache
def _waiting_library() -> Any:
    """The C library, called without the GIL: for what may block."""
    return ctypes.CDLL(None, use_errno=True)


def _called(name: str, *arguments: Any) -> int:
    """The result of a function of the C library. Raises `OSError`."""
    result = int(getattr(_library(), name)(*arguments))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _close_own(number: int, own: Identity) -> None:
    """Close a number if it stands for that file; nothing gets its turn in between."""
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
    """The number that a call of the C library gives, moved out of the way of the job's before another thread
    gets its turn: nothing but C goes through these iterators. Raises `OSError` with that call's reason."""
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
    """What is there now, in an open folder or the current one; None when nothing is."""
    try:
        found = os.stat(path, dir_fd=folder)
    except OSError:
        return None
    return found.st_dev, found.st_ino, stat.S_IFMT(found.st_mode)


def _is_of(path: str | os.PathLike[str], number: int, own: Identity) -> bool:
    """Whether a number that was opened by a path is it still: a job may have closed it, and opened a file of
    its own, before we had the GIL again. Of a file that was exchanged since, its old name tells."""
    if _file_at(path) == own:
        return True
    with contextlib.suppress(OSError):
        name = os.readlink(f"/proc/self/fd/{number}").removesuffix(" (deleted)")
        return name == os.path.realpath(path)
    return False


def _moved_high(number: int, own: Identity) -> int:
    """The same file under a high number; the low one is free again. Where there is none, the low one. Raises
    `OSError` when the number stands for something else by now."""
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
    """The lowest number of a descriptor that is kept."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _HIGH if most == resource.RLIM_INFINITY else min(_HIGH, most // 2)


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
        left, offset = most_bytes, 0
        while left:
            # By the offset: a read that goes astray then moves nothing.
            wanted = _READ_BYTES if left < 0 else min(left, _READ_BYTES)
            part = os.pread(descriptor.fileno(), wanted, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            left -= len(part) if left > 0 else 0
        return b"".join(parts)


def names(folder: str | os.PathLike[str]) -> list[str]:
    """What is in a folder, by name. Raises `OSError`. (`os.listdir` keeps a number of its own, and closes it
    without asking whose it is by then.)"""
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
    """The names in what the kernel says of a folder: `struct linux_dirent64`, one after the other."""
    start = 0
    while start < len(raw):
        (length,) = struct.unpack_from("<H", raw, start + 16)
        name = raw[start + 19 : start + length].partition(b"\0")[0]
        if name not in (b".", b".."):
            yield os.fsdecode(name)
        start += length


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
        if fileno is None:
            family = socket.AF_INET if family == -1 else family
            kind, protocol = socket.SOCK_STREAM if kind == -1 else kind, max(protocol, 0)
            kind_and_flags = int(kind) | socket.SOCK_CLOEXEC
            fileno = _made_high(map(_library().socket, [int(family)], [kind_and_flags], [protocol]))
        own = identity(fileno)
        super().__init__(family, kind, protocol, fileno)
        self._identity = own

    def kept(self) -> Socket:
        """The same socket with a number out of the way of the job's; this object is of no use then."""
        timeout_s = self.gettimeout()
        moved = Socket(self.family, self.type, self.proto, _moved_high(self.detach(), self._identity))
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
        if self.gettimeout() is None:  # it may block, so not with the GIL held; no listener in a job does
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
        if self.fileno() >= 0:
            _close_own(self.detach(), self._identity)
        super().close()
