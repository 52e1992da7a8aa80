"""Classifies textures, some of them rare: a small residual network in the style of torchvision's references.

SGD with momentum, warm-up and cosine, a balancing sampler, and an average of the weights, evaluated too.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

CLASSES, SIZE, BATCH_SIZE, LR = 8, 32, 32, 0.05


def textures(count: int, seed: int, rare: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Stripes in eight directions and widths; with `rare`, the last classes have few images."""
    source = torch.Generator().manual_seed(seed)
    share = 0.6 ** torch.arange(CLASSES).float() if rare else torch.ones(CLASSES)
    labels = torch.multinomial(share, count, replacement=True, generator=source)
    line = torch.linspace(-1, 1, SIZE)
    angle = labels.float() * math.pi / CLASSES + 0.12 * torch.randn(count, generator=source)
    across = angle.cos()[:, None, None] * line[None, :, None] + angle.sin()[:, None, None] * line[None, None]
    speed = 8 + 6 * torch.rand(count, 1, 1, generator=source)
    wave = torch.sin(speed * across + 6.3 * torch.rand(count, 1, 1, generator=source))
    colour = torch.rand(count, 3, 1, 1, generator=source)
    images = 0.5 + 0.3 * colour * wave[:, None] + 0.28 * torch.randn(count, 3, SIZE, SIZE, generator=source)
    return images.clamp(0, 1), labels


def train_transform(image: torch.Tensor) -> torch.Tensor:
    """A random crop of the padded image, another brightness, and perhaps a patch erased."""
    padded = F.pad(image, (4, 4, 4, 4), mode="reflect")
    top, left = torch.randint(9, (2,)).tolist()
    image = padded[:, top : top + SIZE, left : left + SIZE] * (0.7 + 0.6 * torch.rand(()))
    if torch.rand(()) < 0.5:
        top, left = torch.randint(SIZE - 12, (2,)).tolist()
        image[:, top : top + 12, left : left + 12] = torch.rand(3, 1, 1)
    return eval_transform(image)


def eval_transform(image: torch.Tensor) -> torch.Tensor:
    return (image - 0.5) / 0.33


class Textures(Dataset):
    def __init__(self, images: torch.Tensor, labels: torch.Tensor, transform: Callable) -> None:
        self.images, self.targets, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.transform(self.images[index]), self.targets[index]


class BasicBlock(nn.Module):
    def __init__(self, inplanes: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inplanes, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = nn.Sequential(
            nn.Conv2d(inplanes, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.layers = nn.Sequential(BasicBlock(12, 24, 2), BasicBlock(24, 48, 2))
        self.fc = nn.Linear(48, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


class ExponentialMovingAverage(AveragedModel):
    def __init__(self, model: nn.Module, decay: float) -> None:
        def average(averaged: torch.Tensor, now: torch.Tensor, _: torch.Tensor | int) -> torch.Tensor:
            return decay * averaged + (1 - decay) * now

        super().__init__(model, avg_fn=average, use_buffers=True)


def train_one_epoch(model, criterion, optimizer, lr_scheduler, data_loader, model_ema, progress) -> None:
    model.train()
    for image, target in data_loader:
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lr_scheduler.step()
        model_ema.update_parameters(model)
        progress.step(loss.item())


def evaluate(model, criterion, data_loader, suffix: str = "") -> float:
    model.eval()
    correct = total = loss = 0.0
    with torch.inference_mode():
        for image, target in data_loader:
            output = model(image)
            loss += criterion(output, target).item() * len(target)
            correct += (output.argmax(1) == target).sum().item()
            total += len(target)
    print(f"Test{suffix}: Acc@1 {correct / total:.3f} Loss {loss / total:.3f}")
    return correct / total


def main(args) -> None:
    progress = Progress(args)
    dataset = Textures(*textures(4800, args.seed, rare=True), train_transform)
    dataset_test = Textures(*textures(400, args.seed + 10_000, rare=False), eval_transform)
    weights = 1.0 / dataset.targets.bincount(minlength=CLASSES).float()
    train_sampler = WeightedRandomSampler(weights[dataset.targets].tolist(), len(dataset))
    data_loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=train_sampler, drop_last=True)
    data_loader_test = DataLoader(dataset_test, batch_size=100)
    model = ResNet()
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9, weight_decay=1e-4)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=50)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30_000)
    lr_scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, cosine], milestones=[50])
    model_ema = ExponentialMovingAverage(model, decay=0.98)
    for epoch in itertools.count():
        train_one_epoch(model, criterion, optimizer, lr_scheduler, data_loader, model_ema, progress)
        print(f"Epoch {epoch}")
        evaluate(model, criterion, data_loader_test)
        evaluate(model_ema, criterion, data_loader_test, suffix=" EMA")


if __name__ == "__main__":
    main(options(__doc__))
