"""The recogniser of handwriting.py and its loss."""

from __future__ import annotations

import torch
from torch import nn


class Recogniser(nn.Module):
    """Columns of an image become the logarithms of the probabilities of signs: convolutions, then an LSTM."""

    def __init__(self, height: int, signs: int, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d((2, 1)),
        )
        self.rnn = nn.LSTM(32 * (height // 4), width, bidirectional=True)
        self.classifier = nn.Linear(2 * width, signs + 1)

    def forward(
        self, strips: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        x = self.stem(strips[:, None]).permute(3, 0, 1, 2).flatten(2)
        x, state = self.rnn(x, state)
        return self.classifier(x).log_softmax(2), state


class SequenceLoss(nn.Module):
    """CTC per sign; 0 is the blank."""

    def __init__(self) -> None:
        super().__init__()
        self.ctc = nn.CTCLoss(blank=0, zero_infinity=True)

    def forward(
        self, log_probs: torch.Tensor, signs: torch.Tensor, columns: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        return self.ctc(log_probs, signs, (columns // 2).clamp(max=log_probs.shape[0]), lengths)


def decoded(log_probs: torch.Tensor, columns: torch.Tensor) -> list[list[int]]:
    """The most probable sign of every column, without repetitions and blanks."""
    found = []
    for best, length in zip(log_probs.argmax(2).T.tolist(), (columns // 2).tolist(), strict=True):
        best = best[:length]
        kept = [sign for sign, before in zip(best, [0, *best[:-1]], strict=True) if sign not in (0, before)]
        found.append(kept)
    return found
