"""Checkpoints of all ranks: a folder with a part of each rank, and loading it.

    step-00000812/
        manifest.json        format, world size, step, and the size and hash of every file
        rank-00000.pt        the checkpoint file (`file`) of rank 0
        rank-00001.pt        the same of rank 1, without the tensors equal to those of rank 0
        __0_0.distcp …       of sharded models: each rank's shards, and
        .metadata            their index, in the format of torch.distributed.checkpoint

docs/checkpoint.md describes it. Runs on the calling thread, without collectives; standard library only,
torch inside functions.
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
"""Placeholder in another rank's part for a tensor identical to rank 0's."""
SHARD = "probe.shard"
"""`(SHARD, key)` is the placeholder of a sharded tensor; `key` names it in torch.distributed.checkpoint."""
_BLOCK_BYTES = 1 << 20
_LARGEST_MANIFEST_BYTES = 256 << 20


def part_name(rank: int, ending: str = "pt") -> str:
    """`rank-00002.pt`: the file of a rank's part."""
    return f"rank-{rank:05d}.{ending}"


def chosen_folder(path: str) -> Path:
    """The checkpoint at a path: that folder itself, or the newest one in it."""
    folder = Path(path)
    if (folder / MANIFEST).is_file():
        return folder
    try:
        newest = checked.read_bytes(folder / LATEST, 4096).decode().strip()
    except (OSError, ValueError):
        raise CheckpointInvalid(
            f"{path} has no complete checkpoint of all ranks",
            hint="A folder whose name begins with a dot was interrupted.",
        ) from None
    if not newest or os.path.basename(newest) != newest or not (folder / newest / MANIFEST).is_file():
        raise CheckpointInvalid(f"{path}/{LATEST} names {newest!r}, which is not a checkpoint there")
    return folder / newest


class RanksFolder:
    """One checkpoint of all ranks, for loading in this process. Raises `CheckpointInvalid`."""

    def __init__(self, path: str) -> None:
        self.folder = chosen_folder(path)
        self.manifest = read_manifest(self.folder)
        self.world_size = int(self.manifest["world_size"])
        rank, world_size = place_in_job()
        self.fits = world_size == self.world_size
        """Whether this job has as many ranks as the saved one."""
        self.rank = rank if self.fits else 0
        if not self.fits and self.manifest.get("own_parameters", True):
            raise CheckpointInvalid(
                f"{self.folder} has {self.world_size} ranks with different models, and this job has "
                f"{world_size} ranks", hint="Start as many ranks as in the saved run.",
            )
        self._checked: set[str] = set()
        self._read: Any = None

    def content(self) -> dict[str, Any]:
        """This rank's part, with the tensors that it shares with rank 0."""
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
        entry = next((one for one in self.manifest["files"] if one["name"] == name), None)
        path = self.folder / name
        if entry is None or not path.is_file():
            raise CheckpointInvalid(f"{path} is missing", hint="Use an earlier checkpoint.")
        if path.stat().st_size != entry["bytes"] or _sha256(path) != entry.get("sha256"):
            raise CheckpointInvalid(
                f"{path} is damaged: its hash does not match", hint="Use an earlier checkpoint."
            )
        self._checked.add(name)

    def load_shards(self, tensors: Mapping[str, Any]) -> None:
        """Fill tensors, sharded or not, from the shards of their keys, without collectives and for any saved
        number of ranks."""
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
                hint="Build the model as in the saved run.",
            ) from error

    def module_state(self, state: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
        """A module's state to load. Sharded tensors are loaded directly into `own`, the module's state."""
        self.load_shards({value[1]: own[key] for key, value in state.items() if is_shard(value)})
        return {key: own[key] if is_shard(value) else value for key, value in state.items()}

    def optimizer_state(self, state: dict[str, Any], optimizer: Any) -> dict[str, Any]:
        """An optimizer's state, with sharded tensors made like their parameters."""
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

        saved = self._metadata().state_dict_metadata[key]
        if list(saved.size) != list(parameter.shape):
            raise CheckpointInvalid(
                f"{key} has the shape {list(saved.size)} and its parameter {list(parameter.shape)}: it "
                "cannot be sharded like the parameter",
                hint="Load it with torch.distributed.checkpoint.",
            )
        return torch.zeros_like(parameter, dtype=saved.properties.dtype)

    def _metadata(self) -> Any:
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        if self._read is None:
            self.check(".metadata")
            self._read = FileSystemReader(str(self.folder)).read_metadata()
        return self._read


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a checkpoint of all ranks; raises `CheckpointInvalid`."""
    try:
        found = checked.read_sealed(folder / MANIFEST, largest_bytes=_LARGEST_MANIFEST_BYTES)
    except (OSError, ValueError) as error:
        raise CheckpointInvalid(f"{folder / MANIFEST} cannot be read: {error}") from error
    if found.get("format") != FORMAT or found.get("version") != VERSION:
        raise CheckpointInvalid(
            f"{folder} is not a checkpoint of all ranks of version {VERSION}",
            hint="Load it with the version of probe that wrote it, or as it was saved.",
        )
    files, world_size = found.get("files"), found.get("world_size")
    whole = isinstance(files, list) and all(_valid_entry(one) for one in files)
    if not whole or type(world_size) is not int or world_size < 1:
        raise CheckpointInvalid(f"{folder / MANIFEST} is damaged", hint="Use an earlier checkpoint.")
    return found


def _valid_entry(file: Any) -> bool:
    """Whether a manifest's entry of a file is valid."""
    return (
        isinstance(file, dict) and isinstance(file.get("name"), str)
        and isinstance(file.get("sha256", ""), str)
        and type(file.get("bytes")) is int and os.path.basename(file["name"]) == file["name"]
    )


def place_in_job() -> tuple[int, int]:
    """Rank and world size, from torch.distributed, else from the launcher."""
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


# Placeholders ---------------------------------------------------------------------


def filled(own: Any, first: Any) -> Any:
    """A rank's part, with rank 0's tensors in place of the placeholders."""
    if type(own) is tuple and own == SAME:
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
    """Whether a value is the placeholder of a sharded tensor."""
    return type(value) is tuple and len(value) == 2 and value[0] == SHARD


def shards_in(value: Any) -> Iterator[str]:
    """The keys of all sharded tensors in a value."""
    if is_shard(value):
        yield value[1]
    elif isinstance(value, dict):
        for item in value.values():
            yield from shards_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from shards_in(item)
