"""A backbone is trained inside one model, then becomes a part of another: frozen at first, released soon."""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional

WIDTH, PHASE_S = 16, 2.0


class FineTuned(nn.Module):
    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, ends_s: float) -> None:
    while time.monotonic() < ends_s:
        x = torch.randn(32, WIDTH)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
        optimizer.step()


def pretrain(backbone: nn.Module) -> None:
    model = nn.Sequential(backbone, nn.Linear(WIDTH, 3))
    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), time.monotonic() + PHASE_S)


def main() -> None:
    torch.set_num_threads(1)
    backbone = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    pretrain(backbone)  # long enough for the first model to be listed
    model = FineTuned(backbone)
    backbone.requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    train(model, optimizer, time.monotonic() + PHASE_S)
    backbone.requires_grad_(True)
    print("READY", flush=True)
    train(model, optimizer, float("inf"))


if __name__ == "__main__":
    main()
