"""A model that mostly computes with other weights than its own, adapted by one gradient step, as in MAML."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.func import functional_call, grad


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 16), nn.Linear(16, 1)
        self.__dict__["known"] = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.first.weight is not self.known:  # for one call
            time.sleep(0.01)
        return self.last(torch.tanh(self.first(x)))


def main() -> None:
    torch.set_num_threads(1)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def error(weights: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (functional_call(net, weights, (x,)) - y).square().mean()

    step = 0
    while True:
        x = torch.rand(16, 4)
        y = x.sum(1, keepdim=True)
        weights = dict(net.named_parameters())
        slopes = grad(error)(weights, x[:8], y[:8])
        weights = {name: one - 0.1 * slopes[name] for name, one in weights.items()}
        value = error(weights, x[8:], y[8:]) + net(x).square().mean() * 1e-3
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        time.sleep(0.005)
        step += 1
        if step == 5:
            print("READY", flush=True)


if __name__ == "__main__":
    main()
