"""A run of which much is to be known: arguments with a secret, two models, a frozen layer, loggers' calls.

In the folder that is its first argument lie tensorboardX, W&B and MLflow, or stand-ins with the parameters of
their functions. Trains until stdin closes; READY after the first steps, RESULT with what
is to be found.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import select
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from probe import log


class Generator(nn.Module):
    """Two layers, of which the first is frozen, a normalization and a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16, eps=1e-7), nn.Dropout(0.25))
        self.head = nn.Linear(16, 4)
        self.scale = nn.Parameter(torch.ones(()))
        self.layers[0].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x)) * self.scale


class Critic(nn.Module):
    """A second root with names of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("stand_ins")
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--api-key", default="sk-0123456789abcdef0123")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--slow-batch-ms", type=float, default=0.0, help="What making a batch takes.")
    parser.add_argument("--rest-ms", type=float, default=2.0, help="After each step.")
    parser.add_argument("--folder", help="Where the libraries write.")
    parser.add_argument("--real", action="store_true", help="Also torch's own SummaryWriter.")
    args = parser.parse_args()
    seed = 1234
    torch.manual_seed(seed)
    sys.path.insert(0, args.stand_ins)
    wandb, mlflow, board = (importlib.import_module(name) for name in ("wandb", "mlflow", "tensorboardX"))
    if args.folder:
        os.chdir(args.folder)
    writers = [board.SummaryWriter()]
    if args.real:
        writers.append(importlib.import_module("torch.utils.tensorboard").SummaryWriter())
    model, critic = Generator(), Critic()
    optimizer = torch.optim.AdamW(
        [{"params": model.head.parameters()}, {"params": [model.scale], "weight_decay": 0.0}],
        lr=args.learning_rate, weight_decay=0.1,
    )
    other = torch.optim.SGD(critic.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1000, gamma=0.5)

    def collate(items: list[tuple[torch.Tensor]]) -> tuple[torch.Tensor]:
        time.sleep(args.slow_batch_ms / 1e3)
        return (torch.stack([item[0] for item in items]),)

    data = TensorDataset(torch.randn(6400, 8))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=args.workers, collate_fn=collate)
    wandb.init()
    step = 0
    while True:
        for (batch,) in loader:
            loss = critic(model(batch)).pow(2).mean()
            optimizer.zero_grad()
            other.zero_grad()
            loss.backward()
            other.step()
            optimizer.step()
            scheduler.step()
            step += 1
            if step == 20:
                print("READY", flush=True)
            if step >= 20 and step % 10 == 0:
                for writer in writers:
                    writer.add_scalar("train/loss", loss.detach(), step)
                writers[-1].add_scalars("norms", {"a": 1.5}, step)
                wandb.log({"val": {"acc": 0.5}, "text": "no number"}, step=step)
                mlflow.log_metric("f1", 0.25, step=7)
                mlflow.log_metrics({"recall": 1})
                log("mine", 3.0)
            time.sleep(args.rest_ms / 1e3)
            if select.select([sys.stdin], [], [], 0)[0]:
                print("RESULT " + json.dumps({"steps": step, "calls": step // 10}), flush=True)
                return


if __name__ == "__main__":
    main()
