"""Files of an archive on this host: those of a folder in place, those of an object store fetched.

    with LocalFiles(store) as local:
        answer = local.read(files, lambda paths: worker.ask({…, "files": paths}, timeout_s))

A file that is gone when it is fetched or opened has been merged: its group is listed again.
Any thread; standard library only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from probe.archive.catalog import ArchivedFile, Catalog, in_parallel
from probe.archive.store import Store
from probe.base.errors import ArchiveInvalid, ObjectMissing, ProbeError

MOST_FETCHED_BYTES = 16 << 30
"""Limit of the bytes that one command fetches from an object store."""
TRIES = 4
"""How often files are listed again because another process merges them. Replaced files are kept for ten
minutes, so even a second time is rare."""
_MANY_BYTES = 4 << 20
_T = TypeVar("_T")

Found = Mapping[str, Sequence[ArchivedFile]]
"""Files by table."""


class LocalFiles:
    """The files of one archive, and the folder of those that were fetched."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._catalog = Catalog(store)
        self._temporary = tempfile.TemporaryDirectory(prefix="probe-fleet-")
        self._fetched_bytes = 0
        self.fetched = Path(self._temporary.name)
        """Folder of the fetched files; also for files that do not come from an archive."""
        self.folders = [self.fetched, *filter(None, [store.folder])]
        """The folders of all the files."""

    def close(self) -> None:
        """Remove the fetched files."""
        self._temporary.cleanup()

    def paths(self, files: Sequence[ArchivedFile]) -> list[str]:
        """The paths of files, which are fetched first unless the archive is a folder. Raises `ObjectMissing`,
        or `ArchiveInvalid` for too many bytes."""
        missing = [one for one in files if one.folder is None and not self._copy(one).exists()]
        self._fetched_bytes += sum(one.size_bytes for one in missing)
        if self._fetched_bytes > MOST_FETCHED_BYTES:
            raise ArchiveInvalid(
                f"the statement reads {self._fetched_bytes:,} bytes of {self._store.url}, "
                f"at most {MOST_FETCHED_BYTES:,} are fetched",
                hint="Narrow it with --since, --job, --host or --run, or run it on other hosts with --ray.",
            )
        in_parallel(self._fetch, missing)
        return [one.place or str(self._copy(one)) for one in files]

    def read(self, files: Found, ask: Callable[[dict[str, list[str]]], _T], *, again: bool = True) -> _T:
        """The answer of `ask`, given the paths of these files. If files have been merged, lists their groups
        again and repeats; not if `again` is False, because the new files may include rows that are also read
        from elsewhere. Raises the errors of `ask`."""
        for tries_left in reversed(range(TRIES)):
            try:
                return ask({table: self.paths(found) for table, found in files.items()})
            except ProbeError as error:
                if not again or not tries_left or not self.is_gone(error, files):
                    raise
            files = self._listed_again(files)
        raise AssertionError("unreachable")

    def is_gone(self, error: ProbeError, files: Found) -> bool:
        """Whether an error is about one of these files that no longer exists."""
        named = self.named(error, files)
        return isinstance(error, ObjectMissing) or (
            named is not None and named.path is not None and not named.path.exists()
        )

    def named(self, error: ProbeError, files: Found) -> ArchivedFile | None:
        """The file that an error of a worker's engine is about."""
        about = getattr(error, "about", "")
        if ".parquet" not in about:
            return None
        return next((one for found in files.values() for one in found if one.name in about), None)

    def _listed_again(self, files: Found) -> dict[str, list[ArchivedFile]]:
        groups = list({one.file.group for some in files.values() for one in some})
        listed = in_parallel(lambda group: self._catalog.listing(group.table, group=group), groups)
        found: dict[str, list[ArchivedFile]] = {table: [] for table in files}
        for group, some in zip(groups, listed, strict=True):
            found[group.table] += some
        return found

    def _copy(self, one: ArchivedFile) -> Path:
        return self.fetched / one.name

    def _fetch(self, one: ArchivedFile) -> None:
        place = self._copy(one)
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f".{place.name}")
        with open(part, "wb") as file:
            for first in range(0, one.size_bytes, _MANY_BYTES):
                file.write(self._store.get(one.name, first, min(_MANY_BYTES, one.size_bytes - first)))
        part.rename(place)  # so that an incomplete file is never read
