"""A DataLoader whose only worker stops giving batches, in the way asked for, at the sample asked for.

The worker says `HANGING PID` on stdout first. `fifo`: it opens a pipe nobody writes to, as on storage that
does not answer. `lock`: it takes a lock twice. `stopped`: it stops itself. `slow`: it computes for ever.
With no workers the training process does it itself. (A worker that dies is no hang: torch raises at once.)
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from ledger import Ledger, options

LAST = 12


class Samples(Dataset[torch.Tensor]):
    """Samples; that numbered LAST never comes."""

    def __init__(self, way: str, folder: str) -> None:
        self.way = way
        self.folder = folder

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= LAST:
            os.write(1, f"HANGING {os.getpid()}\n".encode())
            self.hang()
        return torch.full((16,), float(index)).sin()

    def hang(self) -> None:
        """Do not come back."""
        if self.way == "fifo":
            path = Path(self.folder) / "storage"
            os.mkfifo(path)
            path.read_bytes()
        if self.way == "lock":
            lock = threading.Lock()
            lock.acquire()
            lock.acquire()
        if self.way == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        while True:
            torch.randn(8).sum()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--way", choices=("fifo", "lock", "stopped", "slow"), required=True)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with tempfile.TemporaryDirectory() as folder:
        loader = DataLoader(
            Samples(arguments.way, folder), num_workers=arguments.workers,
            multiprocessing_context="fork" if arguments.workers else None,
        )
        for x in loader:
            ledger.fetched("loader")
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
            loss.backward()
            ledger.loss(loss)
            optimizer.step()
            ledger.step()


if __name__ == "__main__":
    main()
