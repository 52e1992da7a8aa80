"""Job 5: LBFGS, which calls a closure (forward and backward) several times within one step."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ledger import Ledger, options


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    inputs = torch.randn(256, 8)
    targets = torch.sin(inputs.sum(dim=1, keepdim=True))
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    closures = 0

    def closure() -> torch.Tensor:
        nonlocal closures
        closures += 1
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        ledger.loss(loss)
        return loss

    while ledger.running:
        with ledger.phase("optimizer"):
            optimizer.step(closure)
        ledger.step()
    ledger.extra = {"closures": closures}
    ledger.finish(model)


if __name__ == "__main__":
    main()
