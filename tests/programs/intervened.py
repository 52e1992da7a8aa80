"""A small training with accidents planted in its gradients, which can also do by itself what probe does.

`--nan-at` and `--spike-at` say before which steps gradients go wrong. `--itself KIND:FROM:TO` clips,
skips or guards in those steps with the job's own code: what a run of probe is compared with. `--halt-at`
waits there for a line on stdin, after `HALT STEP`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ledger import Ledger, digest, options

MAX_NORM = 2.0
THRESHOLD, WARM_UP = 5.0, 10


class Itself:
    """The job's own clipping, skipping or guarding, in a range of steps."""

    def __init__(self, wanted: str) -> None:
        kind, first, last = (wanted or "nothing:0:0").split(":")
        self._kind, self._steps = kind, range(int(first), int(last))
        self._norms: list[float] = []

    def steps_anyway(self, step: int, model: nn.Module, optimizer: Any, norm: float) -> bool:
        """Do it; whether the optimizer is to step."""
        if step not in self._steps:
            return True
        if self._kind == "clip":
            nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        elif self._kind == "skip":
            return math.isfinite(norm)
        elif self._kind == "guard":
            usual = statistics.median(self._norms) if len(self._norms) >= WARM_UP else math.inf
            self._norms.append(norm)
            if norm > THRESHOLD * usual:
                for parameter in model.parameters():
                    parameter.grad *= usual / norm
                optimizer.state.clear()  # it begins as new
        return True


def made(name: str, model: nn.Module) -> Any:
    if name == "SGD":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    return getattr(torch.optim, name)(model.parameters(), lr=0.01)


def norm_of(model: nn.Module) -> float:
    return float(torch.linalg.vector_norm(torch.cat([one.grad.flatten() for one in model.parameters()])))


def arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("--optimizer", default="AdamW")
    parser.add_argument("--scaler", action="store_true")
    parser.add_argument("--nan-at", type=int, nargs="*", default=[])
    parser.add_argument("--spike-at", type=int, nargs="*", default=[])
    parser.add_argument("--halt-at", type=int, nargs="*", default=[])
    parser.add_argument("--itself", default="")
    return parser.parse_args()


def main() -> None:
    wanted = arguments()
    ledger, itself = Ledger(wanted), Itself(wanted.itself)
    data = torch.randn(4000, 6)
    train_loader = DataLoader(TensorDataset(data, data.sin().sum(1, keepdim=True)), batch_size=4)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = made(wanted.optimizer, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=9, enabled=wanted.scaler)
    norms, weights, kept, scales = [], [], [], []
    while ledger.running:
        for points, targets in train_loader:
            optimizer.zero_grad()
            loss = functional.mse_loss(model(points), targets)
            scaler.scale(loss).backward()
            ledger.loss(loss)
            if ledger.steps in wanted.nan_at:
                model[0].weight.grad[0, 0] = math.nan
            if ledger.steps in wanted.spike_at:
                for parameter in model.parameters():
                    parameter.grad *= 1000.0
            norms.append(norm_of(model))
            if itself.steps_anyway(ledger.steps, model, optimizer, norms[-1]):
                scales.append([scaler.get_scale(), scaler._get_growth_tracker()] if wanted.scaler else None)
                scaler.step(optimizer)
                scaler.update()
            kept.append(all(parameter.grad is not None for parameter in model.parameters()))
            weights.append(digest(model))
            ledger.step()
            if ledger.steps in wanted.halt_at:
                print(f"HALT {ledger.steps}", flush=True)
                sys.stdin.readline()
            if not ledger.running:
                break
    ledger.extra = {
        "norms": [norm if math.isfinite(norm) else None for norm in norms],
        "weights": weights, "gradients_kept": kept, "scales": scales,
    }
    ledger.finish(model)


if __name__ == "__main__":
    main()
