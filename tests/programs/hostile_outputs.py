"""Modules and loaders that hand around the strangest objects: none of them may matter to who looks on.

After READY it waits for a line on stdin, so that module names can be known when it goes on.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ledger import READY_AFTER_STEPS, Ledger, options

WIDTH = 8


class Dotted(dict[str, Any]):
    """A dictionary with dots, as many projects write it: a missing attribute is a KeyError."""

    __getattr__ = dict.__getitem__


class Untouchable:
    """Nobody may look at any attribute."""

    def __init__(self, inside: torch.Tensor) -> None:
        object.__setattr__(self, "inside", inside)

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"{name} is nobody's business")

    def __len__(self) -> int:
        raise RuntimeError("nor is the length")


class Liar(list[Any]):
    """Says it is empty, or nothing at all."""

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("not to be gone through")

    def __getitem__(self, _index: Any) -> Any:
        raise RuntimeError("not to be opened")


class Marked(torch.Tensor):
    """A tensor of the user's own class."""


Pair = collections.namedtuple("Pair", "first second")


def deep(x: torch.Tensor) -> list[Any]:
    """A thousand lists in each other."""
    found: list[Any] = [x]
    for _ in range(1000):
        found = [found]
    return found


def looped(x: torch.Tensor) -> dict[str, Any]:
    """A dictionary that contains itself first."""
    found: dict[str, Any] = {}
    found["self"] = found
    found["x"] = x
    return found


SHAPES = {
    "dotted": lambda x: Dotted(x=x),
    "untouchable": Untouchable,
    "liar": lambda x: Liar([x]),
    "deep": deep,
    "looped": looped,
    "marked": lambda x: x.as_subclass(Marked),
    "pair": lambda x: Pair(x, None),
    "many": lambda x: dict.fromkeys(range(10000), x),
    "generator": lambda x: (part for part in [x]),
    "sparse": lambda x: x.to_sparse(),
    "complex": lambda x: torch.complex(x, x),
    "nothing": lambda x: None,
    "class": lambda x: Untouchable,
    "bytes": lambda x: b"\xff\x00",
    "scalar": lambda x: x.sum(),
    "empty": lambda x: x[:0],
    "ellipsis": lambda x: ...,
}


class Stranger(nn.Module):
    """Returns something made of its input."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> Any:
        return SHAPES[self.kind](x)


class Model(nn.Module):
    """Calls every stranger and goes on without what it returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.strangers = nn.ModuleList(Stranger(kind) for kind in SHAPES)
        self.add_module("odd \ud800\0'\"\nname" + "x" * 3000, nn.Identity())
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer(x)
        for stranger in self.strangers:
            stranger(x)
        for name, module in self.named_children():
            if name.startswith("odd"):
                x = module(x)
        return self.head(x)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--loader", action="store_true", help="batches are as odd as outputs")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kinds = list(SHAPES)

    def collate(kind: list[str]) -> Any:
        batch = torch.ones(2, WIDTH)
        return SHAPES[kind[0]](batch) if arguments.loader else batch

    loader = DataLoader(kinds, batch_size=1, collate_fn=collate)
    while ledger.running:
        for _batch in loader:
            ledger.fetched("loader")
            optimizer.zero_grad()
            loss = model(torch.ones(2, WIDTH)).square().mean()
            loss.backward()
            ledger.loss(loss)
            optimizer.step()
            ledger.step()
            if ledger.steps == READY_AFTER_STEPS:
                sys.stdin.readline()
            if not ledger.running:
                break
    ledger.finish(model)


if __name__ == "__main__":
    main()
