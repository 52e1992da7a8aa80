"""Job 10: a model of 2,000 tiny modules, where every microsecond per module call shows."""

from __future__ import annotations

import torch
from torch import nn

from ledger import Ledger, options


class Gain(nn.Module):
    """Multiplies by one learned number per feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--modules", type=int, default=2000)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = nn.Sequential(*(Gain(8) for _ in range(arguments.modules)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    inputs = torch.randn(4, 8)
    while ledger.running:
        optimizer.zero_grad()
        loss = (model(inputs) - 1).square().mean()
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        ledger.step()
    ledger.extra = {"modules": arguments.modules}
    ledger.finish(model)


if __name__ == "__main__":
    main()
