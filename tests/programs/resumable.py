"""Training that can be continued from a checkpoint: dropout, shuffled data, a schedule by steps, a scaler.

With --data ahead the loader fetches a batch ahead of the loop and is lazy, as Accelerate's are.
With --wait-at N it says WAITING inside of step N and goes on after a line on stdin. With --resume FILE it
continues from that file, which is the only thing it uses probe for. Its result holds the losses from where it
began on.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ledger import Ledger, options

SAMPLES, BATCH, FEATURES = 40, 4, 16
BATCHES = SAMPLES // BATCH


def schedule(name: str, optimizer: torch.optim.Optimizer, steps: int) -> Any:
    """A scheduler that is stepped after every optimizer step."""
    if name == "onecycle":
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps + 1)
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)


def drawn() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """An epoch of batches drawn by hand, without a loader."""
    for _ in range(BATCHES):
        x = torch.randn(BATCH, FEATURES)
        yield x, x.sum(dim=1, keepdim=True)


class Ahead(DataLoader[Any]):
    """Looks whether another batch follows before it gives one. A generator: nothing runs before the first."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        batch = next(batches)
        for next_batch in batches:
            yield batch
            batch = next_batch
        yield batch


Ahead.__iter__ = FunctionType(  # type: ignore[method-assign]  # by the module's name probe knows such a loader
    Ahead.__iter__.__code__, {**globals(), "__name__": "accelerate.data_loader"}, "__iter__", None,
    Ahead.__iter__.__closure__,
)


def batches_of(arguments: argparse.Namespace) -> DataLoader[Any]:
    """The same samples in every run, in a random order."""
    x = torch.arange(SAMPLES * FEATURES, dtype=torch.float32).reshape(SAMPLES, FEATURES).sin()
    samples = TensorDataset(x, x.sum(dim=1, keepdim=True))
    loads = Ahead if arguments.data == "ahead" else DataLoader
    return loads(samples, batch_size=BATCH, shuffle=True, num_workers=arguments.workers)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--data", choices=["loader", "ahead", "drawn"], default="loader")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--schedule", choices=["onecycle", "cosine"], default="onecycle")
    parser.add_argument("--scaler", action="store_true", help="autocast and a GradScaler")
    parser.add_argument("--wait-at", type=int, default=-1, help="wait for a line inside of that step")
    parser.add_argument("--spoil-at", type=int, default=-1, help="make a parameter NaN in that step")
    parser.add_argument("--ballast-mb", type=int, default=0, help="of a buffer that makes the state large")
    parser.add_argument("--pace-ms", type=float, default=0.0, help="rest after each step")
    parser.add_argument("--resume", help="continue from that file")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = nn.Sequential(
        nn.Linear(FEATURES, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1)
    )
    if arguments.ballast_mb:
        model.register_buffer("ballast", torch.ones(arguments.ballast_mb << 18))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = schedule(arguments.schedule, optimizer, max(arguments.steps, 1))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=7, enabled=arguments.scaler)
    loader = batches_of(arguments)
    step = epoch = 0
    rest: Iterable[Any] | None = None
    if arguments.resume:
        import probe

        held = {"scaler": scaler} if arguments.scaler else {}
        state = probe.load_checkpoint(
            arguments.resume, model=model, optimizer=optimizer, scheduler=scheduler, **held
        )
        step, epoch = int(state.step or 0), int(state.epoch or 0)
        ledger.steps, ledger.extra["resumed_at"] = step, step
        rest = drawn() if arguments.data == "drawn" else state.rest_of(loader)
    while ledger.running:
        batches = rest if rest is not None else drawn() if arguments.data == "drawn" else loader
        rest = None
        for x, y in batches:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=arguments.scaler):
                loss = functional.mse_loss(model(x).float(), y)
            scaler.scale(loss).backward()
            ledger.loss(loss)
            if step == arguments.wait_at:
                print("WAITING", flush=True)
                sys.stdin.readline()
            if step == arguments.spoil_at:
                with torch.no_grad():
                    model[4].weight[0, 0] = float("nan")
            scaler.step(optimizer)
            scaler.update()
            if scheduler.last_epoch < arguments.steps:
                scheduler.step()
            step += 1
            ledger.step()
            time.sleep(arguments.pace_ms / 1e3)
            if not ledger.running:
                break
        epoch += 1
    ledger.finish(model)


if __name__ == "__main__":
    main()
