"""Training whose numbers depend on everything a snippet could disturb.

Dropout, batch norm and shuffling draw from torch's random state, the samples from Python's and NumPy's.
At its end it says what the training thread's modes are. With --forever a line on stdin ends it after the step
that it is in; --pace-ms makes a step last about as long, and changes no number.
"""

from __future__ import annotations

import gc
import hashlib
import os
import random
import select
import signal
import sys
import time
import warnings
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from ledger import Ledger, digest, options

WIDTH = 16


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Noisy samples: the noise is Python's, its strength NumPy's."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.full((WIDTH,), float(index)).sin()
        return x * random.random() + float(numpy.random.normal()), x.sum().reshape(1)


class Net(nn.Module):
    """A small network with everything that differs between training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(WIDTH, 32)
        self.norm = nn.BatchNorm1d(32)
        self.dropout = nn.Dropout(0.3)
        self.out = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.dropout(self.norm(self.into(x)).relu()))


class Trainer:
    """What the snippets of people ask for."""

    def __init__(self) -> None:
        self.grad_clip = 1.0
        self.current_step = 0


def told() -> bool:
    """Whether a line came on stdin."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def surroundings() -> dict[str, Any]:
    """What a snippet is to leave as it was, in a form that can be compared."""
    states = [
        repr(random.getstate()), repr(numpy.random.get_state(legacy=False)["state"]["key"].tolist()),
        repr(torch.get_rng_state().tolist()),
    ]
    return {
        "random_sha256": [hashlib.sha256(state.encode()).hexdigest() for state in states],
        "grad": torch.is_grad_enabled(), "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"), "dtype": str(torch.get_default_dtype()),
        "device": str(torch.ones(1).device), "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomaly": torch.is_anomaly_enabled(), "precision": torch.get_float32_matmul_precision(),
        "folder": os.getcwd(), "recursion": sys.getrecursionlimit(), "gc": gc.isenabled(),
        "warnings": [repr(one) for one in warnings.filters],
        "handlers": [repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "streams": [stream is kept for stream, kept in (
            (sys.stdin, sys.__stdin__), (sys.stdout, sys.__stdout__), (sys.stderr, sys.__stderr__))],
        "tracing": [sys.gettrace() is None, sys.getprofile() is None],
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--pace-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    random.seed(0)
    numpy.random.seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)
    train_loader = DataLoader(Samples(), batch_size=8, shuffle=True)
    trainer = Trainer()
    ends = False
    while ledger.running and not ends:
        for x, y in train_loader:
            ledger.fetched("train_loader")
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            ledger.loss(loss)
            nn.utils.clip_grad_norm_(model.parameters(), trainer.grad_clip)
            optimizer.step()
            scheduler.step()
            trainer.current_step += 1
            ledger.step()
            if arguments.pace_ms:
                time.sleep(arguments.pace_ms / 1e3)
            ends = arguments.forever and told()
            if ends or not ledger.running:
                break
    sums = {name: float(buffer.double().sum()).hex() for name, buffer in model.named_buffers()}
    averages = [state["exp_avg_sq"] for state in optimizer.state.values()]
    ledger.extra = {
        "buffers": sums, "averages": [float(one.double().sum()).hex() for one in averages],
        "rate": scheduler.get_last_lr(), "parameters": digest(model), "surroundings": surroundings(),
    }
    if ends:
        sys.stdin.readline()
    ledger.finish(model)


if __name__ == "__main__":
    main()
