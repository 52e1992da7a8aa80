"""Job 15: a job whose own folder holds `probe.py`, `cli.py` and `recipes/`, and uses them."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import cli
import probe
import recipes

sys.path.append(str(Path(__file__).resolve().parents[1]))  # behind everything of the job's own

from ledger import Ledger, options


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=cli.LEARNING_RATE)
    inputs = torch.randn(16, 8)
    while ledger.running:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), recipes.targets(inputs))
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        probe.measure(model)
        ledger.step()
    ledger.extra = {
        "files": [module.__file__ for module in (probe, cli, recipes)],
        "measured": len(probe.MEASURED),
    }
    ledger.finish(model)


if __name__ == "__main__":
    main()
