"""Finds cells in microscope-like images: a U-shaped network, cross-entropy and Dice, a falling rate.

With `--out`, it starts from the checkpoint there, if there is one, and writes one every hundred steps.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def slides(count: int, seed: int, size: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey images of round cells among bright streaks, and masks of the cells."""
    source = torch.Generator().manual_seed(seed)
    line = torch.arange(size).float()
    down, right = line.view(1, size, 1), line.view(1, 1, size)
    images = 0.2 * torch.randn(count, size, size, generator=source)
    masks = torch.zeros(count, size, size)
    for _ in range(3):
        middle = size * torch.rand(count, 2, 1, 1, generator=source)
        radius = 3 + 4 * torch.rand(count, 1, 1, generator=source)
        cell = ((down - middle[:, 0]) ** 2 + (right - middle[:, 1]) ** 2 < radius**2).float()
        masks = torch.maximum(masks, cell)
    images += masks * (0.4 + 0.5 * torch.rand(count, 1, 1, generator=source))
    for _ in range(2):
        slope, offset = (4 * torch.rand(2, count, 1, 1, generator=source) - 2).unbind()
        images += 0.7 * ((down - slope * right - size * offset / 2).abs() < 2).float()
    images = (images - images.mean()) / images.std()
    return images[:, None], masks[:, None]


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(),
    )


class UShape(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = block(1, 8), block(8, 16), block(16, 32)
        self.up2, self.up1 = block(32 + 16, 16), block(16 + 8, 8)
        self.out = nn.Conv2d(8, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.bottom(F.max_pool2d(second, 2))
        x = self.up2(torch.cat([F.interpolate(x, scale_factor=2), second], 1))
        x = self.up1(torch.cat([F.interpolate(x, scale_factor=2), first], 1))
        return self.out(x)


def initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)


def criterion(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    probability = logits.sigmoid()
    overlap = (probability * masks).sum((1, 2, 3))
    dice = (2 * overlap + 1) / (probability.sum((1, 2, 3)) + masks.sum((1, 2, 3)) + 1)
    return F.binary_cross_entropy_with_logits(logits, masks) + (1 - dice).mean()


@torch.no_grad()
def intersection_over_union(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    both, either = 0, 0
    for images, masks in loader:
        found, there = model(images) > 0.0, masks > 0.5
        both += (found & there).sum().item()
        either += (found | there).sum().item()
    return both / max(either, 1)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    checkpoint = Path(args.out) / "segmentation.pt" if args.out else None
    train_loader = DataLoader(TensorDataset(*slides(1600, args.seed)), batch_size=16, shuffle=True)
    val_loader = DataLoader(TensorDataset(*slides(160, args.seed + 10_000)), batch_size=32)
    model = UShape()
    model.apply(initialise)
    if checkpoint and checkpoint.exists():
        model.load_state_dict(torch.load(checkpoint, weights_only=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.9)
    step = 0
    for epoch in itertools.count():
        model.train()
        for images, masks in train_loader:
            loss = criterion(model(images), masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if checkpoint and step % 100 == 0:
                torch.save(model.state_dict(), checkpoint)
            progress.step(loss.item())
        scheduler.step()
        print(f"epoch {epoch}: loss {loss.item():.3f}, IoU {intersection_over_union(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
