"""Trains from a DataLoader whose forked workers hang in their dataset: as one does on a dead file system."""

from __future__ import annotations

import os
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Hangs(Dataset[torch.Tensor]):
    """Item 0 of each worker comes, no other does."""

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= 2:
            os.write(1, f"STUCK {os.getpid()}\n".encode())  # at once: both workers write
            self.reads_from_a_dead_disk()
        return torch.zeros(2)

    def reads_from_a_dead_disk(self) -> None:
        time.sleep(600)


def train() -> None:
    for batch in DataLoader(Hangs(), batch_size=1, num_workers=2, multiprocessing_context="fork"):
        assert batch.shape == (1, 2)


if __name__ == "__main__":
    train()
