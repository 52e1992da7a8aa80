"""The archive of a bundle: a tar file of plain files that starts with a manifest, packed by zstd or gzip.

The manifest lists every file with its size and SHA-256, in the order of the archive. An archive may come from
anybody, so reading trusts nothing in it: allowed names are listed here, anything but a plain file is refused,
sizes must match the manifest and their total is limited, and `tarfile` only parses headers of 512 bytes. Runs
in the client's process; standard library, zstandard in functions.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import re
import sys
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from probe.base.errors import BundleInvalid, NoRoom, PackageMissing, UsageError
from probe.recording import checked, places

ZSTD, GZIP = ".tar.zst", ".tar.gz"
SUFFIXES = (ZSTD, GZIP)
MANIFEST = "manifest.json"
FORMAT = "probe bundle"
VERSION = 1
MOST_BYTES = 16 << 30
"""Total size of the files of a bundle: an archive of a few kilobytes can unpack to more than a disk."""
MOST_FILES = 200_000
LARGEST_MANIFEST_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 18
_LARGEST_WINDOW_LOG = 27
"""Memory that an archive may make the decompressor use, 128 MiB, as a power of two."""
_RUN = r"run=[A-Za-z0-9._-]{1,120}/attempt=\d{1,9}"
_ALLOWED = re.compile(
    r"README\.txt|diagnosis\.json|backtrace\.json|server\.log"
    rf"|{_RUN}/process=\d{{1,7}}-\d{{1,10}}"
    r"/(?:meta\.json|end\.json|moment\.json|tables\.json|journal\.bin|watch\.bin|crash\.txt)"
    rf"|{_RUN}/table=[a-z]{{1,40}}\.[a-z0-9_]{{1,40}}/rank=\d{{1,7}}/[0-9a-f-]{{1,80}}\.parquet"
)
"""Every name that a bundle may contain in addition to its manifest."""


class _Entry(NamedTuple):
    """One file in the manifest."""

    name: str
    size_bytes: int
    digest: str


def suffix_of(path: str) -> str:
    """The suffix of an archive's name, which is its compression; raises `UsageError` for any other."""
    for suffix in SUFFIXES:
        if path.endswith(suffix):
            return suffix
    raise UsageError(f"{path} is not a bundle's name", hint=f"A bundle's name ends in {ZSTD} or {GZIP}.")


def best_suffix() -> str:
    """zstd if it is installed, which is several times as fast; else gzip."""
    try:
        _zstandard()
    except PackageMissing:
        return GZIP
    return ZSTD


# Writing -----------------------------------------------------------------------------


def write(path: Path, files: Mapping[str, Path], about: Mapping[str, Any]) -> int:
    """Write the files, by their names in the archive, and a manifest with the fields of `about`; returns the
    size in bytes. The file appears complete or not at all, readable by its owner only. Raises `OSError`."""
    names = sorted(files)
    entries = [(name, files[name].stat().st_size, _digest(files[name])) for name in names]
    listed = [{"name": name, "bytes": size, "sha256": digest} for name, size, digest in entries]
    manifest = json.dumps({"format": FORMAT, "version": VERSION, **about, "files": listed}, indent=1).encode()
    temporary = path.parent / f".{path.name}.{os.urandom(6).hex()}"
    try:
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(number, "wb") as raw:
            with (
                _compressing(raw, suffix_of(path.name)) as compressed,
                tarfile.open(fileobj=compressed, mode="w|", format=tarfile.USTAR_FORMAT) as archive,
            ):
                _add(archive, MANIFEST, len(manifest), _reading(manifest))
                for name, size, _ in entries:
                    with open(files[name], "rb") as content:
                        _add(archive, name, size, content)
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path.stat().st_size


def _add(archive: tarfile.TarFile, name: str, size: int, content: IO[bytes]) -> None:
    header = tarfile.TarInfo(name)
    header.size, header.mode = size, 0o600
    archive.addfile(header, content)


def _reading(data: bytes) -> IO[bytes]:
    import io

    return io.BytesIO(data)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as content:
        while block := content.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


# Reading -----------------------------------------------------------------------------


def unpack(path: Path, folder: Path, most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """Unpack a bundle into an empty folder and return its manifest. If this raises, the caller must empty
    `folder`. Raises `BundleInvalid`, `NoRoom`, `PackageMissing` or `OSError`."""
    with checked.open_plain(path) as raw, _decompressing(raw, suffix_of(path.name)) as stream:
        reader = _Reader(path, stream)
        name, size = reader.header()
        if name != MANIFEST or size > LARGEST_MANIFEST_BYTES:
            raise reader.invalid("it does not begin with its manifest")
        manifest, entries = _manifest(reader, reader.content(size))
        total = sum(entry.size_bytes for entry in entries)
        if total > most_bytes:
            raise reader.invalid(f"it would unpack to {total:,} bytes, the limit is {most_bytes:,}")
        room = places.room_bytes(folder)
        if room < total:
            raise NoRoom(
                f"{path} unpacks to {total:,} bytes, {folder} has {room:,} free",
                hint="Free some space, or set PROBE_DIR to a folder with more.",
            )
        for entry in entries:
            if reader.header() != (entry.name, entry.size_bytes):
                raise reader.invalid(f"{entry.name} is not where its manifest says")
            target = folder / entry.name
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if reader.copy(entry.size_bytes, target) != entry.digest:
                raise reader.invalid(f"{entry.name} is damaged: its checksum does not match")
        reader.end()
    return manifest


def _manifest(reader: _Reader, data: bytes) -> tuple[dict[str, Any], list[_Entry]]:
    """The manifest and its files, after checking that all names are allowed."""
    try:
        found = checked.loads(data)
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise ValueError("it is not a bundle of probe")
        if found.get("version") != VERSION:
            raise ValueError(f"it has format {str(found.get('version'))[:20]}, this probe reads {VERSION}")
        listed = found["files"]
        if not isinstance(listed, list) or len(listed) > MOST_FILES:
            raise ValueError("it lists no files, or too many")
        entries = [_Entry(one["name"], one["bytes"], one["sha256"]) for one in listed]
    except (ValueError, KeyError, TypeError) as error:
        raise reader.invalid(f"its manifest cannot be used: {error}") from None
    seen: set[str] = set()
    for name, size, digest in entries:
        if type(name) is not str or not _ALLOWED.fullmatch(name) or name in seen:
            raise reader.invalid(f"its manifest lists {str(name)[:100]!r}, which is not allowed, or twice")
        if type(size) is not int or size < 0 or type(digest) is not str:
            raise reader.invalid(f"its manifest has no valid size or checksum of {name}")
        seen.add(name)
    return found, entries


class _Reader:
    """Reads an archive from start to end, never more than was requested."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path = path
        self._stream = stream
        self._errors: tuple[type[Exception], ...] = (
            EOFError, zlib.error, gzip.BadGzipFile, *_zstd_errors(),
        )

    def invalid(self, why: str) -> BundleInvalid:
        """The error about this archive."""
        return BundleInvalid(f"{self._path} cannot be opened: {why}")

    def header(self) -> tuple[str, int]:
        """Name and size of the next file."""
        block = self.content(tarfile.BLOCKSIZE)
        try:
            found = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.HeaderError, ValueError) as error:
            raise self.invalid(f"it is damaged, or not a tar file ({error})") from None
        if found.type != tarfile.REGTYPE:
            kinds = {tarfile.SYMTYPE: "a link", tarfile.LNKTYPE: "a link", tarfile.DIRTYPE: "a folder"}
            what = kinds.get(found.type, "not a plain file")
            raise self.invalid(f"{found.name[:100]!r} in it is {what}")
        return found.name, found.size

    def content(self, size: int) -> bytes:
        """The next bytes, with the padding after them skipped."""
        data = self._read(size)
        self._read(-size % tarfile.BLOCKSIZE)
        return data

    def copy(self, size: int, target: Path) -> str:
        """Copy the next bytes to a new file; returns their SHA-256."""
        digest = hashlib.sha256()
        number = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(number, "wb") as file:
            left = size
            while left:
                block = self._read(min(left, _BLOCK_BYTES))
                digest.update(block)
                file.write(block)
                left -= len(block)
        self._read(-size % tarfile.BLOCKSIZE)
        return digest.hexdigest()

    def end(self) -> None:
        """Raise `BundleInvalid` if anything but the zeros at the end of a tar file follows."""
        rest = self._some(2 * tarfile.RECORDSIZE + 1)
        if len(rest) > 2 * tarfile.RECORDSIZE or rest.strip(b"\0"):
            raise self.invalid("it contains more than its manifest lists")

    def _read(self, size: int) -> bytes:
        data = self._some(size)
        if len(data) < size:
            raise self.invalid("it ends too early")
        return data

    def _some(self, size: int) -> bytes:
        """The next bytes, fewer only at the end."""
        parts: list[bytes] = []
        while size > 0:
            try:
                part = self._stream.read(min(size, _BLOCK_BYTES))
            except self._errors as error:
                raise self.invalid(f"it is damaged ({str(error)[:100]})") from None
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


# Compression -------------------------------------------------------------------------


def _zstandard() -> Any:
    """The zstd module: Python's own from 3.14 on. Raises `PackageMissing`."""
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd as module
        else:
            import zstandard as module
    except ImportError:
        raise PackageMissing(
            f"{ZSTD} needs zstandard", hint=f"pip install zstandard where probe is installed, or use {GZIP}."
        ) from None
    return module


def _zstd_errors() -> tuple[type[Exception], ...]:
    with contextlib.suppress(PackageMissing):
        return (_zstandard().ZstdError,)
    return ()


@contextlib.contextmanager
def _compressing(raw: IO[bytes], suffix: str) -> Iterator[Any]:
    """A stream that writes compressed to `raw`, which stays open."""
    if suffix == GZIP:
        # Parquet is compressed already: a higher level would only cost time.
        with gzip.GzipFile("", "wb", 6, raw, mtime=0) as stream:
            yield stream
    elif sys.version_info >= (3, 14):
        with _zstandard().ZstdFile(raw, "wb", level=3) as stream:
            yield stream
    else:
        made = _zstandard().ZstdCompressor(level=3, write_checksum=True)
        with made.stream_writer(raw, closefd=False) as stream:
            yield stream


@contextlib.contextmanager
def _decompressing(raw: IO[bytes], suffix: str) -> Iterator[Any]:
    """The decompressed content of `raw`."""
    if suffix == GZIP:
        with gzip.GzipFile("", "rb", fileobj=raw) as stream:
            yield stream
    elif sys.version_info >= (3, 14):
        module = _zstandard()
        limit = {module.DecompressionParameter.window_log_max: _LARGEST_WINDOW_LOG}
        with module.ZstdFile(raw, "rb", options=limit) as stream:
            yield stream
    else:
        made = _zstandard().ZstdDecompressor(max_window_size=1 << _LARGEST_WINDOW_LOG)
        with made.stream_reader(raw, closefd=False) as stream:
            yield stream
