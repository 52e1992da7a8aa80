"""Forecasts the next day of many households' hourly load from three days: a GRU that decodes hour by hour."""

from __future__ import annotations

import itertools
import math
import random

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F

PAST, AHEAD, HOURS, BATCH = 72, 24, 2400, 32


def loads(households: int, seed: int) -> torch.Tensor:
    """kWh of each hour: days, weeks, a slow trend, and what is left over."""
    source = torch.Generator().manual_seed(seed)

    def draw(low: float, high: float) -> torch.Tensor:
        return low + (high - low) * torch.rand(households, 1, generator=source)

    hour = torch.arange(HOURS).float()[None]
    load = 5 + draw(1, 3) * torch.sin(2 * math.pi * (hour / 24 + draw(0, 1)))
    load += draw(0.5, 1.5) * torch.sin(2 * math.pi * (hour / 12 + draw(0, 1)))
    load += draw(0.3, 1) * torch.sin(2 * math.pi * (hour / 168 + draw(0, 1)))
    rest = 0.4 * torch.randn(households, HOURS, generator=source)
    for now in range(1, HOURS):
        rest[:, now] += 0.7 * rest[:, now - 1]
    return load + rest + 0.3 * hour / HOURS


class Forecaster(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.encoder = nn.GRU(3, width, batch_first=True)
        self.decoder = nn.GRUCell(3, width)
        self.out = nn.Linear(width, 1)

    def forward(
        self, past: torch.Tensor, clock: torch.Tensor, future: torch.Tensor, forcing: float
    ) -> torch.Tensor:
        """`forcing`: how often the true load of an hour, and not the forecast one, leads to the next."""
        _, state = self.encoder(torch.cat([past[..., None], clock[:, :PAST]], 2))
        state, value, forecast = state[0], past[:, -1], []
        for ahead in range(AHEAD):
            state = self.decoder(torch.cat([value[:, None], clock[:, PAST + ahead]], 1), state)
            forecast.append(self.out(state)[:, 0])
            value = future[:, ahead] if random.random() < forcing else forecast[-1]
        return torch.stack(forecast, 1)


class Windows:
    """Windows of three days and the day after them, anywhere in the hours from `begin` to `end`."""

    def __init__(self, series: torch.Tensor, begin: int, end: int) -> None:
        self.series, self.begin, self.end = series, begin, end
        angle = 2 * math.pi * torch.arange(HOURS) / 24
        self.clock = torch.stack([angle.sin(), angle.cos()], 1)

    def batch(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        household = torch.randint(len(self.series), (count, 1))
        start = torch.randint(self.begin, self.end - PAST - AHEAD + 1, (count, 1))
        hours = start + torch.arange(PAST + AHEAD)
        values = self.series[household, hours]
        return values[:, :PAST], self.clock[hours], values[:, PAST:]


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    random.seed(args.seed)
    series = loads(200, args.seed)
    split = 2000
    known = series[:, :split]
    series = (series - known.mean()) / known.std()
    train, val = Windows(series, 0, split), Windows(series, split, HOURS)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in itertools.count(1):
        past, clock, future = train.batch(BATCH)
        forecast = model(past, clock, future, forcing=0.5)
        loss = F.mse_loss(forecast, future)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        progress.step(loss.item())
        if step % 200 == 0:
            with torch.no_grad():
                past, clock, future = val.batch(128)
                error = F.l1_loss(model(past, clock, future, forcing=0.0), future).item()
            print(f"step {step}: error of the next days {error * known.std():.3f} kWh")


if __name__ == "__main__":
    main()
