"""A character GPT and its text: Python's own standard library, found on any machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

CHARACTERS = 128
"""ASCII; everything else reads as `?`."""


class Size(NamedTuple):
    """Dimensions of the model and the batch."""

    layers: int
    width: int
    heads: int
    block: int
    batch: int


SIZES = {
    "tiny": Size(layers=2, width=32, heads=2, block=32, batch=4),
    "short": Size(layers=2, width=96, heads=4, block=64, batch=8),
    "small": Size(layers=4, width=128, heads=4, block=64, batch=16),
    "medium": Size(layers=4, width=128, heads=4, block=64, batch=20),
}
"""`tiny` for tests; on two cores a step of `short` takes roughly 20 ms, of `medium` 60 to 100 ms."""


def standard_library_text(characters: int = 1 << 20) -> torch.Tensor:
    """The first characters of the standard library's sources, as numbers."""
    table = bytes(value if value < CHARACTERS else ord("?") for value in range(256))
    text = bytearray()
    for source in sorted(Path(os.__file__).parent.glob("*.py")):
        text += source.read_bytes().translate(table)
        if len(text) >= characters:
            break
    return torch.frombuffer(text[:characters], dtype=torch.uint8).long()


class Characters(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Windows of the text and the same windows one character later."""

    def __init__(self, text: torch.Tensor, block: int) -> None:
        self.text = text
        self.block = block

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.block

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.block
        return self.text[start : start + self.block], self.text[start + 1 : start + self.block + 1]


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, block, width = x.shape
        q, k, v = self.qkv(x).view(batch, block, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, block, width))


class Block(nn.Module):
    """Attention and a feed-forward network, each on the residual stream."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention = Attention(size)
        self.mlp_norm = nn.LayerNorm(size.width)
        self.mlp = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """A small decoder; `forward` gives the logits of every next character."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.token = nn.Embedding(CHARACTERS, size.width)
        self.position = nn.Embedding(size.block, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, CHARACTERS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
