"""Tensor summaries: non-finite values, statistics, and the names and content hash of a batch's tensors.

Runs in a forked child, on the agent's thread, or on the training thread while it is held (`held_trace`).
Returns plain values. Standard library only; the job's torch, inside functions.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
from collections.abc import Iterator
from typing import Any

DEEPEST = 6
MOST_TENSORS = 256
MOST_POSITIONS = 64
"""Maximum number of non-finite samples reported per batch."""
_PIECE = 1 << 22


def torch_module() -> Any:
    """The torch that the job imported."""
    return sys.modules["torch"]


def has_float_values(value: Any) -> bool:
    """Whether a value is a dense, non-empty tensor of floating-point or complex elements (not meta)."""
    torch = torch_module()
    if not isinstance(value, torch.Tensor) or value.is_meta or value.layout is not torch.strided:
        return False
    return bool((value.is_floating_point() or value.is_complex()) and value.numel())


def is_nonfinite(value: Any) -> bool:
    """Whether a tensor holds a NaN or an infinity."""
    if not has_float_values(value):
        return False
    torch = torch_module()
    value = value.detach()
    if not value.is_cpu and value.is_floating_point():
        # One kernel: if any element is not finite, neither is the sum. A sum may overflow: check again then.
        total = value.sum(dtype=torch.float32 if value.element_size() < 4 else value.dtype).item()
        if total - total == 0.0:
            return False
    return not bool(torch.isfinite(value).all())


def which_nonfinite(tensors: list[Any]) -> list[bool]:
    """`is_nonfinite` of each. Tensors on one device are read together, with a single wait for it."""
    torch = torch_module()
    found = [False] * len(tensors)
    late: dict[Any, list[tuple[int, Any]]] = {}
    for place, tensor in enumerate(tensors):
        if not has_float_values(tensor):
            continue
        if tensor.is_cpu:
            found[place] = is_nonfinite(tensor)
        else:
            finite = torch.isfinite(tensor.detach()).all()
            late.setdefault(tensor.device, []).append((place, finite))
    for flags in late.values():
        for (place, _), finite in zip(flags, torch.stack([flag for _, flag in flags]).tolist(), strict=True):
            found[place] = not finite
    return found


def local(tensor: Any) -> Any:
    """This rank's part of a sharded tensor; any other tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def counts(tensor: Any) -> tuple[int, int]:
    """Number of NaNs and of infinities."""
    torch = torch_module()
    return int(torch.isnan(tensor).sum()), int(torch.isinf(tensor).sum())


def statistics(tensor: Any) -> dict[str, Any]:
    """shape, dtype, nan, inf; and over the finite values: elements, min, max, mean, std, zeros, negatives."""
    torch = torch_module()
    tensor = tensor.detach()
    found: dict[str, Any] = {
        "shape": str(list(tensor.shape)),
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }
    if tensor.is_meta or tensor.layout is not torch.strided or not tensor.numel() or tensor.is_complex():
        return found
    if tensor.is_floating_point():
        found["nan"], found["inf"] = counts(tensor)
        tensor = tensor[torch.isfinite(tensor)] if found["nan"] or found["inf"] else tensor
    if not tensor.numel():
        return found
    exact = tensor.double()
    found["min"], found["max"] = float(exact.min()), float(exact.max())
    found["mean"] = float(exact.mean())
    found["std"] = float(exact.std(correction=0))
    found["elements"] = tensor.numel()
    found["zeros"], found["negatives"] = int((tensor == 0).sum()), int((tensor < 0).sum())
    return found


def tensors_in(value: Any, name: str = "", depth: int = DEEPEST) -> Iterator[tuple[str, Any]]:
    """Tensors in nested containers, each with its path of keys and indices."""
    torch = torch_module()
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and isinstance(value, dict):
        for key in dict.keys(value):
            yield from tensors_in(
                dict.__getitem__(value, key), f"{name}.{key}" if name else str(key), depth - 1
            )
    elif depth and isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            yield from tensors_in(item, f"{name}[{number}]", depth - 1)
    elif depth and hasattr(type(value), "__dataclass_fields__") and hasattr(value, "__dict__"):
        yield from tensors_in(dict(vars(value)), name, depth - 1)


def content_hash(tensors: list[tuple[str, Any]]) -> str:
    """BLAKE2b hash (16 bytes, hexadecimal) of names, dtypes, shapes and bytes, in order."""
    torch = torch_module()
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        if tensor.is_meta or tensor.layout is not torch.strided:
            continue
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        address, size = plain.data_ptr(), plain.numel() * plain.element_size()
        for start in range(0, size, _PIECE):
            found.update(ctypes.string_at(address + start, min(_PIECE, size - start)))
    return found.hexdigest()


def batch_summary(content: Any) -> dict[str, Any]:
    """`tensors` (name and statistics), `hash`, `bad` (any non-finite value), and `bad_positions`: the
    positions of the non-finite samples."""
    tensors = list(tensors_in(content))[:MOST_TENSORS]
    bad: set[int] = set()
    samples = next((len(tensor) for _, tensor in tensors if tensor.dim()), 0)
    for _, tensor in tensors:
        if is_nonfinite(tensor) and tensor.dim() and len(tensor) == samples:
            finite = torch_module().isfinite(tensor).reshape(samples, -1).all(dim=1)
            bad |= set((~finite).nonzero().flatten().tolist()[:MOST_POSITIONS])
    return {
        "tensors": [{"name": name or "batch", **statistics(tensor)} for name, tensor in tensors],
        "hash": content_hash(tensors),
        "bad_positions": sorted(bad)[:MOST_POSITIONS],
        "bad": any(is_nonfinite(tensor) for _, tensor in tensors),
    }
