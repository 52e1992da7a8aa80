"""Learns to recognise symbols by comparison: a small network, a softmax over learned proxies, Adam."""

from __future__ import annotations

import itertools

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F

SYMBOLS, SIZE, BATCH = 40, 24, 64


def symbols(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images of forty symbols, shifted and dimmed, and which one each is."""
    coarse = torch.rand(SYMBOLS, 1, 6, 6, generator=torch.Generator().manual_seed(5))
    glyphs = F.interpolate(coarse, size=18)[:, 0]
    source = torch.Generator().manual_seed(seed)
    which = torch.randint(SYMBOLS, (count,), generator=source)
    images = torch.zeros(count, SIZE, SIZE)
    shifts = torch.randint(SIZE - 17, (count, 2), generator=source).tolist()
    for image, symbol, (down, right) in zip(images, which, shifts, strict=True):
        image[down : down + 18, right : right + 18] = (glyphs[symbol] > 0.5).float()
    images *= 0.5 + torch.rand(count, 1, 1, generator=source)
    images += 0.5 * torch.randn(count, SIZE, SIZE, generator=source)
    return ((images - 0.3) / 0.65)[:, None], which


class Embedder(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(),
        )
        self.out = nn.Linear(32 * 36, width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.normalize(self.out(self.features(images).flatten(1)), dim=1)


class ProxyLoss(nn.Module):
    """Each symbol has a proxy; an embedding is to be nearest to its own."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.randn(classes, width))
        self.log_scale = nn.Parameter(torch.tensor(2.3))

    def forward(self, embeddings: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        similarity = embeddings @ F.normalize(self.proxies, dim=1).T
        return F.cross_entropy(self.log_scale.exp() * similarity, which)


@torch.no_grad()
def recall(model: nn.Module, images: torch.Tensor, which: torch.Tensor) -> float:
    """How often the nearest other image shows the same symbol."""
    model.eval()
    embeddings = model(images)
    similarity = (embeddings @ embeddings.T).fill_diagonal_(-2.0)
    model.train()
    return (which[similarity.argmax(1)] == which).float().mean().item()


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    images, which = symbols(8000, args.seed)
    test_images, test_which = symbols(400, args.seed + 10_000)
    model, criterion = Embedder(), ProxyLoss(SYMBOLS)
    optimizer = torch.optim.Adam([*model.parameters(), *criterion.parameters()], lr=1e-3)
    for step in itertools.count(1):
        index = torch.randint(len(images), (BATCH,))
        loss = criterion(model(images[index]), which[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(loss.item())
        if step % 200 == 0:
            print(f"step {step}: recall {recall(model, test_images, test_which):.3f}")


if __name__ == "__main__":
    main()
