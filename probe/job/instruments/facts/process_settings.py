"""Process settings that affect the duration of a step.

These are environment, threads and CPUs, switches of torch's backends, active profilers and tracers, settings
of DistributedDataParallel. `run_facts` writes them, on the agent's thread: reads variables of libraries and
small kernel files, and calls no code of the job.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from probe.base import descriptors
from probe.job.instruments.core import thread_tools
from probe.job.instruments.core.object_access import attributes
from probe.job.instruments.facts.hyperparameters import Value

_NAMES = frozenset({
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "CUDA_LAUNCH_BLOCKING",
    "PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "CUDA_DEVICE_ORDER", "LD_PRELOAD", "MALLOC_ARENA_MAX",
    "LOCAL_WORLD_SIZE", "PYTHONMALLOC", "PYTHONDEVMODE", "OMP_PROC_BIND", "OMP_PLACES",
})
_STARTS = (
    "NCCL_", "TORCH_", "TORCHDYNAMO_", "TORCHINDUCTOR_", "PYTORCH_", "GLOO_", "KMP_", "MKL_", "UCX_", "FI_",
)
_DDP = "DistributedDataParallel"
_OF_DDP = {
    "bucket_bytes_cap": "bucket_bytes", "find_unused_parameters": "find_unused_parameters",
    "static_graph": "static_graph", "broadcast_buffers": "broadcast_buffers",
}
_MOST_WRAPPED = 4
_CGROUPS = Path("/sys/fs/cgroup")


def environment() -> Iterator[tuple[str, Value]]:
    """Environment variables, threads, CPUs and switches."""
    torch: Any = sys.modules["torch"]
    for name, value in sorted(os.environ.copy().items()):
        if name in _NAMES or name.startswith(_STARTS):
            yield name, value
    yield "torch.num_threads", int(torch.get_num_threads())
    yield "torch.float32_matmul_precision", str(torch.get_float32_matmul_precision())
    yield "torch.deterministic", bool(torch.are_deterministic_algorithms_enabled())
    yield "torch.cudnn.enabled", bool(torch.backends.cudnn.enabled)
    yield "torch.cudnn.benchmark", bool(torch.backends.cudnn.benchmark)
    if torch.backends.mkldnn.is_available():
        yield "torch.mkldnn.enabled", bool(torch._C._get_mkldnn_enabled())
    yield "open_files_limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    yield "cpus_online", os.cpu_count() or 0
    quota = cpu_quota()
    if quota is not None:
        yield "cpu_quota", quota


def watching(tools: thread_tools.Tools | None) -> Iterator[tuple[str, Value]]:
    """Tools that currently observe each operation, allocation, call or line. `tools`: those of the training
    thread; None if unknown."""
    torch: Any = sys.modules["torch"]
    running = getattr(torch.autograd.profiler, "_is_profiler_enabled", None)
    if type(running) is bool:  # not available before torch 2.1
        yield "torch.profiler", running
    allocations = sys.modules.get("tracemalloc")
    yield "python.tracemalloc", allocations is not None and bool(allocations.is_tracing())
    if tools is not None:
        profile = tools.profile
        yield "python.profile", thread_tools.monitoring() if profile is None else thread_tools.shown(profile)
        yield "python.trace", thread_tools.shown(tools.trace)


def replicated(models: Iterable[Any]) -> Iterator[tuple[str, Value]]:
    """Settings of the DistributedDataParallel wrappers among the models, in their order."""
    wrapped = [model for model in models if type(model).__name__ == _DDP][:_MOST_WRAPPED]
    for number, model in enumerate(wrapped, 1):
        prefix = "ddp" if number == 1 else f"ddp{number}"
        found = attributes(model)
        for name, shown in _OF_DDP.items():
            value = found.get(name)
            if isinstance(value, int):
                yield f"{prefix}.{shown}", value


def cpu_quota(root: Path = _CGROUPS) -> float | None:
    """CPUs that this process's control groups (v2) may use: the smallest limit of its group and those above;
    None without a limit. `root` stands in for the file system of control groups in tests."""
    try:
        own = descriptors.read_text("/proc/self/cgroup")
    except OSError:
        return None
    path = next((line[3:] for line in own.splitlines() if line.startswith("0::")), "/")
    folder = root / path.lstrip("/")
    if not folder.is_dir():  # a path in another namespace: the top is our own group
        folder = root
    found: list[float] = []
    while True:
        try:
            most, period = descriptors.read_text(folder / "cpu.max").split()
            found += [] if most == "max" else [int(most) / int(period)]
        except (OSError, ValueError, ZeroDivisionError):
            pass
        if folder in (root, folder.parent):
            return min(found, default=None)
        folder = folder.parent
