"""Stores: the objects of an archive, in a folder or an object store, by name.

    store = open_store("s3://bucket/probe")
    store.put("table=…/….parquet", data)

A name is a relative path with `/`. `put` is atomic: readers see a whole object or none. `create` fails if the
object exists, which makes it a lock between hosts. A folder needs no third-party package; object stores are
reached through obstore, imported in functions (decision 40). Any thread that may wait for a network; raises
`ArchiveUnavailable` for every failure of a store, `ObjectMissing` for a name that does not exist.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from probe.base.errors import ArchiveUnavailable, ObjectMissing, PackageMissing, UsageError

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Remote

SCHEMES = ("s3", "gs", "az", "abfs", "abfss")
"""Schemes of object stores; a URL without a scheme, or with `file`, is a folder."""
_TEMPORARY = ".putting-"
_STALE_S = 24 * 3600.0
_LARGE_BYTES = 16 << 20
"""A larger object is sent in parts."""
_TIMEOUT, _CONNECT_TIMEOUT, _RETRY_FOR_S, _MOST_RETRIES = "60s", "10s", 60, 5
"""Limits of one request, and of all attempts together; the caller retries later."""
_MOST_DELETED = 500
_TRIES, _PAUSE_S = 3, 0.2
_T = TypeVar("_T")


class Listed(NamedTuple):
    """An object: its name, its size, and when it was written (wall time)."""

    name: str
    size_bytes: int
    written_ns: int


class Store(Protocol):
    """The storage of an archive."""

    url: str
    """Its URL, without credentials."""

    @property
    def folder(self) -> Path | None:
        """The folder whose files are its objects, by their names; None if they are not files."""

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """All objects whose names begin with `prefix` (empty, or with a `/` at its end), in no order."""

    def folders(self, prefix: str = "") -> Sequence[str]:
        """The folders directly below `prefix`: relative names, each with a `/` at its end."""

    def get(self, name: str, first: int = 0, length: int | None = None) -> bytes:
        """The content of an object, or some bytes of it."""

    def put(self, name: str, data: bytes | Path) -> None:
        """Write an object, or replace it, from memory or from a file."""

    def create(self, name: str, data: bytes) -> bool:
        """Write an object; returns False and writes nothing if there is one with that name."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; a missing one is not an error."""


def open_store(url: str, environ: Mapping[str, str] | None = None) -> Store:
    """The store at a URL. Credentials come from the environment, as for other programs of that cloud. Raises
    `UsageError` or `PackageMissing`; whether it can be reached shows when it is used."""
    found = normal_url(url)
    if found.startswith("/"):
        return FolderStore(Path(found))
    return ObjectStore(found, os.environ if environ is None else environ)


def normal_url(url: str) -> str:
    """The normal form of a URL: an absolute path, or a URL of an object store. Raises `UsageError`."""
    if not url.strip():
        raise UsageError("no archive was given", hint=_EXAMPLES)
    parts = urlsplit(url)
    if "://" not in url or parts.scheme == "file":
        path = unquote(parts.path) if parts.scheme == "file" else url
        return os.path.abspath(os.path.expanduser(path))
    if parts.scheme not in SCHEMES:
        raise UsageError(f"an archive cannot be at {parts.scheme}://", hint=_EXAMPLES)
    if parts.username or parts.password or not parts.netloc:
        raise UsageError(
            "the URL of an archive names a bucket and no credentials",
            hint="Put credentials into the environment, e.g. AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    return url.rstrip("/")


_EXAMPLES = "Examples: /shared/probe, s3://bucket/probe, gs://bucket/probe, az://container/probe."


# A folder -----------------------------------------------------------------------


class FolderStore:
    """An archive in a folder, local or shared: everyone who can enter the folder can read it."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.url = str(self.folder)

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """See `Store`; links are not followed."""
        with _said_of(self.url):
            waiting = [prefix]
            while waiting:
                place = waiting.pop()
                try:
                    entries = os.scandir(f"{self.url}/{place}")
                except (FileNotFoundError, NotADirectoryError):
                    continue
                with entries:
                    for entry in entries:
                        if entry.name.startswith("."):
                            continue
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(f"{place}{entry.name}/")
                        elif entry.is_file(follow_symlinks=False):
                            try:
                                found = entry.stat(follow_symlinks=False)
                            except FileNotFoundError:
                                continue
                            yield Listed(place + entry.name, found.st_size, found.st_mtime_ns)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """See `Store`."""
        with _said_of(self.url):
            try:
                with os.scandir(self.folder / prefix) as entries:
                    return sorted(
                        f"{one.name}/" for one in entries
                        if one.is_dir(follow_symlinks=False) and not one.name.startswith(".")
                    )
            except (FileNotFoundError, NotADirectoryError):
                return []

    def get(self, name: str, first: int = 0, length: int | None = None) -> bytes:
        """See `Store`."""
        with _said_of(self.url), open(self._file(name), "rb") as file:
            file.seek(first)
            return file.read() if length is None else file.read(length)

    def put(self, name: str, data: bytes | Path) -> None:
        """See `Store`; on return it is durably on disk."""
        with _said_of(self.url):
            temporary = self._written(name, data)
            try:
                os.replace(temporary, self._file(name))
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync(temporary.parent)

    def create(self, name: str, data: bytes) -> bool:
        """See `Store`."""
        with _said_of(self.url):
            temporary = self._written(name, data)
            try:
                os.link(temporary, self._file(name))
            except FileExistsError:
                return False
            finally:
                temporary.unlink(missing_ok=True)
            _sync(temporary.parent)
            return True

    def delete(self, names: Iterable[str]) -> None:
        """See `Store`; also removes folders that are empty afterwards."""
        with _said_of(self.url):
            for name in names:
                path = self._file(name)
                path.unlink(missing_ok=True)
                for folder in path.parents:
                    if folder == self.folder:
                        break
                    try:
                        folder.rmdir()
                    except OSError:
                        break

    def _file(self, name: str) -> Path:
        """The path of an object; raises `UsageError` for a name that leaves the folder."""
        if not name or any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
            raise UsageError(f"{name[:80]!r} is not a valid name in an archive")
        return self.folder / name

    def _written(self, name: str, data: bytes | Path) -> Path:
        """Write a new temporary file next to the object. `delete` may remove the folder at the same time."""
        target = self._file(name)
        temporary = target.parent / f"{_TEMPORARY}{os.urandom(8).hex()}"
        while True:
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                break
        try:
            with open(descriptor, "wb") as file:
                if isinstance(data, bytes):
                    file.write(data)
                else:
                    with open(data, "rb") as source:
                        while block := source.read(1 << 20):
                            file.write(block)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    def remove_temporaries(self, now_s: float) -> None:
        """Remove temporary files of killed writers that are older than a day."""
        with contextlib.suppress(FileNotFoundError):
            for path in self.folder.rglob(f"{_TEMPORARY}*"):
                with contextlib.suppress(OSError):
                    if now_s - path.stat().st_mtime > _STALE_S:
                        path.unlink()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _said_of(url: str) -> Iterator[None]:
    """Turn errors of files into `ObjectMissing` and `ArchiveUnavailable`."""
    try:
        yield
    except FileNotFoundError as error:
        raise ObjectMissing(f"{error.filename or url} is not in the archive") from None
    except OSError as error:
        what = error.strerror or str(error)
        where = error.filename or url
        raise ArchiveUnavailable(f"the archive {url} cannot be used: {what}: {where}") from None


# An object store ------------------------------------------------------------------


class ObjectStore:
    """An archive in an object store: S3 and compatible ones, Google Cloud Storage, Azure."""

    folder = None

    def __init__(self, url: str, environ: Mapping[str, str]) -> None:
        try:
            import obstore.store
        except ImportError:
            raise PackageMissing(
                f"an archive at {url.partition(':')[0]}:// needs obstore",
                hint="pip install 'torch-probe[fleet]', or use a shared folder.",
            ) from None
        self.url = url
        options: Any = {"timeout": _TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT}
        endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
        more: dict[str, Any] = {}
        if self.url.startswith("s3:"):
            if endpoint:
                more["endpoint"] = endpoint
            options["allow_http"] = endpoint.startswith("http://")
        retries: Any = {"max_retries": _MOST_RETRIES, "retry_timeout": _seconds(_RETRY_FOR_S)}
        with _told_by(self.url):
            self._store: Remote = obstore.store.from_url(
                self.url, client_options=options, retry_config=retries, **more
            )

    def list(self, prefix: str = "") -> Iterator[Listed]:
        """See `Store`."""
        import obstore

        last: str | None = None
        for tries_left in reversed(range(_TRIES)):
            try:
                with _told_by(self.url):
                    for chunk in obstore.list(self._store, prefix or None, offset=last, chunk_size=1000):
                        for one in chunk:
                            last = one["path"]
                            written_ns = int(one["last_modified"].timestamp() * 1e9)
                            yield Listed(last, one["size"], written_ns)
                    return
            except ArchiveUnavailable:
                if not tries_left:
                    raise
                time.sleep(_PAUSE_S)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """See `Store`."""
        import obstore

        found = self._again(
            lambda: obstore.list_with_delimiter(self._store, prefix or None)["common_prefixes"]
        )
        return sorted(f"{one.rstrip('/').rpartition('/')[2]}/" for one in found)

    def get(self, name: str, first: int = 0, length: int | None = None) -> bytes:
        """See `Store`."""
        import obstore

        if length == 0:
            return b""
        if length is not None:
            return self._again(
                lambda: bytes(obstore.get_range(self._store, name, start=first, length=length)), reads=True
            )
        options: Any = {"range": {"offset": first}} if first else None
        return self._again(
            lambda: bytes(obstore.get(self._store, name, options=options).bytes()), reads=True
        )

    def put(self, name: str, data: bytes | Path) -> None:
        """See `Store`."""
        import obstore

        size = len(data) if isinstance(data, bytes) else data.stat().st_size
        self._again(lambda: obstore.put(self._store, name, data, use_multipart=size > _LARGE_BYTES))

    def create(self, name: str, data: bytes) -> bool:
        """See `Store`; the store must support conditional writes."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _told_by(self.url):
            try:
                obstore.put(self._store, name, data, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def delete(self, names: Iterable[str]) -> None:
        """See `Store`."""
        import obstore

        left = list(names)
        with _told_by(self.url):
            while left:
                chosen, left = left[:_MOST_DELETED], left[_MOST_DELETED:]
                with contextlib.suppress(FileNotFoundError):
                    obstore.delete(self._store, chosen)

    def _again(self, ask: Callable[[], _T], reads: bool = False) -> _T:
        """The answer of a request that may be repeated: obstore does not retry after a truncated answer."""
        for _ in range(_TRIES - 1):
            try:
                with _told_by(self.url, reads):
                    return ask()
            except ObjectMissing:
                raise
            except ArchiveUnavailable:
                time.sleep(_PAUSE_S)
        with _told_by(self.url, reads):
            return ask()


def _seconds(value: float) -> Any:
    from datetime import timedelta

    return timedelta(seconds=value)


_DETAIL = re.compile(r"\s*(?:Debug source:|, source:|source:|<\?xml|after \d+ retries).*", re.DOTALL)
_CODE = re.compile(r"<Code>(\w+)</Code>")
_LONGEST_ERROR = 300


@contextlib.contextmanager
def _told_by(url: str, reads: bool = False) -> Iterator[None]:
    """Turn errors of obstore into `ObjectMissing` and `ArchiveUnavailable`."""
    from obstore.exceptions import BaseError

    try:
        yield
    except FileNotFoundError as error:
        if reads:
            raise ObjectMissing(f"an object is not in the archive {url}: {_short(error)}") from None
        raise ArchiveUnavailable(f"the archive {url} cannot be used: {_short(error)}") from None
    except (BaseError, OSError, ValueError) as error:
        raise ArchiveUnavailable(f"the archive {url} cannot be used: {_short(error)}") from None


def _short(error: Exception) -> str:
    from probe.base.redaction import redact

    code = _CODE.search(str(error))
    text = " ".join(_DETAIL.sub("", str(error)).split()) or type(error).__name__
    text += f" ({code[1]})" if code else ""
    return redact(text)[:_LONGEST_ERROR]
