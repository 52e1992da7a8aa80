"""Ranks started by torch.multiprocessing.spawn from one script: multiprocessing children that train.

The parent only waits. `rank_pids` says which processes trained.
"""

from __future__ import annotations

import os
from typing import Any

import torch.multiprocessing
from torch import nn

from ledger import Ledger, options

RANKS = 2


def train(rank: int, steps: int, pids: Any) -> None:
    """One rank's whole training."""
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
    pids.put(os.getpid())


def main() -> None:
    arguments = options(__doc__).parse_args()
    ledger = Ledger(arguments)
    pids = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(train, args=(arguments.steps, pids), nprocs=RANKS)
    ledger.extra = {"rank_pids": sorted(pids.get() for _ in range(RANKS))}
    ledger.finish()


if __name__ == "__main__":
    main()
