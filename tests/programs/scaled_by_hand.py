"""A loss scale without a GradScaler: gradients are clipped before they are divided by it.

Every 50 steps it evaluates twice: on inputs like those of the training, and on others of another shape.
"""

from __future__ import annotations

import sys

import torch
from torch import nn

SCALE = 4096.0


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(600):
        x = torch.randn(32, 8)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        (loss * SCALE).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for parameter in model.parameters():
            parameter.grad.div_(SCALE)
        optimizer.step()
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                model(torch.randn(64, 8))
                model(40.0 + 30.0 * torch.randn(16, 8))
            model.train()
    print("READY", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
