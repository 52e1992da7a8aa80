"""A tiny and quick training with one fault that begins at step `--at` and lasts, or passes.

Rests after each number of steps in `--rests`: prints `REST STEP` and waits for a line on stdin. So what was
wrong early can be asked for early and late, of one process.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

from ledger import options

FAULTS = ("clean", "nan", "rate-jumps", "no-zero-grad", "eval-mode", "spike-recovers")


class Distance(nn.Module):
    """A distance whose square root meets a negative number once it is `broken`, and makes NaNs."""

    broken = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        squared = (x * x).sum(1, keepdim=True) + 1e-3
        return (squared - 1e6 if self.broken else squared).sqrt()


class Regression(nn.Module):
    """What trains: a layer with dropout, a head, and a distance that does not matter while it is finite."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.1)
        self.distance = Distance()
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.body(self.drop(x)))
        result: torch.Tensor = self.head(hidden) + 1e-3 * self.distance(hidden)
        return result


def main() -> None:
    """Train with the fault."""
    parser = options(__doc__)
    parser.add_argument("--fault", choices=FAULTS, default="clean")
    parser.add_argument("--at", type=int, default=400)
    parser.add_argument("--rests", type=int, nargs="+", default=[600])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    truth = torch.randn(8, 1)
    for step in range(max(arguments.rests)):
        wrong = step >= arguments.at
        if arguments.fault == "nan":
            model.distance.broken = wrong
        if arguments.fault == "eval-mode" and step == arguments.at:
            model.eval()
        if arguments.fault == "rate-jumps":
            optimizer.param_groups[0]["lr"] = 4.0 if wrong else 0.01
        x = torch.randn(128, 8)
        y = x @ truth + 0.3 * torch.randn(128, 1)
        if arguments.fault == "spike-recovers" and 0 <= step - arguments.at < 3:
            y = y + 30.0
        if not (arguments.fault == "no-zero-grad" and wrong):
            optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(x), y)
        loss.backward()
        optimizer.step()
        if step == 2:
            print("READY", flush=True)
        if step % 500 == 0:
            print("STEP", step, flush=True)
        if step + 1 in arguments.rests:
            print("REST", step + 1, flush=True)
            if not sys.stdin.readline():
                return


if __name__ == "__main__":
    main()
