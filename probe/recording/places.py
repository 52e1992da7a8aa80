"""Paths: PROBE_DIR, recordings, rings, sockets; and making folders private.

    PROBE_DIR/                                   0700, owned by the user, no link
      server.sock  server.lock  server.json      the server beside the jobs
      server.log   token
      agents/PID.sock                            one control socket per agent
      recordings/run=R/attempt=A/
        process=RANK-PID/meta.json journal.bin   facts about the process; rare records
        process=RANK-PID/tables.json             tables that the job made while it ran
        process=RANK-PID/watch.bin               the server's journal: stalls, verdicts
        process=RANK-PID/crash.txt               stacks of a fatal signal
        process=RANK-PID/end.json                how it ended, then what was sealed
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
"""A memory map on these may stall its writer."""

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})

SHARED = "/tmp"
"""Folder of the users' own folders; its sticky bit protects them from each other."""

LEAST_ROOM_BYTES, LEAST_INODES = 1 << 20, 16
"""With less, a server or a recording may fail to start."""


def home(settings: Settings) -> Path:
    """PROBE_DIR, or the user's private folder under /tmp; `make_home` makes it.

    /tmp regardless of TMPDIR, so that job and command find each other; absolute, because a job may change
    its folder. Another user may have made `/tmp/probe-UID`; then it is `/tmp/probe-UID.1`, or the next
    number. A folder that this user already has comes before a new one, even if a lower number has become
    free."""
    if settings.directory:
        return Path(os.path.abspath(settings.directory))
    usual = Path(f"{SHARED}/probe-{os.getuid()}")
    if _is_ours(usual):
        return usual
    names = itertools.chain([usual], map(_numbered, itertools.count(1)))
    return next(iter(own_homes()), None) or next(path for path in names if not os.path.lexists(path))


def own_homes() -> list[Path]:
    """All folders under /tmp that `home` may have returned for this user, the first choice first."""
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
    """Why `directory` is not the usual one; empty if it is, or if PROBE_DIR names it."""
    usual = Path(f"{SHARED}/probe-{os.getuid()}")
    if settings.directory or directory == usual:
        return ""
    try:
        check_private(usual, os.lstat(usual))
    except DirectoryRefused as error:
        return f"{error.message}, so {directory} is used"
    except OSError:
        pass
    return f"{directory} is used: it was made when {usual} could not be"


_MOST_RACES = 8
"""How often another user may take a name between the check and the mkdir."""


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
    """Folders of all recorded processes."""
    return [Path(path) for path in process_paths(directory)]


def process_paths(directory: Path) -> list[str]:
    """The same as strings, in order: for a reader that looks for new ones every second."""
    found = [str(recordings(directory))]
    for prefix in ("run=", "attempt=", "process="):
        names = ((folder, name) for folder in found for name in _listed(folder))
        found = [f"{folder}/{name}" for folder, name in names if name.startswith(prefix)]
    return sorted(found)


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # removed since, or not a folder
        return []


def segments_folder(process: Path, table: str, rank: int) -> Path:
    """Folder of the Parquet segments of one table of the process recorded in `process`."""
    return process.parent / f"table={table}" / f"rank={rank}"


def journals(process: Path) -> tuple[Path, Path]:
    """The process's own journal and the server's about it: each has one writer."""
    return process / "journal.bin", process / "watch.bin"


def journal_bytes(process: Path) -> int:
    """Current size of both journals. They only grow: an equal size means that nothing was added."""
    found = 0
    for path in journals(process):
        with contextlib.suppress(OSError):  # not there yet
            found += path.stat().st_size
    return found


def crash_file(process: Path) -> Path:
    """File for the stacks of a fatal signal; empty without one."""
    return process / "crash.txt"


def make_private(path: Path) -> Path:
    """Make a folder (and its parents) that only this user can enter; raises `DirectoryRefused`."""
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
    """Raise `DirectoryRefused` unless `found`, not followed, is a folder of this user."""
    if not stat.S_ISDIR(found.st_mode):
        raise DirectoryRefused(f"{path} is a link or a file, not a folder")
    if found.st_uid != os.getuid():
        raise DirectoryRefused(f"{path} belongs to user id {found.st_uid}, not to {os.getuid()}")


def file_system(path: Path) -> str:
    """Type of the file system of `path`; empty when unknown."""
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
    """Why a folder cannot be written, as a sentence; empty if it can. Tries it."""
    import tempfile

    lack = write_refusal(directory) or no_room(directory)
    if lack:
        return f"{directory} {lack}"
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".room.") as file:
            os.posix_fallocate(file.fileno(), 0, LEAST_ROOM_BYTES)
    except OSError as error:  # a quota shows only here
        return f"{directory} cannot be written: {(error.strerror or str(error)).lower()}"
    return ""


def write_refusal(path: Path) -> str:
    """Why this process cannot write in a folder, as the end of a sentence; empty if it can."""
    try:
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return "is on a file system that is mounted read-only"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return "" if os.access(path, os.W_OK | os.X_OK) else "cannot be written"


def no_room(path: Path) -> str:
    """Which resource has run out on the file system of `path`, as the end of a sentence; else empty."""
    try:
        found = os.statvfs(path)
    except OSError:
        return ""
    if found.f_bavail * found.f_frsize < LEAST_ROOM_BYTES:
        return f"has {found.f_bavail * found.f_frsize >> 10} KiB free"
    return "has no inodes left" if found.f_files and found.f_favail < LEAST_INODES else ""


def launch_key(pid: int, start_ticks: int) -> str:
    """The end of the name of a run whose ranks this process started; no other process has the same."""
    return f"{pid}.{start_ticks}"


def safe_name(text: str, longest: int = 60) -> str:
    """`text` as part of a file name: letters, digits, `.`, `_`, `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:longest] or "job"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file atomically (temporary file, rename), mode 0600."""
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
