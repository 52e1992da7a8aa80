"""Learns to tell signs apart without labels: two views, a student, a predictor, a slow teacher."""

from __future__ import annotations

import copy
import itertools

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F

SIGNS, SIZE, BATCH, DECAY = 16, 24, 64, 0.99


def signs(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images of sixteen signs, and which one each is (for the evaluation alone)."""
    glyphs = torch.rand(SIGNS, 1, 5, 5, generator=torch.Generator().manual_seed(23)) > 0.5
    glyphs = F.interpolate(glyphs.float(), size=15)[:, 0]
    source = torch.Generator().manual_seed(seed)
    which = torch.randint(SIGNS, (count,), generator=source)
    images = torch.zeros(count, SIZE, SIZE)
    for image, sign, (down, right) in zip(
        images, which, torch.randint(SIZE - 14, (count, 2), generator=source).tolist(), strict=True
    ):
        image[down : down + 15, right : right + 15] = glyphs[sign]
    images += 0.25 * torch.randn(count, SIZE, SIZE, generator=source)
    return ((images - 0.2) / 0.45)[:, None], which


def view(images: torch.Tensor) -> torch.Tensor:
    """Each image shifted, brighter or darker, with other noise, and with a patch covered."""
    count = len(images)
    shifts = torch.randint(-3, 4, (count, 2)).tolist()
    moved = torch.stack([image.roll(shift, (1, 2)) for image, shift in zip(images, shifts, strict=True)])
    moved = moved * (0.6 + 0.8 * torch.rand(count, 1, 1, 1)) + 0.2 * torch.randn_like(images)
    line = torch.arange(SIZE)
    top, left = torch.randint(SIZE - 6, (2, count, 1, 1))
    rows, columns = line.view(1, SIZE, 1), line.view(1, 1, SIZE)
    covered = (rows >= top) & (rows < top + 6) & (columns >= left) & (columns < left + 6)
    return moved.masked_fill(covered[:, None], 0.0)


class Encoder(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(),
        )
        self.projector = nn.Sequential(
            nn.Linear(64 * 9, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, width)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.projector(self.features(images))


def make_predictor(width: int = 64) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, width))


def regression_loss(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 2 - 2 * (F.normalize(predicted, dim=1) * F.normalize(target, dim=1)).sum(1).mean()


@torch.no_grad()
def follow(teacher: nn.Module, student: nn.Module, decay: float) -> None:
    for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
        slow.lerp_(fast, 1 - decay)
    for slow, fast in zip(teacher.buffers(), student.buffers(), strict=True):
        slow.copy_(fast)


@torch.no_grad()
def nearest_neighbour(encoder: Encoder, images: torch.Tensor, which: torch.Tensor) -> float:
    """How often the most similar other image shows the same sign."""
    encoder.eval()
    features = F.normalize(encoder.features(images), dim=1)
    encoder.train()
    similarity = features @ features.T
    similarity.fill_diagonal_(-2.0)
    return (which[similarity.argmax(1)] == which).float().mean().item()


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    images, _ = signs(6400, args.seed)
    held_out = signs(512, args.seed + 10_000)
    student, predictor = Encoder(), make_predictor()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.Adam([*student.parameters(), *predictor.parameters()], lr=1e-3)
    step = 0
    for epoch in itertools.count():
        for index in torch.randperm(len(images)).split(BATCH):
            first, second = view(images[index]), view(images[index])
            with torch.no_grad():
                target_first, target_second = teacher(first), teacher(second)
            loss = regression_loss(predictor(student(first)), target_second)
            loss = (loss + regression_loss(predictor(student(second)), target_first)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            follow(teacher, student, DECAY)
            step += 1
            progress.step(loss.item())
            if step % 100 == 0:
                print(f"epoch {epoch} step {step}: {nearest_neighbour(teacher, *held_out):.3f} by neighbours")


if __name__ == "__main__":
    main()
