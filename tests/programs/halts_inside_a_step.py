"""Training that halts inside one of its steps, in the phase asked for, and waits to be killed.

After READY it waits for a line on stdin, so that module names can be known when it goes on. Says `INSIDE`
when it halts, for ever: the handshake of tests that kill a job in the middle of a step.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from ledger import READY_AFTER_STEPS, Ledger, options

WIDTH = 8


def halt() -> None:
    """Say so and never come back."""
    print("INSIDE", flush=True)
    threading.Event().wait()


class Samples(Dataset[torch.Tensor]):
    """Samples; the batch of the step `last` never arrives when `halts`."""

    def __init__(self, last: int, halts: bool) -> None:
        self.last = last
        self.halts = halts

    def __len__(self) -> int:
        return self.last + 1

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.halts and index == self.last:
            halt()
        return torch.full((WIDTH,), float(index)).sin()


class Layer(nn.Linear):
    """A layer that halts in its forward when told to."""

    halts = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.halts:
            halt()
        return super().forward(x)


class Halting(torch.optim.SGD):
    """An optimizer that halts before it changes anything when told to."""

    halts = False

    def step(self, *arguments: Any) -> Any:
        if self.halts:
            halt()
        return super().step(*arguments)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--phase", choices=("data", "forward", "backward", "optimizer"), required=True)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = nn.Sequential(Layer(WIDTH, WIDTH), nn.Tanh(), Layer(WIDTH, 1))
    optimizer = Halting(model.parameters(), lr=0.01)
    samples = Samples(arguments.steps, arguments.phase == "data")
    for step, batch in enumerate(DataLoader(samples, batch_size=1)):
        last = step == arguments.steps
        ledger.fetched("train_loader")
        optimizer.zero_grad()
        model[2].halts = last and arguments.phase == "forward"
        loss = functional.mse_loss(model(batch), batch.sum(dim=1, keepdim=True))
        if last and arguments.phase == "backward":
            loss.register_hook(lambda _gradient: halt())
        loss.backward()
        ledger.loss(loss)
        optimizer.halts = last
        optimizer.step()
        ledger.step()
        if ledger.steps == READY_AFTER_STEPS:
            sys.stdin.readline()


if __name__ == "__main__":
    main()
