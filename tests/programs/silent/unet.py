"""Segments discs in small images: a U-Net, mixed precision with a gradient scaler, clipping."""

from __future__ import annotations

import random

import torch
from progress import Progress, options
from synthetic import shapes
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Masks(Dataset):
    def __init__(self, count: int, seed: int) -> None:
        self.images, self.masks = shapes(count, seed=seed)
        self.masks = 255 * self.masks

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image, mask = self.images[index].float() / 255, (self.masks[index] > 127).long()
        if random.random() < 0.5:
            image, mask = image.flip(-1), mask.flip(-1)
        return image, mask


class DoubleConv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    def __init__(self, classes: int = 2, width: int = 8) -> None:
        super().__init__()
        self.inc = DoubleConv(3, width)
        self.down1 = DoubleConv(width, 2 * width)
        self.down2 = DoubleConv(2 * width, 4 * width)
        self.up1 = DoubleConv(6 * width, 2 * width)
        self.up2 = DoubleConv(3 * width, width)
        self.outc = nn.Conv2d(width, classes, 1)

    def encode(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x1 = self.inc(x)
        x2 = self.down1(F.max_pool2d(x1, 2))
        return x1, x2, self.down2(F.max_pool2d(x2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x1, x2, x3 = self.encode(x)
        x = self.up1(torch.cat([x2, F.interpolate(x3, scale_factor=2)], 1))
        x = self.up2(torch.cat([x1, F.interpolate(x, scale_factor=2)], 1))
        return self.outc(x)


@torch.no_grad()
def evaluate(net: nn.Module, loader: DataLoader) -> float:
    net.eval()
    both = total = 0
    for images, masks in loader:
        found = net(images).argmax(1)
        both += 2 * (found & masks).sum().item()
        total += found.sum().item() + masks.sum().item()
    net.train()
    return both / max(1, total)


def train_model(args) -> None:
    progress = Progress(args)
    random.seed(args.seed)
    train_loader = DataLoader(Masks(2048, args.seed), batch_size=8, shuffle=True, drop_last=True)
    val_loader = DataLoader(Masks(64, 10_000), batch_size=16)
    model = UNet()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
    grad_scaler = torch.amp.GradScaler("cpu")
    global_step = 0
    while True:
        for images, masks in train_loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = model(images)
                loss = criterion(output, masks)
            optimizer.zero_grad(set_to_none=True)
            grad_scaler.scale(loss).backward()
            grad_scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            grad_scaler.step(optimizer)
            grad_scaler.update()
            progress.step(loss.item())
            global_step += 1
            if global_step % 200 == 0:
                print(f"step {global_step} dice {evaluate(model, val_loader):.3f}")
        scheduler.step()


if __name__ == "__main__":
    train_model(options(__doc__))
