"""Training that waits for a line on stdin after its first steps, so that something can happen meanwhile."""

from __future__ import annotations

import sys

import torch
from torch import nn

from ledger import READY_AFTER_STEPS, Ledger, options


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while ledger.running:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        ledger.step()
        if ledger.steps == READY_AFTER_STEPS:
            sys.stdin.readline()
    ledger.finish(model)


if __name__ == "__main__":
    main()
