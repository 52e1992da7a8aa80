"""Trains on rows of which some are NaN, `--kind`: `guarded`, a batch whose loss is not finite is left out
without a word; `summed`, the losses of two batches are added up before each backward, which drops nothing.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from ledger import Ledger, options

ROWS, BATCH, EVERY = 1600, 8, 25


def wait_until_looked() -> None:
    """The agent's thread looks at a dropped batch in its rounds."""
    lifecycle: Any = sys.modules.get("probe.job.agent.lifecycle")
    agent = lifecycle.agent_here() if lifecycle is not None else None
    if agent is None:
        return
    deadline = time.monotonic() + 30
    while agent.instruments.dropped_batches.looked == 0 and time.monotonic() < deadline:
        time.sleep(0.01)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--kind", choices=["guarded", "summed"], default="guarded")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    rows = torch.randn(ROWS, 4)
    if arguments.kind == "guarded":
        rows[::EVERY, 2] = float("nan")
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = iter(DataLoader(TensorDataset(rows, rows[:, :1]), batch_size=BATCH, shuffle=True))
    dropped = 0
    while ledger.running:
        loss = mse_loss(model((batch := next(batches))[0]), batch[1])
        ledger.fetched("train")
        if arguments.kind == "summed":
            loss = loss + mse_loss(model((batch := next(batches))[0]), batch[1])
            ledger.fetched("train")
        elif not torch.isfinite(loss):
            dropped += 1
            continue
        optimizer.zero_grad()
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        ledger.step()
    if dropped:
        wait_until_looked()
    ledger.extra["dropped"] = dropped
    ledger.finish(model)


if __name__ == "__main__":
    main()
