"""Rank RANK of a gloo job of WORLD_SIZE that can be continued from a checkpoint of all ranks.

`ddp`: DistributedDataParallel with batch norms and a gradient scaler; `fsdp`: FSDP2, each rank holds a shard;
`hsdp`: the same in two replicas of WORLD_SIZE/2 shards;
`fsdp1`: FullyShardedDataParallel; `flat`: the same, whose optimizer has the flat parameters;
`drift`: replicas that nobody keeps alike. Each rank draws its own dropout and shuffles its own samples. With
--wait-at N every rank says WAITING inside of step N, where FSDP has the parameters gathered; rank 0 goes on
after a line on stdin. With --resume DIR it continues from there, which is the only thing it uses probe for.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ledger import Ledger, options

SAMPLES, BATCH, FEATURES = 40, 4, 16


def model_of(way: str, world_size: int, ballast_mb: int) -> Any:
    """The model, wrapped."""
    norm = [nn.BatchNorm1d(33)] if way == "ddp" else []
    model = nn.Sequential(nn.Linear(FEATURES, 33), *norm, nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 1))
    if ballast_mb:
        model.register_buffer("ballast", torch.ones(ballast_mb << 18))
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if way in ("fsdp1", "flat"):
        from torch.distributed.fsdp import FullyShardedDataParallel

        whole: Any = {"use_orig_params": way == "fsdp1", "device_id": torch.device("cpu")}
        model[0], model[-1] = (FullyShardedDataParallel(one, **whole) for one in (model[0], model[-1]))
        return FullyShardedDataParallel(model, **whole)
    if way in ("fsdp", "hsdp"):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        shape = (world_size,) if way == "fsdp" else (2, world_size // 2)
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
        for layer in (model[0], model[-1], model):
            fully_shard(layer, mesh=mesh, reshard_after_forward=False)
    return model


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--way", choices=("ddp", "fsdp", "hsdp", "fsdp1", "flat", "drift"), default="ddp")
    parser.add_argument("--wait-at", type=int, default=-1, help="wait for a line inside of that step")
    parser.add_argument("--pace-ms", type=float, default=0.0, help="rest after each step")
    parser.add_argument("--ballast-mb", type=int, default=0, help="of a buffer that makes the state large")
    parser.add_argument("--resume", help="continue from that folder")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    model = model_of(arguments.way, world_size, arguments.ballast_mb)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(arguments.steps, 1))
    scales = arguments.way == "ddp"
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7, enabled=scales)
    torch.manual_seed(rank)
    x = torch.arange(SAMPLES * FEATURES, dtype=torch.float32).reshape(SAMPLES, FEATURES).sin() + rank
    samples = TensorDataset(x, x.sum(dim=1, keepdim=True))
    loader = DataLoader(samples, batch_size=BATCH, shuffle=True)
    step = epoch = 0
    rest: Iterable[Any] | None = None
    if arguments.resume:
        import probe

        held = {"scaler": scaler} if scales else {}
        state = probe.load_checkpoint(
            arguments.resume, model=model, optimizer=optimizer, scheduler=scheduler, **held
        )
        step, epoch = int(state.step or 0), int(state.epoch or 0)
        ledger.steps, ledger.extra["resumed_at"] = step, step
        if state.data is not None:
            rest = state.rest_of(loader)
    while ledger.running:
        batches = rest if rest is not None else loader
        rest = None
        for x, y in batches:
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            if step == arguments.wait_at:
                print("WAITING", flush=True)
                if rank == 0:
                    sys.stdin.readline()
                dist.barrier()
            scaler.scale(loss).backward()
            ledger.loss(loss)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            step += 1
            ledger.step()
            time.sleep(arguments.pace_ms / 1e3)
            if not ledger.running:
                break
        epoch += 1
    state = dict(model.named_parameters()) if arguments.way in ("fsdp1", "flat") else model.state_dict()
    kept = {name: getattr(one, "to_local", lambda one=one: one)() for name, one in state.items()}
    whole = nn.Module()
    for number, one in enumerate(kept.values()):
        if one.is_floating_point():
            whole.register_parameter(str(number), nn.Parameter(one.detach().clone()))
    group: Any = dist.group.WORLD
    ledger.extra["collectives"] = group._get_sequence_number_for_group()
    ledger.finish(whole)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
