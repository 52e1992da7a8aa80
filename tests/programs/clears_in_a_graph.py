"""A step function that is compiled whole and calls `model.zero_grad()` inside."""

from __future__ import annotations

import torch
from torch import nn

from ledger import Ledger, options


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    model = nn.Linear(4, 4)

    def loss(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        return model(x).square().mean()

    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    while ledger.running:
        value = compiled(torch.ones(2, 4))
        value.backward()
        ledger.loss(value)
        ledger.step()
    ledger.finish(model)


if __name__ == "__main__":
    main()
