"""Training under a probe that has a bug: the method of an instrument named by --break raises at every call.

Starts probe itself, after breaking it. Waits for a line on stdin after READY.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import probe
from ledger import READY_AFTER_STEPS, Ledger, options


def break_method(path: str) -> None:
    """`probe.job.instruments.loop.losses.Losses._begin` raises from now on."""
    module, owner, method = path.rsplit(".", 2)

    def broken(*_arguments: Any) -> None:
        raise ValueError(f"a bug in {method}\nof ours")

    setattr(getattr(importlib.import_module(module), owner), method, broken)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--break", dest="path", default="")
    arguments = parser.parse_args()
    if arguments.path:
        break_method(arguments.path)
        probe.start()
    ledger = Ledger(arguments)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader([torch.full((8,), float(number)).sin() for number in range(40)], batch_size=2)
    while ledger.running:
        for batch in loader:
            ledger.fetched("loader")
            optimizer.zero_grad()
            loss = model(batch).square().mean()
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
