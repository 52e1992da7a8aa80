"""Plain SGD on constant gradients, so that each step shows in its parameters the rate that it used.

Options name schedules: the first is that of `optimizer`, which is the largest, the others of optimizers
called after them (`LambdaLR_optimizer`). The result has for each the rates that its steps really used, of
both groups, and those that the same schedule gives untouched.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader

from ledger import Ledger, options

RATES = (0.1, 0.02)
"""Of the two groups."""
PATIENT_REST_S = float(os.environ.get("PATIENT_REST_S", "0"))
"""Sleep after each step before the line on stdin, for tests that ask for much and need few steps."""
STEPS_WHEN_TOLD = 40
"""So many steps are made after the line on stdin."""


class Own(lr_scheduler.LRScheduler):
    """A schedule of the job's own class."""

    def get_lr(self) -> list[Any]:
        return [base / (1 + 0.01 * self.last_epoch) for base in self.base_lrs]


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "none": lambda optimizer: None,
    "by_hand": lambda optimizer: None,
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 30, eta_min=1e-3),
    "LambdaLR": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + 0.02 * step)),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, list(RATES), total_steps=100_000, cycle_momentum=False
    ),
    "SequentialLR": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 40), lr_scheduler.CosineAnnealingLR(optimizer, 25, 1e-3)],
        [40],
    ),
    "Own": Own,
}


class Weights(nn.Module):
    """Its sum has the gradient 1 everywhere."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.second = nn.Parameter(torch.zeros(size, dtype=torch.float64))

    def forward(self) -> torch.Tensor:
        return self.first.sum() + self.second.sum()


class Trained:
    """One optimizer, its schedule and its rates."""

    def __init__(self, schedule: str, size: int) -> None:
        self.by_hand = schedule == "by_hand"
        self.model = Weights(size)
        groups = [
            {"params": [weight], "lr": rate}
            for weight, rate in zip(self.model.parameters(), RATES, strict=True)
        ]
        self.optimizer = torch.optim.SGD(groups, lr=RATES[0])
        self.scheduler = SCHEDULES[schedule](self.optimizer)
        self.steps = 0
        self.used: list[list[float]] = []

    def train(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model()
        loss.backward()
        before = self._values()
        self.set_rates()
        self.optimizer.step()
        self.used.append([was - now for was, now in zip(before, self._values(), strict=True)])
        self.follow()
        return loss

    def set_rates(self) -> None:
        """A schedule that the job writes itself, before each step."""
        if self.by_hand:
            for group, rate in zip(self.optimizer.param_groups, RATES, strict=True):
                group["lr"] = rate * (0.6 + 0.4 * math.cos(self.steps / 40))

    def follow(self) -> None:
        """The schedule after a step."""
        self.steps += 1
        if self.scheduler is not None:
            self.scheduler.step()

    def _values(self) -> list[float]:
        return [float(weight.detach()[0]) for weight in self.model.parameters()]


def untouched(schedule: str, steps: int) -> Iterator[list[float]]:
    """The rates of so many steps, when nobody changes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses the optimizer's steps
        alone = Trained(schedule, 1)
        for _ in range(steps):
            alone.set_rates()
            yield [group["lr"] for group in alone.optimizer.param_groups]
            alone.follow()


def wait_for_line(told: threading.Event) -> None:
    sys.stdin.readline()
    told.set()


def arguments() -> argparse.Namespace:
    parser = options(__doc__)
    parser.add_argument("schedules", nargs="+", choices=sorted(SCHEDULES))
    parser.add_argument("--until-told", action="store_true", help="train on until a line comes on stdin")
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    ledger = Ledger(chosen)
    told = threading.Event()
    if chosen.until_told:
        threading.Thread(target=wait_for_line, args=(told,), daemon=True).start()
    trained = {name: Trained(name, 2 if number else 8) for number, name in enumerate(chosen.schedules)}
    optimizer = trained[chosen.schedules[0]].optimizer
    globals().update({f"{name}_optimizer": one.optimizer for name, one in list(trained.items())[1:]})
    loader, left = DataLoader(range(1_000_000)), STEPS_WHEN_TOLD
    for _ in loader:
        for one in reversed(trained.values()):  # the step of `optimizer` ends the round
            loss = one.train()
        ledger.loss(loss)
        ledger.step()
        # So that a long schedule outlasts the test; while it waits to be told, for as long as tests want.
        time.sleep(0.001 if told.is_set() or not chosen.until_told else max(0.001, PATIENT_REST_S))
        left = left - 1 if told.is_set() else STEPS_WHEN_TOLD
        if not (left if chosen.until_told else ledger.running):
            break
    ledger.extra = {
        "class": type(optimizer).__name__,
        "used": {name: one.used for name, one in trained.items()},
        "untouched": {name: list(untouched(name, ledger.steps)) for name in trained},
    }
    ledger.finish(*(one.model for one in trained.values()))


if __name__ == "__main__":
    main()
