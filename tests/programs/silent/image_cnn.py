"""Classifies small images of digits: a convolutional network, SGD, a rate that falls every few epochs."""

from __future__ import annotations

import itertools
import random

import torch
from progress import Progress, options
from synthetic import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self, count: int, seed: int, train: bool) -> None:
        self.images, self.labels = digits(count, seed=seed)
        self.train = train

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index].float() / 255
        if self.train:
            image = image.roll((random.randint(-2, 2), random.randint(-2, 2)), (0, 1))
        return (image[None] - 0.29) / 0.35, self.labels[index]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(32)
        self.fc1 = nn.Linear(32 * 7 * 7, 64)
        self.dropout = nn.Dropout(0.25)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2)
        x = self.dropout(F.relu(self.fc1(x.flatten(1))))
        return self.fc2(x)


def validate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    model.eval()
    loss, right = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            output = model(images)
            loss += F.cross_entropy(output, labels, reduction="sum").item()
            right += (output.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), right / len(loader.dataset)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    random.seed(args.seed)
    train_set = Digits(6400, args.seed, train=True)
    train_loader = DataLoader(train_set, batch_size=64, shuffle=True, drop_last=True)
    val_loader = DataLoader(Digits(512, 10_000, train=False), batch_size=128)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)
    for epoch in itertools.count():
        model.train()
        total = 0.0
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
            progress.step(loss.item())
        val_loss, accuracy = validate(model, val_loader)
        scheduler.step()
        print(f"epoch {epoch}: train {total / len(train_loader):.3f}, val {val_loss:.3f} {accuracy:.3f}")


if __name__ == "__main__":
    main()
