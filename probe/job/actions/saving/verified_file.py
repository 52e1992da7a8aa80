"""Verified file: written under a temporary name, read back, compared, and only then renamed.

On the request's thread; on the training thread only if memory is too short for a copy. A failure leaves
nothing behind and touches no existing file; a crash before the rename leaves a file whose name begins with a
dot. Standard library only; torch inside functions.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import resource
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from probe.base import descriptors
from probe.base.errors import ActionFailed, ActionRefused, BadRequest, ProbeError
from probe.base.isolation import capture, describe
from probe.checkpoint.file import content_sha256, read_checkpoint
from probe.recording import places

ROOM = 1.2
"""A checkpoint needs this many times its estimated size on the disk."""
_BLOCK_BYTES = 1 << 20
_PIECE_BYTES = 4 << 20
"""Bytes written between two checks whether the file is still wanted."""
_NOT_FILES = ("/dev", "/proc", "/sys")
_SHARED_MEMORY = "/dev/shm"
_LONGEST_NAME_BYTES = 200
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV})


# Before anything is written -------------------------------------------------------


def place_of(path: object, what: str = "path") -> Path:
    """An absolute path from an argument; relative ones start at the job's folder. Raises `BadRequest`."""
    if not isinstance(path, str) or not path or "\0" in path:
        raise BadRequest(f"`{what}` must be the path of a file, not {path!r}")
    try:
        return Path(os.path.abspath(path))
    except OSError as error:
        raise BadRequest(
            f"the job's working folder is gone ({error.strerror}), so relative paths cannot be used",
            hint="Name an absolute path.",
        ) from error


def check_folder(folder: Path) -> None:
    """Raise `ActionRefused` unless files can be made in this folder."""
    if not folder.is_dir():
        raise ActionRefused(
            f"there is no folder {folder}", hint="Make it first; a checkpoint makes no folders of its own."
        )
    real = os.path.realpath(folder)
    inside = any(f"{real}/".startswith(f"{top}/") for top in _NOT_FILES)
    if inside and not f"{real}/".startswith(f"{_SHARED_MEMORY}/"):
        raise ActionRefused(f"{folder} is not a folder for files", hint="Name a folder on a disk.")
    refusal = places.write_refusal(Path(folder))
    if refusal:
        raise ActionRefused(
            f"the job cannot write there: {folder} {refusal}", hint="Name a folder that is the job's own."
        )


def check_target(path: Path, overwrite: bool) -> None:
    """Raise `ActionRefused` unless a checkpoint may be written to this path."""
    check_folder(path.parent)
    try:
        there = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ActionRefused(f"{path} cannot be used: {reason}", hint="Choose another name.") from error
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISLNK, "a symbolic link"), (stat.S_ISREG, ""))
    kind = next((name for test, name in kinds if test(there.st_mode)), "a device, a pipe or a socket")
    if kind:
        raise ActionRefused(f"{path} is {kind}", hint="Name the file itself.")
    if not overwrite:
        raise ActionRefused(
            f"{path} exists already",
            hint="`--overwrite` replaces it, once the new one is written and verified.",
        )


def check_room(folder: Path, size_bytes: int) -> None:
    """Raise `ActionRefused` unless the disk, and the process's limit, have room for a file of that size."""
    needed = int(ROOM * size_bytes) + _BLOCK_BYTES
    check_free(folder, needed, "the checkpoint")
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if limit not in (resource.RLIM_INFINITY, -1) and limit < needed:
        raise ActionRefused(
            f"the process may write files of at most {size_text(limit)}, and the checkpoint needs "
            f"{size_text(needed)}",
            hint="Its limit is `ulimit -f`. Nothing was written.",
        )


def check_free(folder: Path, needed: int, what: str) -> None:
    """Raise `ActionRefused` unless the disk has this many bytes free."""
    free = os.statvfs(folder)
    free_bytes = free.f_bavail * free.f_frsize
    if free_bytes < needed:
        raise ActionRefused(
            f"{folder} has {size_text(free_bytes)} free and {what} needs {size_text(needed)}",
            hint="Free some space or name another folder. Nothing was written.",
        )


def size_text(size_bytes: int) -> str:
    """`1.2 MB`: bytes as people read them."""
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"


# Writing --------------------------------------------------------------------------


class Sink:
    """The file object for torch.save; counts and hashes. It never raises: torch's C++ writer may not survive
    that."""

    def __init__(self, file: Any, given_up: threading.Event) -> None:
        self._file = file
        self._given_up = given_up
        self.hash = hashlib.sha256()
        self.size_bytes = 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        """Write; after the first failure, discard the data."""
        whole = memoryview(data).cast("B")
        for start in range(0, whole.nbytes, _PIECE_BYTES):
            if self.error is None:
                self._write(whole[start : start + _PIECE_BYTES])
        return whole.nbytes

    def _write(self, part: memoryview) -> None:
        try:
            if self._given_up.is_set():
                raise InterruptedError(errno.EINTR, "the process ends")
            self._file.write(part)
        except OSError as error:
            self.error = error
        else:
            self.hash.update(part)
            self.size_bytes += part.nbytes

    def flush(self) -> None:
        """Does nothing: the file is flushed at the end."""


class Writing:
    """One checkpoint file: `write`, `verify`, `publish`, and `discard` in any case."""

    def __init__(self, path: Path, given_up: threading.Event) -> None:
        self._path = path
        self._given_up = given_up
        self._temporary: Path | None = None
        self.size_bytes = 0
        self.sha256 = ""
        """Hash of the file."""
        self._content_sha256 = ""

    def write(self, content: dict[str, Any]) -> None:
        """Write `content`, with its hash in it, under a temporary name. Raises `ActionFailed`."""
        self._content_sha256 = content["probe"]["content_sha256"] = content_sha256(content)
        _, error = capture(lambda: self._write(content))
        if error is not None:
            self.discard()
            raise self._failure("writing", error)

    def _write(self, content: dict[str, Any]) -> None:
        import torch

        made, self._temporary = make_temporary(self._path)
        with descriptors.writing(made, _BLOCK_BYTES) as file:
            sink = Sink(file, self._given_up)
            torch.save(content, sink)  # type: ignore[arg-type]
            if sink.error is not None:
                raise sink.error
            file.flush()
            os.fsync(file.fileno())
        self.sha256, self.size_bytes = sink.hash.hexdigest(), sink.size_bytes

    def verify(self, *, load: bool) -> None:
        """Read the file back and compare it with the bytes written; with `load`, open it too."""
        assert self._temporary is not None
        temporary = self._temporary
        _, error = capture(lambda: self._verify(temporary, load))
        if error is not None:
            self.discard()
            raise self._failure("reading it back", error)

    def _verify(self, temporary: Path, load: bool) -> None:
        if sha256_on_disk(temporary) != self.sha256:
            raise OSError(errno.EIO, "the file on disk differs from the bytes written")
        if load and read_checkpoint(str(temporary))["probe"]["content_sha256"] != self._content_sha256:
            raise OSError(errno.EIO, "the loaded content differs from the saved content")

    def publish(self, *, overwrite: bool) -> None:
        """Rename the file; from then on the complete file exists, whatever happens."""
        assert self._temporary is not None
        try:
            make_readable(self._temporary)
            if overwrite:
                check_target(self._path, overwrite=True)
                os.replace(self._temporary, self._path)
            else:
                _name_once(self._temporary, self._path)
            self._temporary = None
            sync_folder(self._path.parent)
        except OSError as error:
            raise self._failure("renaming it", error) from error
        finally:
            self.discard()

    def discard(self) -> None:
        """Remove the temporary file."""
        temporary, self._temporary = self._temporary, None
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)

    def _failure(self, doing: str, error: BaseException) -> ProbeError:
        return failure(self._path, doing, error)


def failure(path: Path, doing: str, error: BaseException) -> ProbeError:
    """The error about a file that could not be written."""
    if isinstance(error, ProbeError):
        return error
    reason = error.strerror if isinstance(error, OSError) and error.strerror else describe(error)
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return ActionFailed(
        f"{doing} failed: {reason}. There is no new file, and {path} is as it was before",
        hint="Free some room or name another folder." if full else "The training continues unchanged.",
    )


def make_temporary(path: Path) -> tuple[descriptors.Descriptor, Path]:
    """A new file beside `path`, readable by this user only, open for writing."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    name = os.fsdecode(os.fsencode(path.name)[:_LONGEST_NAME_BYTES])
    for count in range(1, 100):  # a killed process leaves its file, and its pid is used again
        again = "" if count == 1 else f".{count}"
        temporary = path.with_name(f".{name}.{os.getpid()}{again}.tmp")
        try:
            return descriptors.opened(temporary, flags, keep=True), temporary
        except FileExistsError:
            continue
    raise FileExistsError(errno.EEXIST, f"{temporary} and 98 numbered ones exist already")


@contextlib.contextmanager
def whole_file(
    path: Path, place: Callable[[Path, Path], object] = os.replace, *, readable: bool = False
) -> Iterator[Any]:
    """A file to write, which appears at `path` once it is on the disk; if that fails, not at all.

    `place` gives it its name; `readable`: by others too, as far as the job's umask allows."""
    made, temporary = make_temporary(path)
    try:
        with descriptors.writing(made, _BLOCK_BYTES) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if readable:
            make_readable(temporary)
        place(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def make_readable(path: Path) -> None:
    """Give a file the mode that the job's own files get."""
    os.chmod(path, 0o666 & ~umask())


def sha256_on_disk(path: Path) -> str:
    """Hash of the file on the disk: the kernel's cached pages are dropped first."""
    found = hashlib.sha256()
    with descriptors.reading(path) as file:
        with contextlib.suppress(OSError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


def _name_once(temporary: Path, path: Path) -> None:
    """`name_new`; raises `ActionRefused` if the file exists by now."""
    try:
        name_new(temporary, path)
    except FileExistsError:
        raise ActionRefused(
            f"{path} exists by now; it was not touched", hint="Choose another name, or `--overwrite`."
        ) from None


def name_new(temporary: Path, path: Path) -> None:
    """Rename a file without replacing another; raises FileExistsError."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, f"{path} exists") from None
        os.replace(temporary, path)
        return
    os.unlink(temporary)


def sync_folder(folder: Path) -> None:
    """Make the name survive a crash of the machine, if the file system can."""
    with contextlib.suppress(OSError):
        descriptors.sync(folder)


def umask() -> int:
    """The process's umask, read without changing it."""
    with contextlib.suppress(OSError, ValueError):
        for line in descriptors.read_lines("/proc/self/status"):
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o077
