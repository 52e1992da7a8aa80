"""Where things are: PROBE_DIR, recordings, rings, sockets; and making them private.

    PROBE_DIR/                                   0700, owned by the user, no link
      server.sock  server.lock  server.json      the server beside the jobs
      server.log   token
      agents/PID.sock                            one control socket per agent
      recordings/run=R/attempt=A/
        process=RANK-PID/meta.json journal.bin   what the process is; rare records
        process=RANK-PID/watch.bin               what the server saw of it: stalls, its end
        process=RANK-PID/crash.txt               what a fatal signal left
        process=RANK-PID/end.json                how it ended, written by the server
        table=SCHEMA.NAME/rank=RANK/PID-FIRST-LAST-CHECKSUM.parquet
    PROBE_RINGS_DIR/probe-UID/…                  rings and strings, gone once sealed

Standard library only; any thread, never the hot path.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from probe.errors import DirectoryRefused
from probe.settings import Settings

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs",
        "fuse.sshfs",
    }
)
"""A memory map on these can stall its writer for as long as the network likes."""

MEMORY_FILE_SYSTEMS = frozenset({"tmpfs", "ramfs"})


def home(settings: Settings) -> Path:
    """PROBE_DIR, or the user's private folder under /tmp (one fixed place, so that the
    job and the command find each other whatever TMPDIR says). Absolute: a job may change its folder."""
    return Path(os.path.abspath(settings.directory or f"/tmp/probe-{os.getuid()}"))


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
        with open("/proc/self/mounts", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
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


def safe_name(text: str, longest: int = 60) -> str:
    """`text` as part of a file name: letters, digits, `.`, `_`, `-`."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:longest] or "job"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that readers see all of it or nothing (temporary file, rename), mode 0600."""
    import tempfile  # 7 ms of every command's start, and few write

    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
