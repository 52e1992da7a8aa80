"""Trainings one after the other, each with its names somewhere else: in main, a thread, a closure, a drawer.

Halts within a step of each: says `AT` and the situation, and goes on at a line on stdin. `seen` says what
the program saw of having been looked at.
"""

from __future__ import annotations

import gc
import sys
import threading
import timeit
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ledger import Ledger, options

at_module_level = "at module level"
where = "the module"
SEEN: dict[str, Any] = {}


def halt(situation: str) -> None:
    """Wait here to be looked at."""
    print(f"AT {situation}", flush=True)
    sys.stdin.readline()


def three(width: int) -> Iterator[torch.Tensor]:
    """Three batches."""
    yield from (torch.ones(2, width) for _ in range(3))


def train(net: nn.Module, sgd: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    """One step on parameters of any name."""
    sgd.zero_grad()
    net(batch).square().mean().backward()
    sgd.step()


def local_to_a_function() -> None:
    """As most scripts have them."""
    where = "the function"
    model = nn.Linear(11, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.11)
    train_loader = DataLoader([torch.ones(11)] * 3)
    input = torch.zeros(1, 2, 3)
    for batch in train_loader:
        train(model, optimizer, batch)
    halt("local to a function")
    del where, input


def in_a_thread() -> None:
    """Another thread trains; this one has a model of its own and waits."""
    model = "this thread only waits"

    def run() -> None:
        model = nn.Linear(22, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.22)
        for batch in three(22):
            train(model, optimizer, batch)
        halt("in a thread")

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert model


def below_a_library() -> None:
    """Somebody else's code calls back: its frames lie between the step and the names."""
    model = nn.Linear(33, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.33)
    batches = three(33)

    def call_back() -> None:
        where = "the callback"
        train(*nets, next(batches))
        halt(f"below a library, {where}")

    nets = (model, optimizer)
    timeit.Timer(call_back).timeit(number=1)


def in_a_drawer() -> None:
    """No variable has the names that people ask for."""
    drawer: list[Any] = [nn.Sequential(nn.Linear(44, 1))]
    drawer.append(torch.optim.SGD(drawer[0].parameters(), lr=0.44))
    drawer.append(DataLoader([torch.ones(44)] * 3))
    for batch in drawer[2]:
        train(drawer[0], drawer[1], batch)
    halt("in a drawer")


def dropped_after_a_look() -> None:
    """What a function drops after somebody looked at it must be gone."""
    model = nn.Linear(55, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.55)
    for batch in three(55):
        train(model, optimizer, batch)
    references = [weakref.ref(one) for one in (batch, model, optimizer)]
    halt("dropped after a look")
    del batch, model, optimizer
    gc.collect()
    SEEN["alive after a look"] = [type(reference()).__name__ for reference in references if reference()]


def with_saved_variables() -> None:
    """A dictionary of the variables at one moment, and names that exec made, are the function's own."""
    rate, model = 0.66, nn.Linear(66, 1)
    saved = locals()
    exec("made_by_exec = 66")
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for batch in three(66):
        train(model, optimizer, batch)
    halt("with saved variables")
    SEEN["saved"] = sorted(saved)
    exec("SEEN['made by exec'] = made_by_exec")


SITUATIONS: tuple[Callable[[], None], ...] = (
    local_to_a_function, in_a_thread, below_a_library, in_a_drawer, dropped_after_a_look,
    with_saved_variables,
)


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    where = "main"
    for situation in SITUATIONS:
        situation()
    ledger.extra = {"seen": SEEN}
    ledger.finish()
    assert where


if __name__ == "__main__":
    main()
