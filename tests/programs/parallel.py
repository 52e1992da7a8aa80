"""Rank RANK of a gloo job of WORLD_SIZE that trains one small model on all ranks.

`ddp`: DistributedDataParallel averages gradients within backward. `reduce`: the ranks average them
themselves, with one all_reduce a step. `fsdp`: every rank holds a shard (FSDP2, `fully_shard`).
`--second-group`: the even ranks also reduce their losses in a group of their own.
With --forever a line on rank 0's stdin ends all ranks after the same step. `sums` in the result is what each
reduction of the losses gave, so that one that went wrong shows; `flight` (with --trace) what torch's own
recorder has of the collectives, and `counts` how many torch counts in each group.
"""

from __future__ import annotations

import glob
import os
import pickle
import select
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from ledger import Ledger, options


def average(model: nn.Module, world_size: int) -> None:
    """One all_reduce of all gradients."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    total = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(total)
    offset = 0
    for gradient in gradients:
        gradient.copy_(total[offset : offset + gradient.numel()].view_as(gradient) / world_size)
        offset += gradient.numel()


def flight() -> list[list[Any]]:
    """`[group, number, operation, sizes, dtypes]` of what torch's Flight Recorder has, in order."""
    c10d: Any = torch._C._distributed_c10d  # type: ignore[attr-defined]
    entries = pickle.loads(c10d._dump_fr_trace(includeStackTraces=False))["entries"]
    return [
        [entry["process_group"][0], entry["collective_seq_id"], entry["profiling_name"], entry["input_sizes"],
         entry["input_dtypes"]]
        for entry in entries
    ]


def stand(arguments: Any) -> None:
    """The last rank after a step: later than the others, and while it is told to not at all."""
    if arguments.lag_ms:
        time.sleep(arguments.lag_ms / 1e3)
    while arguments.stand_while and glob.glob(arguments.stand_while):
        if os.path.exists(arguments.stand_until):
            break
        time.sleep(0.001)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--way", choices=("ddp", "reduce", "fsdp"), default="ddp")
    parser.add_argument("--pace-ms", type=float, default=0.0, help="time each step takes at least")
    parser.add_argument("--lag-ms", type=float, default=0.0, help="how much longer the last rank takes")
    parser.add_argument("--stand-while", default="", help="glob of what it stands still for")
    parser.add_argument("--stand-until", default="", help="file: …and this is not there")
    parser.add_argument("--halve-before", type=int, nargs="*", default=[], help="steps with half the rate")
    parser.add_argument("--second-group", action="store_true")
    parser.add_argument("--trace", action="store_true", help="tell what was communicated")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="of the process groups")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=arguments.timeout_s))
    evens = dist.new_group(list(range(0, world_size, 2))) if arguments.second_group else None
    model: Any = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    if arguments.way == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif arguments.way == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world_size,))
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000, gamma=0.5)
    sums = []
    ends = False
    while ledger.running and not ends:
        begun_s = time.monotonic()
        x = torch.full((4, 16), float(ledger.steps * world_size + rank)).sin()
        for group in optimizer.param_groups if ledger.steps in arguments.halve_before else ():
            group["lr"] *= 0.5
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        loss.backward()
        ledger.loss(loss)
        if arguments.way == "reduce":
            average(model, world_size)
        told = arguments.forever and rank == 0 and bool(select.select([sys.stdin], [], [], 0)[0])
        total = torch.tensor([float(loss.detach()), float(told)])
        dist.all_reduce(total)
        ends = bool(total[1])
        sums.append(float(total[0]).hex())
        if evens is not None and rank % 2 == 0:
            dist.all_reduce(loss.detach().clone(), group=evens)
        optimizer.step()
        scheduler.step()
        ledger.step()
        time.sleep(max(0.0, arguments.pace_ms / 1e3 - (time.monotonic() - begun_s)))
        if rank == world_size - 1:
            stand(arguments)
    ledger.extra = {"sums": sums}
    if arguments.trace:
        names: Any = dist.distributed_c10d._world.pg_names
        counts = {name: group._get_sequence_number_for_group() for group, name in names.items()}
        ledger.extra.update(flight=flight(), counts=counts)
    ledger.finish(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
