"""Gathering: makes one checkpoint of all ranks in one folder, complete or not at all.

    DIR/.NAME.tmp/                 while it is made; NAME is the same on all ranks
        rank-00000.here            host and process of the rank, made when it prepares
        rank-00000.leaves.json     of rank 0: hashes of its tensors, so that others need not write the same
        rank-00000.pt              its part, verified
        rank-00000.json            what is in its part; written last
        rank-00000.failed          why it has no part
        manifest.json              of all parts, once all are there
    DIR/step-00000812/             the same folder, renamed: the checkpoint exists from then on
    DIR/latest                     the name of the newest, replaced by one rename

There is no coordinator: every rank waits for the others' records and then tries to publish the checkpoint;
the first one succeeds. A rank that dies leaves a folder whose name begins with a dot; earlier checkpoints
stay as they are. On the request's thread. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probe.base import clock, descriptors
from probe.base.errors import ActionFailed, ActionRefused, CheckpointInvalid
from probe.base.rank_sets import as_text
from probe.checkpoint.all_ranks import FORMAT, LATEST, MANIFEST, VERSION, part_name, read_manifest
from probe.job.actions.saving.verified_file import (
    check_folder,
    make_readable,
    sha256_on_disk,
    sync_folder,
    umask,
    whole_file,
)
from probe.recording import checked
from probe.recording.process import alive, current_boot_id, life

SEEN_S = 10.0
"""A rank whose mark is not in the folder after this time sees another folder."""
WAIT_S = 600.0
"""How long to wait for the parts of other ranks, once this rank's own is there."""
_EAGER_S, _POLL_S = 0.02, 0.25
_LOST = "rank {ranks} does not see this folder: it is not shared by all hosts of the job"


class Gathering:
    """One rank's side of a checkpoint of all ranks."""

    def __init__(self, folder: Path, name: str, rank: int, world_size: int) -> None:
        """`name` is the same on all ranks, and used for this checkpoint only. Makes the rank's mark, or
        raises `ActionRefused`."""
        self.folder = folder
        self.name = name
        self.rank = rank
        self.world_size = world_size
        self.making = folder / f".{name}.tmp"
        self.stop = threading.Event()
        """Set to end all waiting: the process ends."""
        self._over = False
        make_folder(folder)
        check_folder(folder)
        try:
            self.making.mkdir(mode=0o700, exist_ok=True)
            self._write(self._of("here"), _this_process())
        except OSError as error:
            raise ActionRefused(
                f"no file can be created in {folder}: {error.strerror or error}",
                hint="Name a folder that every rank can write to.",
            ) from error

    @property
    def part(self) -> Path:
        """Path of this rank's part."""
        return self.making / part_name(self.rank)

    def tell_leaves(self, leaves: dict[str, list[str]]) -> None:
        """On rank 0: write the hashes of its tensors, for the other ranks."""
        self._write(self._of("leaves.json"), leaves)

    def leaves_of_first(self, until_s: float) -> dict[str, list[str]]:
        """On other ranks: the hashes of rank 0's tensors; raises `ActionFailed` if rank 0 has failed."""
        wanted = self.making / f"{part_name(0, '')}leaves.json"
        self._wait(lambda names: wanted.name in names, {0}, until_s)
        found: dict[str, list[str]] = json.loads(descriptors.read(wanted))
        return found

    def tell(self, record: dict[str, Any]) -> None:
        """Record that this rank's part is complete and verified."""
        self._write(self._of("json"), {**record, "rank": self.rank})

    # The end ----------------------------------------------------------------

    def conclude(
        self, until_s: float, describe: Callable[[list[dict[str, Any]]], dict[str, Any]]
    ) -> tuple[Path, dict[str, Any]]:
        """Once all parts are there, publish the checkpoint, unless another rank was faster. Returns the
        folder and its manifest, to which `describe` adds `step`, `files` and other fields made from the
        records. Raises `ActionFailed` naming the rank without a part."""
        wanted = {f"{part_name(rank, '')}json": rank for rank in range(self.world_size)}
        self._wait(lambda names: wanted.keys() <= names, set(wanted.values()), until_s)
        try:
            try:
                records = [json.loads(descriptors.read(self.making / name)) for name in wanted]
                for record in records:
                    self._check(record)
                manifest = self._complete(describe(records))
                self._write(self.making / MANIFEST, manifest)
                path = self._rename(manifest["step"])
            except FileNotFoundError:  # another rank was faster
                path, manifest = self._published()
            else:
                self._clear(path, manifest)
        except OSError as error:
            raise ActionFailed(
                f"publishing it failed: {error.strerror or error}; {self.folder} is as it was before"
            ) from error
        self._over = True
        return path, manifest

    def _complete(self, manifest: dict[str, Any]) -> dict[str, Any]:
        own = {
            "format": FORMAT, "version": VERSION, "name": self.name, "world_size": self.world_size,
            "saved_ns": clock.wall_ns(),
        }
        return checked.signed(MANIFEST, {**own, **manifest})

    def _check(self, record: dict[str, Any]) -> None:
        for file in record["files"]:
            path = self.making / file["name"]
            size = path.stat().st_size if path.exists() else None
            if size != file["bytes"] and self.making.exists():
                raise ActionFailed(
                    f"{file['name']} of rank {record['rank']} has {size} bytes here and {file['bytes']} "
                    "where it was written"
                )

    def _rename(self, step: int | None) -> Path:
        plain = "checkpoint" if step is None else f"step-{step:08d}"
        for count in range(1, 1000):
            path = self.folder / (plain if count == 1 else f"{plain}.{count}")
            if not os.path.lexists(path):
                try:
                    os.rename(self.making, path)
                    return path
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                        raise
        raise FileExistsError(errno.EEXIST, f"{plain} and 998 numbered ones exist already")

    def _published(self) -> tuple[Path, dict[str, Any]]:
        """The checkpoint that another rank has published."""
        for name in sorted(descriptors.names(self.folder), reverse=True):
            path = self.folder / name
            with contextlib.suppress(CheckpointInvalid, KeyError, OSError):
                manifest = read_manifest(path)
                if manifest["name"] == self.name:
                    return path, manifest
        raise ActionFailed(f"{self.making} was removed by another process before it was published")

    def _clear(self, path: Path, manifest: dict[str, Any]) -> None:
        """On the rank that published it: make it the newest, and remove the files needed only to make it."""
        if manifest.get("newest", True):
            self._write(self.folder / LATEST, path.name, again=True)
        sync_folder(self.folder)
        listed = {file["name"] for file in manifest["files"]} | {MANIFEST}
        with contextlib.suppress(OSError):
            make_readable(path / MANIFEST)
            os.chmod(path, 0o777 & ~umask())
            for name in descriptors.names(path):
                if name not in listed:
                    os.unlink(path / name)

    def fail(self, why: str) -> None:
        """This rank has no part: tell the others; the last one removes the folder."""
        if self._over:
            return
        self._over = True
        with contextlib.suppress(OSError):
            self._write(self._of("failed"), why)
            for name in descriptors.names(self.making):
                if _rank_of(name) == self.rank and not name.endswith((".failed", ".here")):
                    os.unlink(self.making / name)
            # A rank that is done does not know yet, and will also write its failure here.
            if all(state in ("failed", "ended") for state in self._states().values()):
                for name in descriptors.names(self.making):
                    with contextlib.suppress(FileNotFoundError):  # two ranks may find this at the same time
                        os.unlink(self.making / name)
                os.rmdir(self.making)

    def leave(self) -> None:
        """The request was cancelled: remove this rank's files."""
        if self._over:
            return
        self._over = True
        with contextlib.suppress(OSError):
            for name in descriptors.names(self.making):
                if _rank_of(name) == self.rank:
                    os.unlink(self.making / name)
            os.rmdir(self.making)

    # Waiting ----------------------------------------------------------------

    def _wait(self, there: Callable[[set[str]], bool], ranks: set[int], until_s: float) -> None:
        """Wait until `there` accepts the names in the folder; raises `ActionFailed` if it never will."""
        begun_s = time.monotonic()
        while True:
            names = self._names()
            if names is None or MANIFEST in names or there(names):
                return
            self._raise_failures(names, ranks, begun_s)
            now_s = time.monotonic()
            if now_s > until_s:
                late = [rank for rank in sorted(ranks) if f"{part_name(rank, '')}json" not in names]
                raise ActionFailed(f"rank {as_text(late)} did not write its part in time")
            if self.stop.wait(_EAGER_S if now_s - begun_s < 2.0 else _POLL_S):
                raise ActionFailed("the process ends")

    def _names(self) -> set[str] | None:
        """Names of the files in the folder; None once another rank has renamed it."""
        try:
            return set(descriptors.names(self.making))
        except FileNotFoundError:
            return None

    def _raise_failures(self, names: set[str], ranks: set[int], begun_s: float) -> None:
        for name in sorted(names):
            if name.endswith(".failed"):
                why = json.loads(descriptors.read(self.making / name))
                raise ActionFailed(f"rank {_rank_of(name)} has no part: {why}")
        ended = [rank for rank, state in self._states(ranks).items() if state == "ended"]
        if ended:
            raise ActionFailed(f"the process of rank {as_text(ended)} ended before its part was written")
        marked = {_rank_of(name) for name in names}
        unseen = [rank for rank in range(self.world_size) if rank not in marked]
        if unseen and time.monotonic() > begun_s + SEEN_S:
            raise ActionFailed(
                _LOST.format(ranks=as_text(unseen)), hint="Name a folder that all hosts share."
            )

    def _states(self, ranks: set[int] | None = None) -> dict[int, str]:
        """State of every rank: `done`, `failed`, `ended` (its process, if that can be seen), or `under
        way`."""
        names = self._names() or set()
        found: dict[int, str] = {}
        for rank in ranks if ranks is not None else range(self.world_size):
            stem = part_name(rank, "")
            if f"{stem}json" in names:
                found[rank] = "done"
            elif f"{stem}failed" in names:
                found[rank] = "failed"
            elif f"{stem}here" in names:
                found[rank] = "ended" if self._ended(f"{stem}here") else "under way"
        return found

    def _ended(self, name: str) -> bool:
        try:
            mark = json.loads(descriptors.read(self.making / name))
        except (OSError, ValueError):
            return False
        here = (mark["boot"], mark["namespace"]) == (current_boot_id(), _namespace())
        return here and not alive(mark["pid"], mark["start_ticks"], mark["boot"])

    # Files ------------------------------------------------------------------

    def _of(self, what: str) -> Path:
        return self.making / f"{part_name(self.rank, '')}{what}"

    def _write(self, path: Path, content: object, *, again: bool = False) -> None:
        """Write a small file atomically; `again` replaces an existing one."""
        text = content if isinstance(content, str) and again else json.dumps(content)
        with whole_file(path, readable=again) as file:
            file.write(text.encode())


def make_folder(folder: Path) -> None:
    """Make the folder of checkpoints, in an existing one. Raises `ActionRefused`."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ActionRefused(
            f"{folder} is not a folder and cannot be created: {error.strerror or error}",
            hint="With several ranks a checkpoint is a folder: name an existing one, or a new one inside it.",
        ) from error


def described(path: Path) -> dict[str, Any]:
    """Name, size and hash of a file of the checkpoint."""
    return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_on_disk(path)}


def _this_process() -> dict[str, Any]:
    found = life(os.getpid())
    return {
        "host": socket.gethostname(), "boot": current_boot_id(), "namespace": _namespace(),
        "pid": os.getpid(), "start_ticks": 0 if found is None else found.start_ticks,
    }


def _namespace() -> str:
    """The namespace of process ids: in another one (another container) a pid means nothing."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _rank_of(name: str) -> int | None:
    """The rank that a file in the folder belongs to."""
    plain = name.lstrip(".")
    if plain.startswith("rank-") and plain[5:10].isdecimal():
        return int(plain[5:10])
    if plain.startswith("__") and plain[2:].partition("_")[0].isdecimal():
        return int(plain[2:].partition("_")[0])
    return None
