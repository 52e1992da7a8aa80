"""Training in a process that executes its own program again after its steps: one pid, two lives."""

from __future__ import annotations

import os
import sys

import torch
from torch import nn

from ledger import Ledger, options

LIVES = 2


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--life", type=int, default=1)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ledger.train(model, optimizer)
    if arguments.life < LIVES:
        os.execv(sys.executable, [sys.executable, *sys.argv, "--life", str(arguments.life + 1)])
    ledger.finish(model)


if __name__ == "__main__":
    main()
