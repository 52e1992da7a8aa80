"""Tags short sounds (tone, chirp, clicks, hiss, hum): a 1-D convolutional network, a speaker held out."""

from __future__ import annotations

import itertools
import math

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

TAGS, SPEAKERS, EPOCHS, SAMPLES = 5, 4, 5, 2000


def recordings(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One second at 2 kHz with some of the five sounds, their tags, and who recorded it."""
    source = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(count, 1, generator=source)

    time = torch.linspace(0, 1, SAMPLES)[None]
    tags = (torch.rand(count, TAGS, generator=source) < 0.35).float()
    speakers = torch.randint(SPEAKERS, (count,), generator=source)
    begin = draw(0, 0.5)
    active = ((time > begin) & (time < begin + draw(0.3, 0.5))).float()
    sounds = [
        active * torch.sin(2 * math.pi * draw(200, 400) * time + draw(0, 6)),
        torch.sin(2 * math.pi * (draw(20, 60) * time + draw(250, 400) * time**2)),
        1.5 * (torch.rand(count, SAMPLES, generator=source) < 0.01).float(),
        active * torch.randn(count, SAMPLES, generator=source),
        torch.sin(2 * math.pi * 50 * time + draw(0, 6)),
    ]
    waves = 0.4 * torch.randn(count, SAMPLES, generator=source)
    for number, sound in enumerate(sounds):
        waves += tags[:, number : number + 1] * draw(0.4, 1.2) * sound
    loudness = 0.7 + 0.2 * speakers.float()[:, None]
    waves = waves * loudness
    return waves / waves.std(dim=1, keepdim=True), tags, speakers


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [1, 16, 32, 48]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv1d(a, b, 9, stride=4, padding=4), nn.BatchNorm1d(b), nn.ReLU())
            for a, b in itertools.pairwise(widths)
        )
        self.head = nn.Linear(2 * widths[-1], TAGS)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        x = wave[:, None]
        for block in self.blocks:
            x = block(x)
        return self.head(torch.cat([x.mean(2), x.amax(2)], 1))


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    """F1 over all tags."""
    model.eval()
    both = said = there = 0.0
    with torch.no_grad():
        for wave, tags in loader:
            predicted = model(wave) > 0.0
            both += (predicted & (tags > 0)).sum().item()
            said += predicted.sum().item()
            there += tags.sum().item()
    return 2 * both / max(said + there, 1.0)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    waves, tags, speakers = recordings(3200, args.seed)
    for speaker in itertools.cycle(range(SPEAKERS)):
        train_set = TensorDataset(waves[speakers != speaker], tags[speakers != speaker])
        test_set = TensorDataset(waves[speakers == speaker], tags[speakers == speaker])
        train_loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True)
        test_loader = DataLoader(test_set, batch_size=128)
        model = Tagger()
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        for epoch in range(EPOCHS):
            model.train()
            for wave, wanted in train_loader:
                shift = int(torch.randint(SAMPLES, ()))
                loss = F.binary_cross_entropy_with_logits(model(wave.roll(shift, 1)), wanted)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                progress.step(loss.item())
            print(f"without speaker {speaker}, epoch {epoch}: F1 {evaluate(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
