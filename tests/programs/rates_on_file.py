"""Training that notes each finished step, its loss and its learning rate in a file of its own.

With --forever it trains until a line comes on stdin. With --replay it sets before each step the rate that
such a file says, and makes as many steps: what a training is compared with that somebody acted on.
"""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path

import torch
from torch import nn

from ledger import Ledger, options


def rates(file: str) -> list[float]:
    """The learning rate of each step that the file notes."""
    return [float.fromhex(line.split()[2]) for line in Path(file).read_text().splitlines()]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--file", required=True)
    parser.add_argument("--replay", default="")
    parser.add_argument("--pace-ms", type=float, default=0.0)
    arguments = parser.parse_args()
    replayed = rates(arguments.replay) if arguments.replay else []
    if replayed:
        arguments.steps = len(replayed)
    ledger = Ledger(arguments)
    ledger.rest_s = 0.0
    model = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    file = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    while ledger.running:
        if replayed:
            optimizer.param_groups[0]["lr"] = replayed[ledger.steps]
        inputs = torch.full((4, 16), float(ledger.steps)).cos()
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        rate = float(optimizer.param_groups[0]["lr"]).hex()
        os.write(file, f"{ledger.steps} {ledger.losses[-1]} {rate}\n".encode())
        ledger.step()
        time.sleep(arguments.pace_ms / 1e3)
        if arguments.forever and select.select([sys.stdin], [], [], 0.0)[0]:
            sys.stdin.readline()
            break
    ledger.finish(model)


if __name__ == "__main__":
    main()
