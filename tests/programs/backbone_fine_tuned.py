"""A backbone is trained inside one model, and then inside another, whose part it becomes."""

from __future__ import annotations

import itertools

import torch
from torch import nn
from torch.nn import functional

WIDTH, PRETRAINED = 16, 300


class FineTuned(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def train(model: nn.Module, steps: int | None) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in itertools.count() if steps is None else range(steps):
        x = torch.randn(32, WIDTH)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
        if steps is None and step == 20:
            print("READY", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    backbone = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    train(nn.Sequential(backbone, nn.Linear(WIDTH, 3)), PRETRAINED)
    train(FineTuned(backbone), None)


if __name__ == "__main__":
    main()
