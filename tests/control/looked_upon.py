"""A job's objects, as snippets name them; those that are not a library's say when they are touched."""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from probe.job.introspection.snippet_names import names_used

TOUCHED: list[str] = []
"""What of the job's own code has run."""


def _touching(name: str) -> Callable[..., Any]:
    def method(*_: object, **__: object) -> Any:
        TOUCHED.append(name)
        raise AssertionError(f"{name} was run")

    return method


ODD_METHODS = (
    "__getattr__", "__iter__", "__next__", "__eq__", "__hash__", "__bool__", "__len__", "__repr__", "__str__",
    "__format__", "__add__", "__radd__", "__getitem__", "__contains__", "__call__", "__enter__", "__exit__",
    "__index__", "__int__", "__float__", "__lt__", "__setattr__", "__instancecheck__", "__dir__",
    "__sizeof__",
    "__array__", "__fspath__", "__getattribute__",
)
Odd: type = type("Odd", (), {name: _touching(name) for name in ODD_METHODS})


_LOOKS = ("__getattribute__", "__eq__", "__hash__", "__instancecheck__", "__subclasscheck__", "__call__")
OddMeta: Any = type("OddMeta", (type,), {name: _touching(name) for name in _LOOKS})


class Described:
    """A descriptor that says when it is asked, and one that is stored in."""

    __get__ = _touching("Described.__get__")
    __set__ = _touching("Described.__set__")


@dataclass
class Settings:
    """Plain data."""

    width: int = 3


class Trainer:
    """What a script calls its trainer."""

    def __init__(self) -> None:
        self.current_step = 3
        self.grad_clip = None
        self.callbacks: list[Any] = []
        self.lr = 0.1

    @property
    def computed(self) -> int:
        """Whatever code."""
        TOUCHED.append("computed")
        return 1

    def validate(self) -> None:
        """Whatever code."""
        TOUCHED.append("validate")


def with_descriptors() -> Any:
    """An instance of a class with descriptors, slots and a class of its own kind."""
    return type("WithDescriptors", (), {"described": Described(), "__slots__": ("slot",)})()


class Computing(nn.Sequential):
    """A module with a property."""

    @property
    def computed(self) -> int:
        """Whatever code."""
        TOUCHED.append("Computing.computed")
        return 1


def train_step() -> None:
    """A function of the script."""
    TOUCHED.append("train_step")
    os.getpid()


def _bare(cls: type, **attributes: Any) -> Any:
    """An instance that was never initialised: that would need a process group."""
    made = cls.__new__(cls)
    nn.Module.__init__(made)
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def job() -> dict[str, Any]:
    """Names and objects of a job."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.zeros(3)
    model(torch.zeros(2, 3)).sum().backward()
    optimizer.step()
    parallel = _bare(DistributedDataParallel, module=nn.Linear(3, 3))
    return {
        "torch": torch, "dist": dist, "D": dist, "f": dist.all_reduce, "model": model, "optimizer": optimizer,
        "scheduler": StepLR(optimizer, 10), "trainer": Trainer(), "x": x, "input": x, "batch": x,
        "loss": model[0].weight.sum(), "train_loader": DataLoader(TensorDataset(x)), "train_step": train_step,
        "parallel": parallel,
        "compiled": torch.compile(Computing(nn.Linear(3, 3))), "settings": Settings(), "history": [1.0, 2.0],
        "iterator": iter([1, 2]), "odd": Odd(), "strange": type.__call__(OddMeta, "Strange", (), {}),
        "described": with_descriptors(), "lock": threading.Lock(), "stream": sys.__stdin__,
        "mode": "w", "text": "1",
        "buffer": bytearray(3), "table": {"step": optimizer.step}, "array": numpy.zeros(3), "sys": sys,
    }


def named(objects: dict[str, Any], code: str) -> tuple[ast.Module, dict[str, Any]]:
    """A snippet's tree, and what its names mean in a job where they are not the builtins."""
    tree = ast.parse(code)
    used = names_used(tree)
    return tree, {name: thing for name, thing in objects.items() if name in used}
