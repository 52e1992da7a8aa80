"""Ranks started by torch.multiprocessing.spawn from one script: multiprocessing children that train.

The parent only waits; with --worker it first reads a DataLoader with a spawned worker, which `batch_workers`
says of each batch. `rank_pids` says which processes trained.
"""

from __future__ import annotations

import os
from typing import Any

import torch.multiprocessing
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ledger import Ledger, options


class Workers(Dataset[int]):
    """Of each sample the number of the worker that made it; -1: the process that trains."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        info = get_worker_info()
        return -1 if info is None else info.id


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
    parser = options(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--worker", action="store_true")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    if arguments.worker:
        loader = DataLoader(Workers(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
        ledger.extra["batch_workers"] = [int(batch[0]) for batch in loader]
    pids = torch.multiprocessing.get_context("spawn").SimpleQueue()
    torch.multiprocessing.spawn(train, args=(arguments.steps, pids), nprocs=arguments.ranks)
    ledger.extra["rank_pids"] = sorted(pids.get() for _ in range(arguments.ranks))
    ledger.finish()


if __name__ == "__main__":
    main()
