"""Finds an object or two in each image, their kinds and boxes: three losses, weights learned, a cosine rate.

With `--out`, it starts from the weights there, if there are any, and writes them every hundred steps.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F

KINDS, SIZE, CELLS = 4, 48, 6
CELL = SIZE // CELLS
RATE = 2e-3


def scenes(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Images, and for each cell: whether an object's middle is in it, of which kind it is, and its box."""
    source = torch.Generator().manual_seed(seed)
    images = 0.5 * torch.randn(count, 3, SIZE, SIZE, generator=source)
    there, boxes = torch.zeros(count, CELLS, CELLS), torch.zeros(count, 4, CELLS, CELLS)
    kinds = torch.zeros(count, CELLS, CELLS, dtype=torch.long)
    colours = torch.tensor([[1.5, 0.2, 0.2], [0.2, 1.5, 0.2], [0.2, 0.2, 1.5], [1.2, 1.2, 0.0]])
    for number in range(count):
        for _ in range(int(torch.randint(1, 3, (), generator=source))):
            down, right = torch.randint(6, SIZE - 6, (2,), generator=source).tolist()
            height, width = torch.randint(3, 7, (2,), generator=source).tolist()
            kind = int(torch.randint(KINDS, (), generator=source))
            top, left = max(down - height, 0), max(right - width, 0)
            area = images[number, :, top : down + height, left : right + width]
            area += colours[kind].view(3, 1, 1)
            row, column = down // CELL, right // CELL
            there[number, row, column], kinds[number, row, column] = 1.0, kind
            box = [down % CELL / CELL, right % CELL / CELL, height / CELL, width / CELL]
            boxes[number, :, row, column] = torch.tensor(box)
    return images, there, kinds, boxes


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
            nn.Conv2d(64, 64, 3, 1, 1), nn.BatchNorm2d(64), nn.ReLU(),
        )
        self.objectness = nn.Conv2d(64, 1, 1)
        self.kind = nn.Conv2d(64, KINDS, 1)
        self.box = nn.Conv2d(64, 4, 1)

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        x = self.backbone(images)
        return self.objectness(x).squeeze(1), self.kind(x), self.box(x)


class DetectionLoss(nn.Module):
    """The three losses, each with a weight that is learned (by its uncertainty)."""

    def __init__(self) -> None:
        super().__init__()
        self.log_variances = nn.Parameter(torch.zeros(3))

    def forward(
        self, outputs: tuple[torch.Tensor, ...], there: torch.Tensor, kinds: torch.Tensor, boxes: torch.Tensor
    ) -> torch.Tensor:
        objectness, kind, box = outputs
        wanted = there > 0
        present = F.binary_cross_entropy_with_logits(objectness, there, reduction="none").mean()
        named = F.cross_entropy(kind.movedim(1, 3)[wanted], kinds[wanted])
        boxed = F.smooth_l1_loss(box.movedim(1, 3)[wanted], boxes.movedim(1, 3)[wanted])
        total = 0.0
        for part, log_variance in zip((present, named, boxed), self.log_variances, strict=True):
            total += part * torch.exp(-log_variance) + 0.5 * log_variance
        return total


@torch.no_grad()
def found(model: nn.Module, scene: tuple[torch.Tensor, ...]) -> float:
    """Share of the objects that are found and named rightly."""
    model.eval()
    objectness, kind, _ = model(scene[0])
    model.train()
    right = (objectness > 0) & (kind.argmax(1) == scene[2])
    return right[scene[1] > 0].float().mean().item()


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    weights = Path(args.out) / "detector.pt" if args.out else None
    train, held_out = scenes(3200, args.seed), scenes(200, args.seed + 10_000)
    model, criterion = Detector(), DetectionLoss()
    parameters = [*model.parameters(), *criterion.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps or 30_000)
    if weights and weights.exists():
        saved = torch.load(weights, weights_only=True)
        model.load_state_dict(saved["model"])
        criterion.load_state_dict(saved["criterion"])
    step = 0
    for epoch in itertools.count():
        for index in torch.randperm(3200).split(32):
            outputs = model(train[0][index])
            loss = criterion(outputs, *(part[index] for part in train[1:]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            step += 1
            if weights and step % 100 == 0:
                state = {"model": model, "criterion": criterion, "optimizer": optimizer}
                torch.save({name: holder.state_dict() for name, holder in state.items()}, weights)
            progress.step(loss.item())
        print(f"epoch {epoch}: {found(model, held_out):.3f} found")


if __name__ == "__main__":
    main()
