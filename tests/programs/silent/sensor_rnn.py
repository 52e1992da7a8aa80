"""Recognises gestures in the readings of a wrist sensor, of any length: a bidirectional LSTM, Adam."""

from __future__ import annotations

import itertools
import math

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader

CHANNELS, GESTURES = 6, 5


def readings(count: int, seed: int) -> list[tuple[torch.Tensor, int]]:
    """Readings of 20 to 60 moments (NaN where the sensor said nothing), and which gesture it was."""
    source = torch.Generator().manual_seed(seed)
    directions = torch.randn(GESTURES, 2, CHANNELS, generator=torch.Generator().manual_seed(11))
    offsets = torch.linspace(-2, 9.8, CHANNELS)
    found = []
    for _ in range(count):
        length = int(torch.randint(20, 61, (), generator=source))
        gesture = int(torch.randint(GESTURES, (), generator=source))
        time = torch.linspace(0, 1, length)[:, None]
        phase, speed = torch.rand(2, generator=source).tolist()
        wave = torch.sin(2 * math.pi * ((1 + speed + 0.4 * gesture) * time + phase))
        reading = wave * directions[gesture, 0] + 2 * time * directions[gesture, 1]
        reading = 1.5 * reading + 4.5 * torch.randn(length, CHANNELS, generator=source) + offsets
        reading[torch.rand(length, CHANNELS, generator=source) < 0.03] = float("nan")
        found.append((reading, gesture))
    return found


class Gestures(torch.utils.data.Dataset):
    def __init__(self, found: list[tuple[torch.Tensor, int]], mean: torch.Tensor, std: torch.Tensor) -> None:
        self.items = [(((reading - mean) / std).nan_to_num(0.0), gesture) for reading, gesture in found]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.items[index]


def collate(batch: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    values, gestures = zip(*batch, strict=True)
    lengths = torch.tensor([len(reading) for reading in values])
    return pad_sequence(values, batch_first=True), lengths, torch.tensor(gestures)


class Recogniser(nn.Module):
    def __init__(self, hidden: int = 64) -> None:
        super().__init__()
        self.hidden = hidden
        self.lstm = nn.LSTM(CHANNELS, hidden, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(
            nn.Linear(2 * hidden, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, GESTURES)
        )

    def forward(self, values: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(values, lengths, batch_first=True, enforce_sorted=False)
        outputs, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        last = outputs[torch.arange(len(values)), lengths - 1]
        first = outputs[:, 0]
        return self.head(torch.cat([last[:, : self.hidden], first[:, self.hidden :]], 1))


def test(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    with torch.no_grad():
        right = [(model(values, lengths).argmax(1) == wanted).float() for values, lengths, wanted in loader]
    model.train()
    return torch.cat(right).mean().item()


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    found = readings(4000, args.seed)
    everything = torch.cat([reading for reading, _ in found])
    mean = everything.nanmean(0)
    std = ((everything - mean) ** 2).nanmean(0).sqrt()
    train_set = Gestures(found, mean, std)
    test_set = Gestures(readings(256, args.seed + 10_000), mean, std)
    loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True, collate_fn=collate)
    test_loader = DataLoader(test_set, batch_size=64, collate_fn=collate)
    model = Recogniser()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in itertools.count():
        for values, lengths, gestures in loader:
            loss = F.cross_entropy(model(values, lengths), gestures)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            progress.step(loss.item())
        print(f"epoch {epoch}: loss {loss.item():.3f}, {test(model, test_loader):.3f} recognised")


if __name__ == "__main__":
    main()
