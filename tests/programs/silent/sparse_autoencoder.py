"""Learns a dictionary of strokes from images of digits: an overcomplete autoencoder with a sparse code, Adam.

With `--out`, it starts from the weights there, if there are any, and writes them every hundred steps.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from progress import Progress, options
from synthetic import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

CODE, SPARSITY, LR = 512, 2e-3, 1e-3


class SparseAutoencoder(nn.Module):
    def __init__(self, pixels: int = 28 * 28) -> None:
        super().__init__()
        self.encoder = nn.Linear(pixels, CODE)
        self.decoder = nn.Linear(CODE, pixels)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = F.relu(self.encoder(images.flatten(1)))
        return self.decoder(code).view_as(images), code


def initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        nn.init.zeros_(module.bias)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    path = Path(args.out, "autoencoder.pt") if args.out else None
    images = digits(6400, seed=args.seed)[0].float() / 255
    test = digits(256, seed=args.seed + 10_000)[0].float() / 255
    loader = DataLoader(TensorDataset(images), batch_size=128, shuffle=True)
    model = SparseAutoencoder()
    model.apply(initialise)
    optimizer = torch.optim.Adam(model.parameters(), lr=LR)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps or 40_000)
    if path and path.exists():
        saved = torch.load(path, weights_only=True)
        model.load_state_dict(saved["model"])
    step = 0
    for epoch in itertools.count():
        for (batch,) in loader:
            restored, code = model(batch)
            loss = F.mse_loss(restored, batch) + SPARSITY * code.abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if path and step % 100 == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
            progress.step(loss.item())
        with torch.no_grad():
            restored, code = model(test)
        active = (code > 0).float().mean().item()
        print(f"epoch {epoch}: test error {F.mse_loss(restored, test):.4f}, {active:.2%} of the code active")


if __name__ == "__main__":
    main()
