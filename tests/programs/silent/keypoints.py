"""Finds three landmarks (a cross, a ring, a spot) in noisy images: a trainer, a small CNN, AdamW, cosine.

With `--out`, it goes on from the newest checkpoint there, and writes one every fifty steps.
"""

from __future__ import annotations

import copy
import math
from pathlib import Path

import torch
from progress import Progress, options
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIZE, LANDMARKS = 32, 3


def draw(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images in grey levels, and where (row, column in pixels) the three landmarks are."""
    source = torch.Generator().manual_seed(seed)
    line = torch.arange(SIZE).float()
    down, right = line.view(1, SIZE, 1), line.view(1, 1, SIZE)
    places = 4 + (SIZE - 8) * torch.rand(count, LANDMARKS, 2, generator=source)
    images = 25 * torch.randn(count, SIZE, SIZE, generator=source) + 70
    for number in range(LANDMARKS):
        rows, columns = places[:, number, 0].view(-1, 1, 1), places[:, number, 1].view(-1, 1, 1)
        away_down, away_right = (down - rows).abs(), (right - columns).abs()
        distance = (away_down**2 + away_right**2).sqrt()
        if number == 0:
            shape = (torch.minimum(away_down, away_right) < 1) & (torch.maximum(away_down, away_right) < 4)
        elif number == 1:
            shape = (distance - 3).abs() < 1
        else:
            shape = distance < 2
        images += 110 * shape
    return images.clamp(0, 255), places


class Landmarks(Dataset):
    """Images and the places of their landmarks, both of mean 0 and deviation 1."""

    def __init__(self, images: torch.Tensor, places: torch.Tensor, like: Landmarks | None = None) -> None:
        self.images = images
        self.mean, self.std = (like.mean, like.std) if like else (images.mean(), images.std())
        self.middle, self.spread = (SIZE - 1) / 2, (SIZE - 8) / math.sqrt(12)
        self.places = (places - self.middle) / self.spread

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = (self.images[index] - self.mean) / self.std
        return image[None], self.places[index].flatten()


class Regressor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 5, 2, 2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(32 * 64, 128), nn.ReLU(), nn.Linear(128, 2 * LANDMARKS))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).flatten(1))


class Trainer:
    def __init__(self, args) -> None:
        self.args = args
        self.progress = Progress(args)
        self.folder = Path(args.out) if args.out else None
        self.train_set = Landmarks(*draw(1600, args.seed))
        self.val_set = Landmarks(*draw(256, args.seed + 10_000), like=self.train_set)
        self.train_loader = DataLoader(self.train_set, batch_size=32, shuffle=True, drop_last=True)
        self.val_loader = DataLoader(self.val_set, batch_size=64)
        self.model = Regressor()
        self.criterion = nn.SmoothL1Loss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, T_max=60_000)
        self.global_step = 0
        self.best_error = math.inf
        self.best_state: dict | None = None
        if self.folder:
            self.resume()

    def save(self) -> None:
        state = {"step": self.global_step, "best_error": self.best_error}
        for name in ("model", "optimizer", "scheduler"):
            state[name] = getattr(self, name).state_dict()
        torch.save(state, self.folder / f"step_{self.global_step}.pt")

    def resume(self) -> None:
        found = list(self.folder.glob("step_*.pt"))
        if not found:
            return
        newest = max(found, key=lambda path: int(path.stem.split("_")[1]))
        state = torch.load(newest, weights_only=True)
        for name in ("model", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(state[name])
        self.global_step, self.best_error = state["step"], state["best_error"]
        print(f"resumed from {newest.name}")

    @torch.no_grad()
    def validate(self) -> float:
        """Mean distance of the landmarks from where they were found, in pixels."""
        self.model.eval()
        distances = []
        for images, places in self.val_loader:
            away = (self.model(images) - places).view(-1, LANDMARKS, 2) * self.val_set.spread
            distances.append(away.norm(dim=2).mean(1))
        self.model.train()
        return torch.cat(distances).mean().item()

    def train(self) -> None:
        while True:
            for images, places in self.train_loader:
                loss = self.criterion(self.model(images), places)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                self.global_step += 1
                if self.folder and self.global_step % 50 == 0:
                    self.save()
                self.progress.step(loss.item())
            error = self.validate()
            if error < self.best_error:
                self.best_error = error
                self.best_state = copy.deepcopy(self.model.state_dict())
            print(f"step {self.global_step}: {error:.2f} pixels away, best {self.best_error:.2f}")


if __name__ == "__main__":
    Trainer(options(__doc__)).train()
