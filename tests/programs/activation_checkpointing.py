"""Job 8: activation checkpointing: each block's forward runs again inside backward.

`forward_calls` counts both, by block.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ledger import Ledger, options


class Block(nn.Module):
    """Counts its forward calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + functional.gelu(self.inner(x))


class Checkpointed(nn.Module):
    """Blocks that keep no activations."""

    def __init__(self, width: int, blocks: int, reentrant: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 1)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--reentrant", action="store_true", help="the older form, an autograd function")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = Checkpointed(width=64, blocks=3, reentrant=arguments.reentrant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = torch.randn(32, 8)
    targets = inputs.prod(dim=1, keepdim=True)
    while ledger.running:
        optimizer.zero_grad()
        loss = functional.mse_loss(model(inputs), targets)
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        ledger.step()
    ledger.extra = {"forward_calls": [block.calls for block in model.blocks]}
    ledger.finish(model)


if __name__ == "__main__":
    main()
