"""Where things are: PROBE_DIR, recordings, rings, sockets; and making them private.

    PROBE_DIR/                                   0700, owned by the user, no link
      server.sock  server.lock  server.json      the server beside the jobs
      server.log   token
      agents/PID.sock                            one control socket per agent
      recordings/run=R/attempt=A/
        process=RANK-PID/meta.json journal.bin   what the process is; rare records
        process=RANK-PID/watch.bin               what the server saw of it: stalls, verdicts
        process=RANK-PID/crash.txt               what a fatal signal left
        process=RANK-PID/end.json                how it ended, and then what was sealed
        table=SCHEMA.NAME/rank=RANK/PID-FIRST-LAST-CHECKSUM.parquet
    PROBE_RINGS_DIR/probe-UID/…                  rings and strings, gone once sealed

Standard library only; any thread, never the hot path.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
from pathlib import Path

from probe.base import descriptors
from probe.base.errors import DirectoryRefused
from probe.base.settings import Settings

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs",
        "fuse.sshfs",
    }
)
"""A memory map on these can stall its writer for as long as the network likes."""

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})


SHARED = "/tmp"
"""Where the users of a machine have their folders; its sticky bit keeps each from the others'."""


LEAST_ROOM_BYTES, LEAST_INODES = 1 << 20, 16
"""With less than this a server or a recording cannot be counted on to start."""


def home(settings: Settings) -> Path:
    """PROBE_DIR, or the user's private folder under /tmp (one fixed place, so that the
    job and the command find each other whatever TMPDIR says). Absolute: a job may change its folder.

    Anybody may have made `/tmp/probe-UID` before its user. Then it is `/tmp/probe-UID.1`, or the next
    number. A folder that the user has already goes before one that could be made: who leaves a name again
    hides nothing. Only looks; `make_home` makes it."""
    if settings.directory:
        return Path(os.path.abspath(settings.directory))
    usual = Path(f"{SHARED}/probe-{os.getuid()}")
    if _is_ours(usual):
        return usual
    names = itertools.chain([usual], map(_numbered, itertools.count(1)))
    return next(iter(own_homes()), None) or next(path for path in names if not os.path.lexists(path))


def own_homes() -> list[Path]:
    """Every folder under /tmp that `home` has been for this user, the first choice first."""
    usual = f"probe-{os.getuid()}"
    numbers = []
    with contextlib.suppress(OSError):
        numbers = [
            int(name[len(usual) + 1 :]) for name in descriptors.names(SHARED)
            if re.fullmatch(rf"{usual}\.[1-9][0-9]{{0,8}}", name)
        ]
    found = [Path(SHARED, usual), *map(_numbered, sorted(numbers))]
    return [path for path in found if _is_ours(path)]


def make_home(settings: Settings) -> Path:
    """`home`, made and private. Raises `DirectoryRefused`."""
    for _ in range(_MOST_RACES):
        path = home(settings)
        try:
            return make_private(path)
        except DirectoryRefused:
            if settings.directory or home(settings) == path:
                raise
    return make_private(home(settings))


def why_elsewhere(directory: Path, settings: Settings) -> str:
    """Why `directory` is not the usual one; empty when it is, or when PROBE_DIR names it."""
    usual = Path(f"{SHARED}/probe-{os.getuid()}")
    if settings.directory or directory == usual:
        return ""
    try:
        check_private(usual, os.lstat(usual))
    except DirectoryRefused as error:
        return f"{error.message}, so {directory} is used"
    except OSError:
        pass
    return f"{directory} is used, which was made when {usual} could not be"


_MOST_RACES = 8
"""How often somebody else may take a name in the moment between looking and making."""


def _numbered(number: int) -> Path:
    return Path(f"{SHARED}/probe-{os.getuid()}.{number}")


def _is_ours(path: Path) -> bool:
    try:
        check_private(path, os.lstat(path))
    except (OSError, DirectoryRefused):
        return False
    return True


def server_socket(directory: Path) -> Path:
    """The server's unix socket."""
    return directory / "server.sock"


def agent_socket(directory: Path, pid: int) -> Path:
    """The control socket of the agent in process `pid`."""
    return directory / "agents" / f"{pid}.sock"


def recordings(directory: Path) -> Path:
    """Folder of all recordings."""
    return directory / "recordings"


def process_folders(directory: Path) -> list[Path]:
    """Folders of all recorded processes, in no order that matters."""
    return sorted(recordings(directory).glob("run=*/attempt=*/process=*"))


def segments_folder(process: Path, table: str, rank: int) -> Path:
    """Folder of the Parquet segments of one table of the process recorded in `process`."""
    return process.parent / f"table={table}" / f"rank={rank}"


def journals(process: Path) -> tuple[Path, Path]:
    """The process's own journal and the one the server keeps about it: each has one writer."""
    return process / "journal.bin", process / "watch.bin"


def crash_file(process: Path) -> Path:
    """Where a fatal signal leaves the stacks; empty while all is well."""
    return process / "crash.txt"


def make_private(path: Path) -> Path:
    """Make `path` (and its parents) a folder that only this user can enter.

    Raises `DirectoryRefused` when it is a link, somebody else's, or cannot be made.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(path)
    except OSError as error:
        raise DirectoryRefused(f"cannot make {path}: {error.strerror or error}") from None
    check_private(path, found)
    if stat.S_IMODE(found.st_mode) & 0o077:
        try:
            os.chmod(path, 0o700)
        except OSError as error:
            raise DirectoryRefused(f"cannot make {path} private: {error}") from None
    return path


def check_private(path: Path, found: os.stat_result) -> None:
    """Raise `DirectoryRefused` unless `found` is a real folder of this user."""
    if not stat.S_ISDIR(found.st_mode):
        raise DirectoryRefused(f"{path} is a link or a file, not a folder")
    if found.st_uid != os.getuid():
        raise DirectoryRefused(f"{path} belongs to user id {found.st_uid}, not to {os.getuid()}")


def file_system(path: Path) -> str:
    """Type of the file system that holds `path`; empty when it cannot be told."""
    try:
        real = os.path.realpath(path)
        best, kind = "", ""
        for line in descriptors.read_lines("/proc/self/mounts"):
            _, point, found, *_ = line.split(" ")
            point = point.encode().decode("unicode_escape")
            inside = real == point or real.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind = point, found
        return kind
    except (OSError, ValueError):
        return ""


def room_bytes(path: Path) -> int:
    """Free bytes for this user at `path`; 0 when it does not exist."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0
    return found.f_bavail * found.f_frsize


def why_not_writable(directory: Path) -> str:
    """Why nothing can be written into a folder, as a sentence; empty when something can. Tries it."""
    import tempfile

    lack = write_refusal(directory) or no_room(directory)
    if lack:
        return f"{directory} {lack}"
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".room.") as file:
            os.posix_fallocate(file.fileno(), 0, LEAST_ROOM_BYTES)
    except OSError as error:  # a quota tells nobody before
        return f"{directory} cannot be written: {(error.strerror or str(error)).lower()}"
    return ""


def write_refusal(path: Path) -> str:
    """Why this process cannot write in the folder `path`, as the end of a sentence; empty when it can."""
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return "is on a file system that is mounted read-only"
    except OSError as error:
        return f"cannot be looked at: {error.strerror}"
    return "" if os.access(path, os.W_OK | os.X_OK) else "cannot be written"


def no_room(path: Path) -> str:
    """What has run out on the file system that holds `path`, as the end of a sentence; else empty."""
    try:
        found = os.statvfs(path)
    except OSError:
        return ""
    if found.f_bavail * found.f_frsize < LEAST_ROOM_BYTES:
        return f"has {found.f_bavail * found.f_frsize >> 10} KiB free"
    return "has no inodes left" if found.f_files and found.f_favail < LEAST_INODES else ""


def safe_name(text: str, longest: int = 60) -> str:
    """`text` as part of a file name: letters, digits, `.`, `_`, `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:longest] or "job"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that readers see all of it or nothing (temporary file, rename), mode 0600."""
    temporary = path.parent / f".{path.name}.{os.urandom(6).hex()}"
    made = descriptors.opened(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW)
    try:
        with descriptors.writing(made) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
