"""Plain data: states of models and optimizers, without objects that only the job's code can read.

Copies containers, keeps numbers, texts and tensors, and lists what it leaves out; copies tensors to the host.
Runs on the training thread between two steps. Standard library only; torch inside functions.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from probe.base.errors import ActionRefused
from probe.checkpoint.file import content_sha256, sparse_parts
from probe.job.instruments.core.host_memory import HostMemoryReader

_ATOMS = (type(None), bool, int, float, complex, str, bytes)
LEFT_OUT = object()
"""Placeholder for a value that is not plain data."""


class Plain:
    """Copies containers with only the plain data in them; tensors stay the live ones."""

    def __init__(
        self, left_out: list[str], notes: list[str],
        stand_in: Callable[[Any, str], Any] = lambda tensor, path: None,
    ) -> None:
        """`stand_in` gives the placeholder of a tensor at a path, None to keep the tensor itself."""
        self._stand_in = stand_in
        self._left_out = left_out
        self._notes = notes
        self._within: set[int] = set()

    def of(self, value: Any, path: str) -> Any:
        """The plain form of a value; `LEFT_OUT`, and an entry in `left_out`, if it has none."""
        import torch

        if type(value) in _ATOMS:
            return value
        if isinstance(value, torch.Tensor):
            stands = self._stand_in(value, path)
            if stands is not None:
                return stands
            check_tensor(value, path)
            return value.detach()
        if type(value) in (torch.Size, torch.dtype, torch.device):
            return value
        if type(value) in (list, tuple, dict, OrderedDict, Counter, defaultdict):
            return self._container(value, path)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biuf":
            self._notes.append(f"{path}: a NumPy number is kept as a Python number")
            return value.item()
        return self._leave_out(path, value)

    def _container(self, value: Any, path: str) -> Any:
        if id(value) in self._within:
            return self._leave_out(path, value)
        self._within.add(id(value))
        try:
            return self._filled(value, path)
        finally:
            self._within.discard(id(value))

    def _filled(self, value: Any, path: str) -> Any:
        if isinstance(value, (list, tuple)):
            items = [self.of(item, f"{path}[{number}]") for number, item in enumerate(value)]
            return type(value)(None if item is LEFT_OUT else item for item in items)
        kept: Any = {} if type(value) is defaultdict else type(value)()
        for key, item in value.items():
            plain = self.of(item, f"{path}.{key}")
            if not _is_plain_key(key):
                self._leave_out(f"{path}[{type(key).__name__}]", key)
            elif plain is not LEFT_OUT:
                kept[key] = plain
        metadata = getattr(value, "_metadata", None)  # of a module's state: versions of its parts
        if type(value) is OrderedDict and metadata is not None:
            kept._metadata = self.of(metadata, f"{path}._metadata")
        return kept

    def _leave_out(self, path: str, value: Any) -> Any:
        self._left_out.append(f"{path} ({type(value).__name__})")
        return LEFT_OUT


def _is_plain_key(key: Any) -> bool:
    if type(key) is tuple:
        return all(_is_plain_key(part) for part in key)
    return type(key) in _ATOMS


def check_tensor(tensor: Any, path: str) -> None:
    """Raise `ActionRefused` for a tensor that cannot be copied to the host."""
    import torch

    plain = (torch.Tensor, torch.nn.Parameter, getattr(torch.nn, "Buffer", torch.Tensor))
    if type(tensor) not in plain:
        why = f"is a {type(tensor).__name__}"
    elif tensor.is_meta:
        why = "has no values (device meta)"
    elif tensor.is_quantized or tensor.is_nested or tensor.is_mkldnn:
        why = "is quantized, nested or in a layout of MKL-DNN"
    elif tensor.layout == torch.strided and _reach_bytes(tensor) > tensor.untyped_storage().nbytes():
        why = "has freed its memory"
    else:
        return
    raise ActionRefused(
        f"{path} {why}; such a checkpoint is not supported, and nothing was changed",
        hint="Let the job save it in its own way.",
    )


def _reach_bytes(tensor: Any) -> int:
    """Bytes from the start of its memory to the tensor's last element."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return int((tensor.storage_offset() + last + 1) * tensor.element_size())


# Copies -------------------------------------------------------------------------


def tensors_in(value: Any) -> Iterator[Any]:
    """Every tensor in plain data; sparse ones as their dense parts."""
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:
            yield value
        else:
            yield from sparse_parts(value)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def stored_bytes(value: Any) -> int:
    """Bytes of memory behind all tensors in plain data, each storage once."""
    storages = {_storage(one): one.untyped_storage().nbytes() for one in tensors_in(value)}
    return sum(storages.values())


def copied(value: Any) -> Any:
    """Plain data with copies of its tensors on the CPU; those that share memory share it again."""
    import torch

    views: dict[Any, dict[Any, Any]] = {}
    for tensor in tensors_in(value):
        views.setdefault(_storage(tensor), {})[_geometry(tensor)] = tensor
    with torch.no_grad():
        return _with_copies(value, {storage: _copies(found) for storage, found in views.items()})


def _storage(tensor: Any) -> Any:
    storage = tensor.untyped_storage()
    return storage.device, storage.data_ptr() or id(tensor)


def _geometry(tensor: Any) -> Any:
    shape = (tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()))
    return (*shape, tensor.is_conj(), tensor.is_neg())


def _copies(views: dict[Any, Any]) -> dict[Any, Any]:
    """Copies of the tensors in one storage: of the whole storage if several tensors fill half of it."""
    import torch

    tensors = list(views.values())
    storage = tensors[0].untyped_storage()
    used = sum(one.numel() * one.element_size() for one in tensors)
    bits = any(one.is_conj() or one.is_neg() for one in tensors)
    if len(tensors) == 1 or 2 * used < storage.nbytes() or bits:
        return {geometry: _copy(one) for geometry, one in views.items()}
    whole = storage.clone() if storage.device.type == "cpu" else storage.cpu()
    return {
        geometry: torch.empty(0, dtype=one.dtype, device="cpu").set_(
            whole, one.storage_offset(), one.shape, one.stride()
        )
        for geometry, one in views.items()
    }


def _copy(tensor: Any) -> Any:
    kept = tensor.detach().resolve_conj().resolve_neg()
    return kept.clone() if kept.device.type == "cpu" else kept.cpu()


def _with_copies(value: Any, copies: dict[Any, dict[Any, Any]]) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            return _copy(value)
        return copies[_storage(value)][_geometry(value)]
    if isinstance(value, dict):
        kept = type(value)()
        for key, item in value.items():
            kept[key] = _with_copies(item, copies)
        if type(value) is OrderedDict:
            vars(kept).update(vars(value))
        return kept
    if type(value) in (list, tuple):
        return type(value)(_with_copies(item, copies) for item in value)
    return value


# Hashes -------------------------------------------------------------------------


def leaves(value: Any, path: str = "") -> dict[str, list[str]]:
    """Type and shape, and hash, of every tensor in plain data, by path."""
    import torch

    found: dict[str, list[str]] = {}
    if isinstance(value, torch.Tensor):
        found[path] = [f"{value.dtype} {list(value.shape)}", content_sha256({"": value})]
    elif isinstance(value, dict):
        for key, item in value.items():
            found.update(leaves(item, f"{path}.{key}" if path else str(key)))
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            found.update(leaves(item, f"{path}[{number}]"))
    return found


# Memory -------------------------------------------------------------------------


def memory_available_bytes(root: Path = Path("/")) -> int | None:
    """Memory this process may still take without swapping: the host's, or its control group's if less."""
    return HostMemoryReader(root).read().available_bytes
