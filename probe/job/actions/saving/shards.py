"""Shards: each rank's part of the tensors of a sharded model (FSDP2, tensor-parallel).

Nothing is gathered and no collective is called: a rank knows its shards and their offsets. `Shards` is filled
on the training thread, which copies; the files have the format of torch.distributed.checkpoint and are
written on the request's thread. Standard library only; torch inside functions.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
import sys
import threading
from pathlib import Path
from typing import Any

from probe.base.errors import ActionFailed, ActionRefused
from probe.checkpoint.all_ranks import SHARD, is_shard
from probe.job.actions.saving.plain_data import check_tensor
from probe.job.actions.saving.verified_file import Sink, name_new, sha256_on_disk, whole_file

METADATA = ".metadata"


class Shards:
    """The sharded tensors of one checkpoint on this rank."""

    def __init__(self, rank: int) -> None:
        self.file = f"__{rank}_0.distcp"
        self.rank = rank
        self._tensors: dict[str, Any] = {}
        self.local: dict[str, Any] = {}
        """This rank's shard of each tensor, by key; the snapshot replaces them by copies."""

    def stand_in(self, tensor: Any, key: str) -> tuple[str, str] | None:
        """The placeholder of a sharded tensor in the content; None for other tensors."""
        if not isinstance(tensor, _kinds()):
            return None
        if any(placement.is_partial() for placement in tensor.placements):
            raise ActionRefused(
                f"{key} is a sum that is not reduced yet (a partial placement); nothing was changed",
                hint="Try again: between two steps there is none.",
            )
        import torch

        with torch.no_grad():
            local = tensor.to_local().detach()
        check_tensor(local, key)
        self._tensors[key] = tensor
        self.local[key] = local
        return SHARD, key

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the sharded tensors."""
        return tuple(self._tensors)

    def write(
        self, folder: Path, extra: dict[str, Any], given_up: threading.Event
    ) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
        """Write this rank's shards, and `extra` (rank 0's plain tensors and values), into one file. Returns
        where each is, and the file; raises `OSError`."""
        pieces = [*self._own_pieces(), *_plain_pieces(extra)]
        if not pieces:
            return [], None

        def verify(temporary: Path, path: Path) -> None:
            if sha256_on_disk(temporary) != sink.hash.hexdigest():
                raise OSError(errno.EIO, "the file on disk differs from the bytes written")
            os.rename(temporary, path)

        with whole_file(folder / self.file, verify, readable=True) as file:
            sink = Sink(file, given_up)
            for piece in pieces:
                piece["at"] = sink.size_bytes
                _save(piece.pop("value"), sink)
                piece["bytes"] = sink.size_bytes - piece["at"]
                piece["file"] = self.file
        entry = {"name": self.file, "bytes": sink.size_bytes, "sha256": sink.hash.hexdigest()}
        return pieces, entry

    def _own_pieces(self) -> list[dict[str, Any]]:
        """The pieces that this rank writes: of ranks that hold the same piece, only the first writes it."""
        found = []
        for key, tensor in self._tensors.items():
            if _is_first(tensor):
                found += [
                    {**_of_tensor(key, tensor), "offsets": list(offsets), "sizes": list(sizes), "value": part}
                    for offsets, sizes, part in self._chunks(key, tensor)
                ]
        return found

    def _chunks(self, key: str, tensor: Any) -> list[tuple[Any, Any, Any]]:
        chunks = tensor.__create_chunk_list__()
        local = self.local[key]
        held = [chunk for chunk in chunks if 0 not in chunk.sizes]
        if not held:
            return []
        if len(held) > 1 or list(held[0].sizes) != list(local.shape):
            raise ActionFailed(f"{key} is sharded in {len(held)} pieces on one rank, which is not supported")
        return [(held[0].offsets, held[0].sizes, local)]


def _kinds() -> Any:
    """The class of sharded tensors, if the job has loaded it."""
    module: Any = sys.modules.get("torch.distributed.tensor") or sys.modules.get("torch.distributed._tensor")
    return getattr(module, "DTensor", ())


def _is_first(tensor: Any) -> bool:
    """Whether no earlier rank of the tensor's mesh holds the same shard."""
    mesh = tensor.device_mesh
    place = mesh.get_coordinate()
    if place is None:
        return False
    return all(
        at == 0 for at, placement in zip(place, tensor.placements, strict=True) if placement.is_replicate()
    )


def _of_tensor(key: str, tensor: Any) -> dict[str, Any]:
    return {
        "key": key, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."),
        "requires_grad": bool(tensor.requires_grad),
    }


def _plain_pieces(extra: dict[str, Any]) -> list[dict[str, Any]]:
    """Tensors that are whole on every rank, and other values."""
    import torch

    found: list[dict[str, Any]] = []
    for key, value in extra.items():
        if isinstance(value, torch.Tensor):
            whole = {"offsets": [0] * value.dim(), "sizes": list(value.shape)}
            found.append({**_of_tensor(key, value), **whole, "value": value})
        else:
            found.append({"key": key, "value": value})
    return found


def _save(value: Any, sink: Sink) -> None:
    import torch

    if isinstance(value, torch.Tensor):
        value = value.contiguous()
        if value.untyped_storage().nbytes() != value.nbytes:
            value = value.clone()  # else the whole storage behind the view is written
    buffer = io.BytesIO()
    torch.save(value, buffer)
    sink.write(buffer.getbuffer())
    if sink.error is not None:
        raise sink.error


# Names in the format of torch.distributed.checkpoint -----------------------------


def flattened(content: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Models and optimizers as `torch.distributed.checkpoint` flattens them: values by key, without sharded
    ones, and the path of each key."""
    from torch.distributed.checkpoint._nested_dict import flatten_state_dict

    flat, paths = flatten_state_dict(content)
    plain = {key: value for key, value in flat.items() if not is_shard(value)}
    return plain, {key: list(path) for key, path in paths.items()}


def optimizer_by_names(state: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    """An optimizer's state with the names of parameters in place of their numbers, as in
    `torch.distributed.checkpoint.state_dict`."""
    def named(number: Any) -> Any:
        return names.get(number, number)

    groups = [
        {**group, "params": [named(number) for number in group["params"]]}
        for group in state.get("param_groups", ())
    ]
    return {"state": {named(n): slots for n, slots in state.get("state", {}).items()}, "param_groups": groups}


def write_metadata(folder: Path, pieces: list[dict[str, Any]], paths: dict[str, list[Any]]) -> None:
    """Write the index of torch.distributed.checkpoint, unless another rank has. Raises `ActionFailed` if
    parts of a tensor are missing."""
    import torch
    from torch.distributed.checkpoint import filesystem, metadata

    tensors: dict[str, Any] = {}
    places: dict[Any, Any] = {}
    held: dict[str, int] = {}
    for piece in pieces:
        key = piece["key"]
        place = filesystem._StorageInfo(piece["file"], piece["at"], piece["bytes"])
        if "shape" not in piece:
            tensors[key] = metadata.BytesStorageMetadata()
            places[metadata.MetadataIndex(key)] = place
            continue
        offsets, sizes = torch.Size(piece["offsets"]), torch.Size(piece["sizes"])
        if key not in tensors:
            properties = metadata.TensorProperties(
                dtype=getattr(torch, piece["dtype"]), requires_grad=piece["requires_grad"]
            )
            tensors[key] = metadata.TensorStorageMetadata(properties, torch.Size(piece["shape"]), [])
        index = metadata.MetadataIndex(key, offsets, len(tensors[key].chunks))
        tensors[key].chunks.append(metadata.ChunkStorageMetadata(offsets, sizes))
        places[index] = place
        held[key] = held.get(key, 0) + sizes.numel()
    missing = [key for key, count in held.items() if count != tensors[key].size.numel()]
    if missing:
        raise ActionFailed(f"the shards of {missing[0]} are incomplete; nothing was kept")
    planner_data = {key: tuple(path) for key, path in paths.items()}
    found = metadata.Metadata(tensors, planner_data, places)
    with (
        contextlib.suppress(FileExistsError),
        whole_file(folder / METADATA, name_new, readable=True) as file,
    ):
        pickle.dump(found, file)
