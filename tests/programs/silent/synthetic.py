"""Small data sets made on the spot: digits, shapes with masks, text, a table, tagged sentences."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch.nn import functional as F

WORDS, TAGS, PADDING = 60, 5, 0


def digits(count: int, size: int = 28, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Grey images (uint8) of ten glyphs, shifted, dimmed and noisy, and their classes."""
    glyphs = F.interpolate(torch.rand(10, 1, 5, 5, generator=torch.Generator().manual_seed(7)), size=size - 8)
    glyphs = (glyphs[:, 0] > 0.55).float()
    source = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (count,), generator=source)
    shifts = torch.randint(9, (count, 2), generator=source)
    images = torch.zeros(count, size, size)
    for image, label, (down, right) in zip(images, labels, shifts.tolist(), strict=True):
        image[down : down + size - 8, right : right + size - 8] = glyphs[label]
    images = images * (0.4 + 0.6 * torch.rand(count, 1, 1, generator=source))
    images = images + 0.3 * torch.randn(count, size, size, generator=source)
    return (images.clamp(0, 1) * 255).byte(), labels


def shapes(count: int, size: int = 32, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Colour images (uint8) with a disc and a bar on noise, and masks: 1 on the disc, 0 elsewhere."""
    source = torch.Generator().manual_seed(seed)
    line = torch.arange(size).float()
    down, right = line.view(1, size, 1), line.view(1, 1, size)
    middles = 6 + (size - 12) * torch.rand(count, 4, 1, 1, generator=source)
    radius = 4 + 4 * torch.rand(count, 1, 1, generator=source)
    disc = (down - middles[:, 0]) ** 2 + (right - middles[:, 1]) ** 2 < radius**2
    bar = ((down - middles[:, 2]).abs() < 3) & ((right - middles[:, 3]).abs() < 8) & ~disc
    images = 0.25 * torch.rand(count, 3, size, size, generator=source)
    images += disc[:, None] * torch.tensor([0.6, 0.3, 0.1]).view(1, 3, 1, 1)
    images += bar[:, None] * torch.tensor([0.1, 0.3, 0.6]).view(1, 3, 1, 1)
    return (images.clamp(0, 1) * 255).byte(), disc.long()


def text(characters: int = 1 << 19) -> torch.Tensor:
    """Characters of Python's standard library as numbers below 128."""
    found = bytearray()
    for source in sorted(Path(os.__file__).parent.glob("*.py")):
        found += bytes(value if value < 128 else 63 for value in source.read_bytes())
        if len(found) >= characters:
            break
    return torch.frombuffer(found[:characters], dtype=torch.uint8).long()


def table(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of houses (area, rooms, year, income, four more) and their prices, scaled."""
    source = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 8, generator=source)
    price = 1.2 * rows[:, 0] + (rows[:, 1] * rows[:, 2]).tanh() + rows[:, 3].sin() - 0.5 * rows[:, 4].abs()
    scales = torch.tensor([60.0, 1.5, 25.0, 30000.0, 4.0, 2.0, 12.0, 1.0])
    means = torch.tensor([120.0, 4.0, 1975.0, 52000.0, 9.0, 1.0, 30.0, 0.0])
    return rows * scales + means, price + 0.1 * torch.randn(count, generator=source)


def sentences(count: int, seed: int = 0) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Sentences of 5 to 24 words (numbers from 1) and a tag for each word, which depends on its neighbour."""
    source = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 25, (count,), generator=source).tolist()
    found = []
    for length in lengths:
        words = torch.randint(1, WORDS, (length,), generator=source)
        before = torch.cat([words.new_zeros(1), words[:-1]])
        found.append((words, torch.where(words % 3 == 0, (words + before) % (TAGS - 1) + 1, 0)))
    return found
