"""Job 11: a step of about one millisecond, where any cost per step shows; it may rest after each."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional

from ledger import Ledger, options


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rest-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    inputs = torch.randn(64, 64)
    targets = torch.randint(0, 10, (64,))
    while ledger.running:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        ledger.step()
        if arguments.rest_ms:
            time.sleep(arguments.rest_ms / 1e3)
    ledger.finish(model)


if __name__ == "__main__":
    main()
