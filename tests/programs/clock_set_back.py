"""Training in the middle of which the wall clock is set back an hour, and later ahead by a day."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from ledger import Ledger, options

HOUR_S = 3600


def set_clock(seconds: int) -> None:
    """Move what every function of `time` says about the wall clock."""
    time.time = moved(time.time, seconds)  # type: ignore[assignment]
    time.time_ns = moved(time.time_ns, seconds * 10**9)  # type: ignore[assignment]


def moved(clock: Any, by: int) -> Any:
    """That clock, moved."""
    return lambda: clock() + by


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while ledger.running:
        for batch in DataLoader(torch.ones(8, 4), batch_size=2):
            ledger.fetched("loader")
            optimizer.zero_grad()
            loss = model(batch).square().mean()
            loss.backward()
            ledger.loss(loss)
            optimizer.step()
            ledger.step()
        if ledger.steps in (20, 40):
            set_clock(-HOUR_S if ledger.steps == 20 else 24 * HOUR_S)
            print(f"CLOCK {ledger.steps}", flush=True)
            sys.stdin.readline()
    ledger.finish(model)


if __name__ == "__main__":
    main()
