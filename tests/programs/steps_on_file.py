"""Training that notes each finished step in a file of its own, at once and unbuffered, until it is killed.

A line per step: its number and the bits of its loss. What is in the file happened; tests compare the
tables of a killed job with it.
"""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn import functional

from ledger import Ledger, options


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--file", required=True)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    ledger.rest_s = 0.0
    model = nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    file = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while ledger.running:
        inputs = torch.full((4, 16), float(ledger.steps)).cos()
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        os.write(file, f"{ledger.steps} {ledger.losses[-1]}\n".encode())
        ledger.step()
    ledger.finish(model)


if __name__ == "__main__":
    main()
