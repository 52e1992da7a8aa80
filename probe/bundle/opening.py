"""Opens a bundle: unpacks it once into a private folder, which is an endpoint like any recording's folder.

`PROBE_DIR/bundles/KEY/` holds the contents of an archive; KEY is a digest of the archive's path, inode, size
and times, so that a replaced archive is unpacked anew. Bundles that were not used for a day are removed when
another one is opened. Runs in the client's process, on the caller's thread; standard library, and zstandard
for archives that need it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from probe.base.errors import BundleInvalid, EndpointUnknown, RecordingError
from probe.base.settings import Settings
from probe.bundle import archive, moment
from probe.recording import places
from probe.recording.recording import Meta

_NAMED = re.compile(rf"(.+(?:{'|'.join(map(re.escape, archive.SUFFIXES))}))(?:/(\d+))?", re.DOTALL)
_UNUSED_S = 24 * 3600.0
_OPENING = ".opening-"
_PROCESSES = "run=*/attempt=*/process=*"


def named(text: str) -> tuple[str, str] | None:
    """The archive and the rank in `x.tar.zst` or `x.tar.zst/1`; None for anything else."""
    found = _NAMED.fullmatch(text)
    return None if found is None else (found[1], found[2] or "")


def unpacked(text: str, rank: str, settings: Settings) -> Path:
    """The folder with a bundle's recordings, or that of one rank. Unpacks the bundle on its first use.

    Raises `EndpointUnknown`, `BundleInvalid`, `NoRoom`, `PackageMissing` or `DirectoryRefused`."""
    path = Path(os.path.abspath(os.path.expanduser(text)))
    try:
        found = os.stat(path)
    except OSError as error:
        raise EndpointUnknown(f"{path} cannot be opened: {error.strerror}") from None
    identity = (str(path), found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    bundles = places.make_private(places.make_home(settings) / "bundles")
    folder = bundles / hashlib.sha256(repr(identity).encode()).hexdigest()[:16]
    if not folder.is_dir():
        _remove_unused(bundles)
        _unpack(path, bundles, folder)
    with contextlib.suppress(OSError):
        os.utime(folder)
    return _of_rank(path, folder, rank) if rank else folder


def _unpack(path: Path, bundles: Path, folder: Path) -> None:
    temporary = Path(tempfile.mkdtemp(prefix=_OPENING, dir=bundles))
    try:
        archive.unpack(path, temporary)
        _check(path, temporary)
        with contextlib.suppress(OSError):  # another command was faster
            os.rename(temporary, folder)
        if not folder.is_dir():
            raise BundleInvalid(f"{path} cannot be opened: {folder} cannot be made")
    except OSError as error:
        raise BundleInvalid(f"{path} cannot be opened: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check(path: Path, folder: Path) -> None:
    """Raise `BundleInvalid` unless every recording is marked as part of a bundle: none may refer a server to
    the rings, the socket or the process of a job on this host."""
    processes = sorted(folder.glob(_PROCESSES))
    if not processes:
        raise BundleInvalid(f"{path} cannot be opened: there is no recording in it")
    for process in processes:
        try:
            meta, known = Meta.read(process), moment.read(process)
        except RecordingError as error:
            raise BundleInvalid(f"{path} cannot be opened: {error.message}") from None
        apart = (meta.rings, meta.socket, meta.boot_id) == ("", "", moment.BOOT)
        if known is None or not apart or not (process / "end.json").is_file():
            what = f"{process.name} in it was not written by `probe bundle`"
            raise BundleInvalid(f"{path} cannot be opened: {what}")
        (process / "rings").mkdir(mode=0o700)  # where a server looks for rings: there are none


def _of_rank(path: Path, folder: Path, rank: str) -> Path:
    found = sorted(folder.glob(f"run=*/attempt=*/process={int(rank)}-*"))
    if not found:
        known = sorted(int(one.name[8:].partition("-")[0]) for one in folder.glob(_PROCESSES))
        raise EndpointUnknown(
            f"{path} has no rank {rank}", hint=f"Ranks in it: {', '.join(map(str, known[:32]))}."
        )
    return found[-1]


def _remove_unused(bundles: Path) -> None:
    """Remove bundles that were not opened for a day, and leftovers of killed commands."""
    for folder in bundles.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _UNUSED_S:
                shutil.rmtree(folder, ignore_errors=True)
