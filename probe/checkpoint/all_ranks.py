"""Checkpoints of all ranks: a folder with a part of each rank, and what `load_checkpoint` makes of it.

    step-00000812/
        manifest.json        format, world size, step, and of every file its size and hash
        rank-00000.pt        what `probe.checkpoint` describes, of rank 0
        rank-00001.pt        the same of rank 1, without the tensors that are those of rank 0
        __0_0.distcp …       of sharded models: each rank's shards, and
        .metadata            where they are, as torch.distributed.checkpoint writes and reads them

docs/checkpoint.md describes it. Runs on the thread that calls it, without any collective; standard library
only, torch inside functions.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from probe.base import descriptors
from probe.base.errors import CheckpointInvalid
from probe.checkpoint.file import read_checkpoint
from probe.recording import checked

FORMAT = "probe checkpoint of all ranks"
VERSION = 1
MANIFEST = "manifest.json"
LATEST = "latest"
SAME = ("probe.same as rank 0",)
"""Stands in the part of another rank for a tensor that rank 0 has, bit for bit."""
SHARD = "probe.shard"
"""`(SHARD, key)` stands for a sharded tensor; `key` is its name in the files of
torch.distributed.checkpoint."""
_BLOCK_BYTES = 1 << 20
_LARGEST_MANIFEST_BYTES = 256 << 20


def part_name(rank: int, ending: str = "pt") -> str:
    """`rank-00002.pt`: the file with a rank's part."""
    return f"rank-{rank:05d}.{ending}"


def chosen_folder(path: str) -> Path:
    """The checkpoint that is meant: that folder itself, or the newest of those in it."""
    folder = Path(path)
    if (folder / MANIFEST).is_file():
        return folder
    try:
        newest = checked.read_bytes(folder / LATEST, 4096).decode().strip()
    except (OSError, ValueError):
        raise CheckpointInvalid(
            f"{path} holds no whole checkpoint of all ranks",
            hint="A folder whose name begins with a dot is one that was interrupted.",
        ) from None
    if not newest or os.path.basename(newest) != newest or not (folder / newest / MANIFEST).is_file():
        raise CheckpointInvalid(f"{path}/{LATEST} names {newest!r}, which is no checkpoint there")
    return folder / newest


class RanksFolder:
    """One checkpoint of all ranks, as this process is to load it. Raises `CheckpointInvalid`."""

    def __init__(self, path: str) -> None:
        self.folder = chosen_folder(path)
        self.manifest = read_manifest(self.folder)
        self.world_size = int(self.manifest["world_size"])
        rank, world_size = place_in_job()
        self.fits = world_size == self.world_size
        """Whether this job has as many ranks as that one had."""
        self.rank = rank if self.fits else 0
        if not self.fits and self.manifest.get("own_parameters", True):
            raise CheckpointInvalid(
                f"{self.folder} is of {self.world_size} ranks that have different models, and this job has "
                f"{world_size}", hint="Start as many ranks as there were.",
            )
        self._checked: set[str] = set()
        self._read: Any = None

    def content(self) -> dict[str, Any]:
        """What this rank's part holds, with the tensors that it shares with rank 0's in place."""

        first = self._part(0, read_checkpoint)
        if self.rank == 0:
            return first
        found: dict[str, Any] = filled(self._part(self.rank, read_checkpoint), first)
        return found

    def _part(self, rank: int, read: Any) -> dict[str, Any]:
        path = self.folder / part_name(rank)
        self.check(path.name)
        content: dict[str, Any] = read(str(path))
        return content

    def check(self, name: str) -> None:
        """Compare one file with its hash."""
        if name in self._checked:
            return
        told = next((one for one in self.manifest["files"] if one["name"] == name), None)
        path = self.folder / name
        if told is None or not path.is_file():
            raise CheckpointInvalid(f"{path} is missing", hint="Use an earlier checkpoint.")
        if path.stat().st_size != told["bytes"] or _sha256(path) != told.get("sha256"):
            raise CheckpointInvalid(
                f"{path} is damaged: it is not what was written", hint="Use an earlier checkpoint."
            )
        self._checked.add(name)

    def load_shards(self, tensors: Mapping[str, Any]) -> None:
        """Fill these tensors, sharded or not, each from the shards of its key: no collective, and from
        however many ranks there were."""
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        if not tensors:
            return
        self.check(".metadata")
        own = [f"__{self.rank}_"] if self.fits else ["__"]
        for one in self.manifest["files"]:
            if one["name"].startswith(tuple(own)):
                self.check(one["name"])
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            load(
                dict(tensors), storage_reader=FileSystemReader(str(self.folder)), planner=planner,
                no_dist=True,
            )
        except (RuntimeError, ValueError, KeyError, OSError) as error:
            raise CheckpointInvalid(
                f"the shards of {self.folder} do not fit: {str(error).strip()[:500]}",
                hint="Build the model as in the run that was saved.",
            ) from error


    def module_state(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """A module's state to be loaded: what is sharded in it stands in `own`, the module's own state,
        where it has been loaded already."""
        self.load_shards({value[1]: own[key] for key, value in state.items() if is_shard(value)})
        return {key: own[key] if is_shard(value) else value for key, value in state.items()}

    def optimizer_state(self, state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
        """An optimizer's state with tensors for what is sharded in it, each like its parameter."""
        import torch

        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        made: dict[str, Any] = {}
        filled_in: dict[Any, Any] = {}
        with torch.no_grad():
            for number, slots in state["state"].items():
                filled_in[number] = dict(slots) if isinstance(slots, dict) else slots
                for slot, value in filled_in[number].items() if isinstance(slots, dict) else ():
                    if is_shard(value):
                        made[value[1]] = self._like(parameters[number], value[1])
                        filled_in[number][slot] = made[value[1]]
        self.load_shards(made)
        return {**state, "state": filled_in}

    def _like(self, parameter: Any, key: str) -> Any:
        import torch

        told = self._metadata().state_dict_metadata[key]
        if list(told.size) != list(parameter.shape):
            raise CheckpointInvalid(
                f"{key} has the shape {list(told.size)} and its parameter {list(parameter.shape)}: how such "
                "a state is sharded here is not known",
                hint="Load it with torch.distributed.checkpoint.",
            )
        return torch.zeros_like(parameter, dtype=told.properties.dtype)

    def _metadata(self) -> Any:
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        if self._read is None:
            self.check(".metadata")
            self._read = FileSystemReader(str(self.folder)).read_metadata()
        return self._read


def read_manifest(folder: Path) -> dict[str, Any]:
    """What the manifest of a checkpoint of all ranks says; raises `CheckpointInvalid`."""
    try:
        found = checked.read_sealed(folder / MANIFEST, largest_bytes=_LARGEST_MANIFEST_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointInvalid(f"{folder / MANIFEST} cannot be read: {error}") from error
    if found.get("format") != FORMAT or found.get("version") != VERSION:
        raise CheckpointInvalid(
            f"{folder} is no checkpoint of all ranks of version {VERSION}",
            hint="Load it with the version of probe that wrote it, or as it was saved.",
        )
    files, world_size = found.get("files"), found.get("world_size")
    whole = isinstance(files, list) and all(_is_told(one) for one in files)
    if not whole or type(world_size) is not int or world_size < 1:
        raise CheckpointInvalid(f"{folder / MANIFEST} is damaged", hint="Use an earlier checkpoint.")
    return found


def _is_told(file: Any) -> bool:
    """Whether this says of a file in the folder what it should be."""
    return (
        isinstance(file, dict) and isinstance(file.get("name"), str)
        and isinstance(file.get("sha256", ""), str)
        and type(file.get("bytes")) is int and os.path.basename(file["name"]) == file["name"]
    )


def place_in_job() -> tuple[int, int]:
    """This process's rank and the number of ranks: as torch.distributed knows them, or the launcher."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return (int(rank), int(size)) if rank.isdecimal() and size.isdecimal() else (0, 1)


def _sha256(path: Path) -> str:
    found = hashlib.sha256()
    with descriptors.reading(path) as file:
        while block := file.read(_BLOCK_BYTES):
            found.update(block)
    return found.hexdigest()


# Tensors that stand elsewhere ----------------------------------------------------


def filled(own: Any, first: Any) -> Any:
    """A rank's part, with rank 0's tensors where it says that they are the same."""
    if own == SAME if type(own) is tuple else False:
        return first
    if isinstance(own, dict):
        kept: Any = type(own)()
        for key, value in own.items():
            kept[key] = filled(value, first.get(key) if isinstance(first, dict) else None)
        if hasattr(own, "_metadata"):
            kept._metadata = own._metadata  # of a module's state: versions of its parts
        return kept
    if type(own) in (list, tuple):
        others = first if isinstance(first, (list, tuple)) and len(first) == len(own) else [None] * len(own)
        return type(own)(filled(value, other) for value, other in zip(own, others, strict=True))
    return own


def is_shard(value: Any) -> bool:
    """Whether this stands for a sharded tensor."""
    return type(value) is tuple and len(value) == 2 and value[0] == SHARD


def shards_in(value: Any) -> Iterator[str]:
    """The keys of all sharded tensors in a content."""
    if is_shard(value):
        yield value[1]
    elif isinstance(value, dict):
        for item in value.values():
            yield from shards_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from shards_in(item)
