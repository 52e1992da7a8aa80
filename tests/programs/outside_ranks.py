"""Rank RANK of a gloo job of two, in which rank 1 sleeps before the third all_reduce."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist


def train_step(step: int) -> None:
    if step == 2:
        print("READY", os.getpid(), flush=True)
        if dist.get_rank() == 1:
            time.sleep(600)
    loss = torch.ones(1)
    dist.all_reduce(loss)


if __name__ == "__main__":
    rank, meeting = int(sys.argv[1]), sys.argv[2]
    store = dist.FileStore(meeting, 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=600))
    for step in range(3):
        train_step(step)
