"""Calls everything that probe wraps, each of which warns at four stack levels, under several filters.

What is wrapped is replaced first by a function that warns, so that with `--probe` it is that function which
probe wraps. stderr must be the same with and without; `wrapped` says what probe has in place, `called` what
was called.
"""

from __future__ import annotations

import faulthandler
import gc
import io
import os
import random
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo import eval_frame
from torch.nn.utils import clip_grad
from torch.optim import lr_scheduler
from torch.utils.data import dataloader

import probe
from ledger import Ledger, options

LEVELS = (1, 2, 3, 4)
FILTERS: tuple[Callable[[], object], ...] = (
    lambda: warnings.simplefilter("default"),
    lambda: warnings.simplefilter("always"),
    lambda: warnings.simplefilter("error"),
    lambda: warnings.filterwarnings("error", module="__main__"),
    lambda: warnings.filterwarnings("ignore", module="elsewhere"),
    lambda: warnings.filterwarnings("always", module=r"probe\."),
    lambda: warnings.simplefilter("module"),
)
COLLECTIVES = dist.ProcessGroup
armed = [0]
"""The level at which the next call warns; 0: none."""
called: set[str] = set()


def warn_from(owner: Any, name: str, *, goes_on: bool = True) -> None:
    """Let `owner.name` warn before it does what it does; without `goes_on` it does nothing else."""
    original = getattr(owner, name)
    label = f"{getattr(owner, '__name__', owner)}.{name}"

    def warning(*args: Any, **kwargs: Any) -> Any:
        called.add(label)
        if armed[0]:
            warnings.warn(f"{label} at {armed[0]}", UserWarning, stacklevel=armed[0])
        return original(*args, **kwargs) if goes_on else None

    there = {"__name__": "elsewhere", "called": called, "armed": armed, "warnings": warnings}
    code = warning.__code__.replace(co_name=name)
    setattr(owner, name, types.FunctionType(code, {**globals(), **there}, name, None, warning.__closure__))


def places() -> Iterator[tuple[Any, str, bool]]:
    """(owner, name, whether it goes on) of everything that probe wraps."""
    for kind in (
        torch.optim.Optimizer, lr_scheduler.LRScheduler, lr_scheduler.SequentialLR,
        lr_scheduler.ChainedScheduler, lr_scheduler.ReduceLROnPlateau, torch.amp.GradScaler,
    ):
        yield kind, "__init__", True
    yield torch.amp.GradScaler, "step", True
    yield torch.amp.GradScaler, "scale", True
    yield torch.autograd, "backward", True
    yield nn.Module, "zero_grad", True
    yield nn.Module, "eval", True
    yield lr_scheduler.ReduceLROnPlateau, "step", False
    for owner, name in (
        (torch, "manual_seed"), (torch.random, "manual_seed"), (random, "seed"), (numpy.random, "seed"),
    ):
        yield owner, name, False
    yield torch, "save", True
    yield torch.serialization, "save", True
    yield torch, "load", False
    yield torch.serialization, "load", False
    yield numpy, "load", False
    yield nn.Module, "load_state_dict", False
    yield torch.optim.Optimizer, "load_state_dict", False
    for kind in schedules_that_load():
        yield kind, "load_state_dict", False
    yield dataloader.DataLoader, "__iter__", True
    yield dataloader._BaseDataLoaderIter, "__next__", True
    yield dataloader._BaseDataLoaderIter, "_next_index", True
    for owner, names in (
        (clip_grad, ("_get_total_norm", "_clip_grads_with_norm_")),
        (nn.utils, ("get_total_norm", "clip_grads_with_norm_")),
    ):
        for name in names:
            if hasattr(owner, name):
                yield owner, name, True
    for name in ("enable", "is_enabled", "disable"):
        yield faulthandler, name, True
    yield threading, "excepthook", False
    yield os, "_exit", False
    yield torch, "compile", False
    yield eval_frame.OptimizedModule, "__call__", False
    yield dist.Work, "wait", False
    for name in collectives():
        yield COLLECTIVES, name, False
    for name in ("capture_begin", "capture_end"):
        yield torch.cuda.graphs.CUDAGraph, name, False
    for name in ("wandb", "mlflow"):
        module: Any = types.ModuleType(name)
        sys.modules[name] = module
        for function in {"wandb": ["log"], "mlflow": ["log_metric", "log_metrics"]}[name]:
            setattr(module, function, lambda *_: None)
            yield module, function, False


def schedules_that_load() -> list[Any]:
    kinds = [kind for kind in vars(lr_scheduler).values() if isinstance(kind, type)]
    return [
        kind for kind in kinds if kind.__module__ == lr_scheduler.__name__ and "load_state_dict" in vars(kind)
    ]


def collectives() -> list[str]:
    from probe.job.instruments.comm.collectives import OPS

    return [name for name in (*OPS, "_start_coalescing", "_end_coalescing") if name in vars(COLLECTIVES)]


class Calls:
    """Everything that the calls need, made before anything warns."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.schedule = lr_scheduler.ConstantLR(self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
        self.loader = dataloader.DataLoader([torch.ones(2)] * 400)
        self.batches = iter(self.loader)
        self.compiled = torch.compile(self.model, backend="eager")
        self.group = dist.group.WORLD
        self.work = dist.all_reduce(torch.ones(1), async_op=True)
        self.work.wait()
        sum(parameter.sum() for parameter in self.model.parameters()).backward()

    def all(self) -> Iterator[Callable[[], object]]:
        """One call each; what a warning that is an error leaves half done is done again by the next."""
        made = lr_scheduler
        optimizer, parameters = self.optimizer, list(self.model.parameters())
        loss = self.model(next(self.batches)).sum()
        yield lambda: torch.optim.Optimizer(parameters, {})
        yield lambda: made.ConstantLR(optimizer)
        yield lambda: made.SequentialLR(optimizer, [made.ConstantLR(optimizer)], [])
        yield lambda: made.ChainedScheduler([made.ConstantLR(optimizer)])
        yield lambda: made.ReduceLROnPlateau(optimizer)
        yield lambda: torch.amp.GradScaler("cpu")
        yield lambda: self.scaler.scale(loss)
        yield lambda: self.scaler.step(optimizer)
        yield lambda: self.scaler.update()
        yield lambda: torch.autograd.backward([loss], retain_graph=True)
        yield lambda: loss.backward(retain_graph=True)
        yield lambda: iter(self.loader)
        yield lambda: next(self.batches)
        yield lambda: nn.utils.clip_grad_norm_(parameters, 1.0)
        yield lambda: nn.utils.get_total_norm([one.grad for one in parameters])
        yield lambda: nn.utils.clip_grads_with_norm_(parameters, 1.0, torch.ones(()))
        yield lambda: self.model.zero_grad(set_to_none=False)
        yield lambda: self.model.eval()
        yield lambda: lr_scheduler.ReduceLROnPlateau.step(self.schedule, 1.0)
        yield lambda: torch.manual_seed(0)
        yield lambda: torch.random.manual_seed(0)
        yield lambda: random.seed(0)
        yield lambda: numpy.random.seed(0)
        yield lambda: torch.save(torch.ones(1), io.BytesIO())
        yield lambda: torch.serialization.save(torch.ones(1), io.BytesIO())
        yield lambda: torch.load(io.BytesIO())
        yield lambda: torch.serialization.load(io.BytesIO())
        yield lambda: numpy.load(io.BytesIO())
        yield lambda: self.model.load_state_dict({})
        yield lambda: torch.optim.Optimizer.load_state_dict(optimizer, {})
        for kind in schedules_that_load():
            yield lambda kind=kind: kind.load_state_dict(self.schedule, {})
        yield lambda: faulthandler.enable()
        yield lambda: faulthandler.is_enabled()
        yield lambda: faulthandler.disable()
        yield in_a_thread
        yield lambda: os._exit(0)
        yield lambda: self.compiled(torch.ones(1, 2))
        yield lambda: torch.compile(self.model)
        yield lambda: self.work.wait()
        for name in collectives():
            yield lambda name=name: getattr(self.group, name)([torch.ones(1)])
        for name in ("capture_begin", "capture_end"):
            yield lambda name=name: getattr(torch.cuda.graphs.CUDAGraph, name)(None)
        tools: Any = sys.modules
        yield lambda: tools["wandb"].log({"loss": 1.0})
        yield lambda: tools["mlflow"].log_metric("loss", 1.0)
        yield lambda: tools["mlflow"].log_metrics({"loss": 1.0})


def in_a_thread() -> None:
    thread = threading.Thread(target=lambda: 1 / 0, name="fails")
    thread.start()
    thread.join()


def through_two(call: Callable[[], object]) -> None:
    through_one(call)


def through_one(call: Callable[[], object]) -> None:
    call()


def wrapped() -> list[str]:
    """What probe has wrappers in place of."""
    from probe.job.instruments.core.patch import Patches

    return sorted({
        f"{getattr(owner, '__name__', owner)}.{name}"
        for one in gc.get_objects() if type(one) is Patches
        for owner, name, *_ in one._made
    })


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--probe", action="store_true")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    calls = Calls()
    faulthandler.enable()
    for owner, name, goes_on in list(places()):
        warn_from(owner, name, goes_on=goes_on)
    if arguments.probe:
        probe.start()
    for number, chosen in enumerate(FILTERS):
        for level in LEVELS:
            warnings.resetwarnings()
            chosen()
            for _ in range(2):  # the second time from the same place
                for call in calls.all():
                    armed[0] = level
                    try:
                        through_two(call)
                    except (Warning, RuntimeError, AssertionError) as error:
                        print(f"{number}: raised {type(error).__name__} {error}", file=sys.stderr)
                    finally:
                        armed[0] = 0
    warnings.simplefilter("ignore")
    ledger.extra = {"called": sorted(called), "wrapped": wrapped()}
    if arguments.probe:
        probe.stop()
    dist.destroy_process_group()
    ledger.finish(calls.model)


if __name__ == "__main__":
    main()
