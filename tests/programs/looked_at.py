"""Training that others look into: dropout, accumulation, a checkpoint, a module called twice, one never.

With --forever it trains until a line comes on stdin; rests --rest-s after each step.
"""

from __future__ import annotations

import os
import select
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from ledger import Ledger, options

MICRO_STEPS = 2


class Net(nn.Module):
    """Four modules, each called in its own way."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.twice = nn.Linear(16, 16)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.ReLU())
        self.never = nn.Linear(16, 16)
        self.head = nn.Linear(16, 1)
        self._reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu_(self.first(x))
        x = self.twice(self.twice(x))
        x = checkpoint(self.block, x, use_reentrant=self._reentrant)
        return self.head(x)


def told() -> bool:
    """Whether there is a line on stdin, or its end."""
    return bool(select.select([sys.stdin], [], [], 0.0)[0])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rest-s", type=float, default=0.0)
    parser.add_argument("--reentrant", action="store_true")
    parser.add_argument("--own-profiler-from", type=int, default=0, help="profiles two steps itself")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = Net(arguments.reentrant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50, gamma=0.9)
    numbers = torch.arange(60.0)
    data = [(torch.full((8,), float(x)).sin(), x.remainder(3).view(1)) for x in numbers]
    loader = DataLoader(data, batch_size=4, shuffle=True)
    profiler = None
    while True:
        for inputs, targets in loader:
            loss = functional.mse_loss(model(inputs), targets) / MICRO_STEPS
            loss.backward()
            ledger.loss(loss)
            if ledger._micro_steps < MICRO_STEPS:
                continue
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            ledger.step()
            if arguments.own_profiler_from == ledger.steps:
                print("PROFILES", flush=True)
                profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
                profiler.start()
            elif profiler is not None and ledger.steps == arguments.own_profiler_from + 2:
                profiler.stop()
                ledger.extra["own_events"] = sum(one.key == "aten::addmm" for one in profiler.key_averages())
                profiler = None
            time.sleep(arguments.rest_s)
            if not ledger.running or told():
                ledger.extra["profiling_at_end"] = torch.autograd._profiler_enabled()
                ledger.extra["descriptors"] = len(os.listdir("/proc/self/fd"))
                ledger.finish(model)
                return


if __name__ == "__main__":
    main()
