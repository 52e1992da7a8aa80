"""Checkpoint files: content, hash, reading.

A file is one dictionary of plain data written by `torch.save`; `torch.load(path, weights_only=True)` opens
it without probe:

    {"model": state_dict, "optimizer": state_dict, …, "step": int | None, "epoch": int | None, "probe": {…}}

docs/checkpoint.md describes it. `content_sha256` covers everything except itself. Runs on the calling
thread; standard library only, torch inside functions.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import struct
from collections.abc import Mapping
from typing import Any

from probe.base.errors import CheckpointInvalid

VERSION = 1
RESERVED = ("step", "epoch", "probe", "rng", "strict")
"""Names not available to models and optimizers: our keys, and arguments of `load_checkpoint`."""


def torch_module() -> Any:
    """torch, imported on use."""
    import torch

    return torch


def content_sha256(content: Mapping[str, Any]) -> str:
    """sha256 of everything in a checkpoint except this hash: types, names, numbers, bits of tensors."""
    found = hashlib.sha256()
    own = content.get("probe")
    if isinstance(own, dict):
        content = {**content, "probe": {key: own[key] for key in own if key != "content_sha256"}}
    _feed(found, content)
    return found.hexdigest()


def _feed(found: Any, value: Any) -> None:
    """Hash one value: a letter for its type, its length, its content."""
    torch = torch_module()

    if isinstance(value, torch.Tensor):
        _feed_tensor(found, value)
    elif isinstance(value, dict):
        found.update(b"D%d;" % len(value))
        for key, item in value.items():
            _feed(found, key)
            _feed(found, item)
    elif isinstance(value, (list, tuple)):
        found.update(b"%s%d;" % (b"L" if isinstance(value, list) else b"T", len(value)))
        for item in value:
            _feed(found, item)
    elif isinstance(value, float):
        found.update(b"F" + struct.pack("<d", value))
    elif isinstance(value, complex):
        found.update(b"C" + struct.pack("<dd", value.real, value.imag))
    elif isinstance(value, bytes):
        found.update(b"Y%d;" % len(value) + value)
    else:  # None, bool, int, str, and torch's dtypes and devices
        text = f"{type(value).__name__}:{value}".encode("utf-8", "surrogatepass")
        found.update(b"S%d;" % len(text) + text)


def _feed_tensor(found: Any, tensor: Any) -> None:
    torch = torch_module()

    if tensor.layout != torch.strided:
        text = f"{tensor.layout}{list(tensor.shape)}".encode()
        found.update(b"P%d;" % len(text) + text)
        for part in sparse_parts(tensor):
            _feed_tensor(found, part)
        return
    text = f"{tensor.dtype}{list(tensor.shape)}".encode()
    found.update(b"A%d;" % len(text) + text)
    kept = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if kept.numel():  # by address: numpy may be missing
        found.update((ctypes.c_char * (kept.numel() * kept.element_size())).from_address(kept.data_ptr()))


def sparse_parts(tensor: Any) -> tuple[Any, ...]:
    """The dense tensors of a sparse one."""
    torch = torch_module()

    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def read_checkpoint(path: str) -> dict[str, Any]:
    """The content of a checkpoint on the CPU, verified by its hash. Raises `CheckpointInvalid`."""
    content: dict[str, Any] = _opened(path)
    own = content.get("probe") if isinstance(content, dict) else None
    if not isinstance(own, dict) or "content_sha256" not in own:
        raise CheckpointInvalid(
            f"{path} is not a checkpoint of probe", hint="Load it with torch.load, as it was saved."
        )
    if own.get("version") != VERSION:
        raise CheckpointInvalid(
            f"{path} has version {own.get('version')}; this probe reads version {VERSION}",
            hint="Load it with the version of probe that wrote it, or with torch.load.",
        )
    if content_sha256(content) != own["content_sha256"]:
        raise CheckpointInvalid(
            f"{path} is damaged: its content does not match its hash",
            hint="Use an earlier checkpoint, or copy this one again from its origin.",
        )
    return content


def _opened(path: str) -> Any:
    import pickle
    import zipfile

    torch = torch_module()

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointInvalid(
            f"{path} cannot be opened: {error.strerror or error}",
            hint=f"Relative paths are relative to {os.getcwd()}.",
        ) from error
    except (
        RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError, zipfile.BadZipFile
    ) as error:
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise CheckpointInvalid(
            f"{path} is not a checkpoint, or is damaged: {reason}", hint="Use an earlier checkpoint."
        ) from error
