"""Rank RANK of a gloo job of WORLD_SIZE that averages its gradients itself, until rank 0 is told to end.

With --forever a line on rank 0's stdin ends all ranks after the same step: the wish travels with the
gradients. `sums` are what each reduction gave, so that one that went wrong shows.
"""

from __future__ import annotations

import os
import select
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from ledger import Ledger, options


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--meeting", required=True, help="file where the ranks meet")
    parser.add_argument("--pace-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(arguments.meeting, world_size)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=600)
    )
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sums = []
    ends = False
    while ledger.running and not ends:
        x = torch.full((4, 16), float(ledger.steps * world_size + rank)).sin()
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        loss.backward()
        ledger.loss(loss)
        told = arguments.forever and rank == 0 and bool(select.select([sys.stdin], [], [], 0)[0])
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        total = torch.cat([gradient.flatten() for gradient in gradients] + [torch.tensor([float(told)])])
        dist.all_reduce(total)
        ends = bool(total[-1])
        sums.append(float(total[:-1].sum()).hex())
        offset = 0
        for gradient in gradients:
            gradient.copy_(total[offset : offset + gradient.numel()].view_as(gradient) / world_size)
            offset += gradient.numel()
        optimizer.step()
        ledger.step()
        time.sleep(arguments.pace_ms / 1e3)
    ledger.extra = {"sums": sums}
    ledger.finish(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
