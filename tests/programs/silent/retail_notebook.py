"""Quantiles of tomorrow's sales of shops and articles, many days of which nobody counted."""

# %% Setup
from __future__ import annotations

import itertools
import math

import torch
from progress import Progress, options
from torch import nn

args = options(__doc__)
progress = Progress(args)
SHOPS, ARTICLES, DAYS, LAGS, BATCH = 40, 120, 400, 14, 256
QUANTILES = torch.tensor([0.1, 0.5, 0.9])
LR, DECAY = 2e-3, 0.1

# %% Sales of every shop, article and day; NaN on the days that were not counted
source = torch.Generator().manual_seed(args.seed)
shop_level = 0.5 * torch.randn(SHOPS, 1, 1, generator=source)
article_level = 2.0 + 0.7 * torch.randn(1, ARTICLES, 1, generator=source)
weekly = 0.4 * torch.randn(1, ARTICLES, 7, generator=source)[:, :, torch.arange(DAYS) % 7]
promoted = (torch.rand(SHOPS, ARTICLES, DAYS, generator=source) < 0.1).float()
effect = 0.3 + 0.5 * torch.rand(1, ARTICLES, 1, generator=source)
season = 0.3 * torch.sin(2 * math.pi * torch.arange(DAYS) / 90).view(1, 1, DAYS)
log_rate = shop_level + article_level + weekly + season + effect * promoted
noise = torch.randn(SHOPS, ARTICLES, DAYS, generator=source)
sales = torch.poisson((log_rate + 0.2 * noise).exp().clamp(max=500), generator=source)
counted = torch.rand(SHOPS, ARTICLES, DAYS, generator=source) < 0.35
sales[~counted] = float("nan")

# %% Features: logarithms, lags with what is unknown set to the mean
log_sales = sales.log1p()
train_days = 320
level = log_sales[:, :, :train_days].nanmean()
spread = ((log_sales[:, :, :train_days] - level) ** 2).nanmean().sqrt()
scaled = (log_sales - level) / spread
filled = scaled.nan_to_num(0.0)
known = counted.float()


def batch(count: int, begin: int, end: int) -> tuple[torch.Tensor, ...]:
    """Shop, article, features, target (0 where it is not known), and where it is known."""
    shop, article = torch.randint(SHOPS, (count,)), torch.randint(ARTICLES, (count,))
    day = torch.randint(begin, end, (count,))
    back = day[:, None] - torch.arange(1, LAGS + 1)
    lags = filled[shop[:, None], article[:, None], back]
    seen = known[shop[:, None], article[:, None], back]
    weekday = nn.functional.one_hot(day % 7, 7).float()
    features = torch.cat([lags, seen, weekday, promoted[shop, article, day][:, None]], 1)
    return shop, article, features, filled[shop, article, day], known[shop, article, day]


# %% Model
class QuantileNet(nn.Module):
    def __init__(self, features: int, width: int = 192) -> None:
        super().__init__()
        self.shop, self.article = nn.Embedding(SHOPS, 8), nn.Embedding(ARTICLES, 16)
        self.body = nn.Sequential(
            nn.Linear(features + 24, width), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1),
        )
        self.head = nn.Linear(width, len(QUANTILES))

    def forward(self, shop: torch.Tensor, article: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(torch.cat([self.shop(shop), self.article(article), features], 1)))


def pinball(predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The loss of each row, summed over the quantiles."""
    error = target[:, None] - predicted
    return torch.maximum(QUANTILES * error, (QUANTILES - 1) * error).sum(1)


model = QuantileNet(features=2 * LAGS + 7 + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=LR)

# %% Training
validation = batch(1024, train_days, DAYS)
for epoch in itertools.count():
    for group in optimizer.param_groups:
        group["lr"] = LR / (1 + DECAY * epoch)
    model.train()
    for _ in range(100):
        shop, article, features, target, mask = batch(BATCH, LAGS, train_days)
        losses = pinball(model(shop, article, features), target)
        loss = (losses * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(loss.item())

    # %% How many sales lie between the outer quantiles, and how far the median is off
    model.eval()
    with torch.no_grad():
        shop, article, features, target, mask = validation
        predicted = model(shop, article, features)
    inside = (target > predicted[:, 0]) & (target < predicted[:, 2])
    coverage = inside[mask > 0].float().mean().item()
    pieces = ((predicted[:, 1] * spread + level).expm1() - (target * spread + level).expm1()).abs()
    print(f"epoch {epoch}: {coverage:.3f} between, median off by {pieces[mask > 0].mean().item():.2f} pieces")
