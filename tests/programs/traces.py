"""What an observer may leave in a process: threads, descriptors, hooks, functions in place of torch's."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.data import dataloader

TABLES = {
    "forward pre-hooks": modules._global_forward_pre_hooks,
    "forward hooks": modules._global_forward_hooks,
    "always called": modules._global_forward_hooks_always_called,
    "with keywords": modules._global_forward_hooks_with_kwargs,
    "pre-hooks with keywords": getattr(modules, "_global_forward_pre_hooks_with_kwargs", {}),
    "backward hooks": modules._global_backward_hooks,
    "backward pre-hooks": modules._global_backward_pre_hooks,
    "module registrations": modules._global_module_registration_hooks,
    "optimizer pre-hooks": optimizers._global_optimizer_pre_hooks,
    "optimizer post-hooks": optimizers._global_optimizer_post_hooks,
}
"""torch's tables of hooks that see every module and every optimizer."""


def functions() -> dict[str, Any]:
    """The functions of torch that an observer might replace, as they are now."""
    owners: dict[str, Any] = {
        "torch": torch, "torch.autograd": torch.autograd, "Tensor": torch.Tensor,
        "Module": torch.nn.Module, "Optimizer": optimizers.Optimizer, "SGD": torch.optim.SGD,
        "GradScaler": torch.amp.GradScaler, "CudaGradScaler": torch.cuda.amp.GradScaler,
        "DataLoader": dataloader.DataLoader, "iterator": dataloader._BaseDataLoaderIter,
        "single": dataloader._SingleProcessDataLoaderIter,
        "several": dataloader._MultiProcessingDataLoaderIter,
        "sys": sys, "threading": threading, "os": os,
    }
    return {
        f"{name}.{attribute}": value
        for name, owner in owners.items()
        for attribute, value in vars(owner).items()
        if callable(value) and not isinstance(value, type)
    }


def replaced(before: dict[str, Any]) -> list[str]:
    """Names of those functions that are not what they were."""
    now = functions()
    return sorted(name for name in before.keys() | now.keys() if before.get(name) is not now.get(name))


def traces() -> dict[str, Any]:
    """Everything that can be counted."""
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "tasks": len(os.listdir("/proc/self/task")),
        "descriptors": descriptors(),
        "hooks": sorted(name for name, table in TABLES.items() if table),
        "finders": [type(finder).__name__ for finder in sys.meta_path if not isinstance(finder, type)],
        "trace": [sys.gettrace() is None, sys.getprofile() is None],
        "handlers": {str(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
    }


def descriptors() -> list[str]:
    """What the open descriptors lead to, without the numbers that differ each time."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            found.append(re.sub(r":\[\d+\]|(?<=/stderr)-.*", "", os.readlink(link)))
        except FileNotFoundError:  # the one that lists them
            continue
    return sorted(name for name in found if "/proc/" not in name)
