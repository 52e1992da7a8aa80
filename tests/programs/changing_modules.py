"""Training whose model changes: modules come, go, are replaced, renamed, shared; some live for one step.

After some steps with each change it says `AT`, the change and waits for a line on stdin; then it trains on.
`phases` are the steps after that and the names of the modules then; `alive` counts what should be gone.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable

import torch
from torch import nn

from ledger import Ledger, options

WIDTH = 8
STEPS = 12
"""Before and after each AT."""


class Chain(nn.Module):
    """Calls its children one after the other."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self._modules.values():
            assert module is not None
            x = module(x)
        return x


def layer() -> nn.Linear:
    """Any of them."""
    return nn.Linear(WIDTH, WIDTH)


def added(model: Chain) -> None:
    """One more."""
    model.add_module("second", layer())


def replaced(model: Chain) -> None:
    """Another one in its place."""
    model.second = nn.Sequential(layer(), nn.Tanh())


def renamed(model: Chain) -> None:
    """The same one under another name."""
    model.renamed = model.second
    del model.second


def shared(model: Chain) -> None:
    """One under two names goes by the first."""
    model.twin = model.first


def swapped(model: Chain) -> None:
    """Two exchange their names."""
    model.first, model.renamed = model.renamed, model.first


def removed(model: Chain) -> None:
    """Gone."""
    del model.twin
    del model.renamed


CHANGES: tuple[Callable[[Chain], None], ...] = (added, replaced, renamed, shared, swapped, removed)


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    model = Chain()
    model.first = layer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.ones(2, WIDTH)
    gone: list[weakref.ref[nn.Module]] = []

    def train(passing: bool) -> None:
        for _ in range(STEPS):
            once = layer() if passing else nn.Identity()  # used for one step and never again
            gone.append(weakref.ref(once))
            optimizer.zero_grad()
            outputs = model(inputs)
            loss = (once(outputs) if passing else outputs).square().mean()
            loss.backward()
            ledger.loss(loss)
            optimizer.step()
            ledger.step()

    phases = {}
    for change in CHANGES:
        before = set(model.modules())
        change(model)
        gone += [weakref.ref(module) for module in before - set(model.modules())]
        before.clear()
        passing = change is replaced
        train(passing)
        print(f"AT {change.__name__}", flush=True)
        sys.stdin.readline()
        names = sorted(name or "Chain" for name, _ in model.named_modules())
        phases[change.__name__] = [ledger.steps, ledger.steps + STEPS, names + ["Linear"] * passing]
        train(passing)
    gc.collect()
    ledger.extra = {"phases": phases, "alive": sum(reference() is not None for reference in gone)}
    ledger.finish(model)


if __name__ == "__main__":
    main()
