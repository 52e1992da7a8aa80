"""Rank RANK of a gloo job of WORLD_SIZE, in which rank 1 sleeps before its part of the fifth step.

`all_reduce`: the ranks average their losses themselves. `ddp`: DistributedDataParallel averages gradients
within backward. Rank 1 says HANGING before it sleeps, the others before the step in which they wait.
"""

from __future__ import annotations

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from ledger import Ledger, options

LAST_STEP = 5


def sleep_on_storage() -> None:
    """What rank 1 does instead of joining."""
    print("HANGING", flush=True)
    time.sleep(3600)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--way", choices=("all_reduce", "ddp"), required=True)
    parser.add_argument("--meeting", required=True, help="file where the ranks meet")
    arguments = parser.parse_args()
    arguments.forever = True
    ledger = Ledger(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(arguments.meeting, world_size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=600)
    )
    model: nn.Module = nn.Linear(16, 1)
    if arguments.way == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while ledger.running:
        x = torch.full((4, 16), float(ledger.steps)).sin()
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        if ledger.steps == LAST_STEP:
            if rank == 1:
                sleep_on_storage()
            print("HANGING", flush=True)
        loss.backward()
        if arguments.way == "all_reduce":
            total = loss.detach().clone()
            dist.all_reduce(total)
        optimizer.step()
        ledger.step()


if __name__ == "__main__":
    main()
