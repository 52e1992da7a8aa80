"""Alarms at random moments whose handler raises, as jobs with a time limit have them: every one is caught
here, wherever the training was; then 40 steps in peace.

RESULT counts what was `raised` and `caught`. One handler in two is replaced by the time its exception is
seen.
"""

from __future__ import annotations

import random
import signal
import time
from types import FrameType

import torch
from torch import nn
from torch.utils.data import DataLoader

from ledger import Ledger, options

LATEST_S = 1e-3
"""After the start of a step, which takes about half as long."""


class Asked(Exception):
    """What the handler raises."""


class Alarms:
    """Raises `Asked` at random moments."""

    def __init__(self) -> None:
        self.raised = 0

    def next(self) -> None:
        """One alarm, soon."""
        signal.signal(signal.SIGALRM, self.handle)
        signal.setitimer(signal.ITIMER_REAL, 1e-5 + random.random() * LATEST_S)

    def off(self) -> None:
        """None from here on; the calls give one that has come already a place to be raised."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        time.sleep(0)
        time.sleep(0)

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        self.raised += 1
        if self.raised % 2:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
        raise Asked


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--alarms", type=int, default=1000)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    alarms, caught = Alarms(), 0
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    loader = DataLoader([torch.full((4,), float(number)).sin() for number in range(64)], batch_size=4)

    def step(batch: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    while alarms.raised < arguments.alarms:
        try:
            torch.set_grad_enabled(True)  # an exception inside of torch's own step leaves it off
            for batch in loader:
                alarms.next()
                step(batch)
            alarms.off()
        except Asked:
            caught += 1
    for _ in range(10):
        for batch in list(loader)[:4]:
            step(batch)
            ledger.step()
    ledger.extra = {"raised": alarms.raised, "caught": caught}
    ledger.finish(model)


if __name__ == "__main__":
    main()
