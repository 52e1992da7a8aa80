"""Predicts the energy use of buildings from a table with gaps: cross-validation in five folds, AdamW."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from progress import Progress, options
from torch import nn

FOLDS, EPOCHS, BATCH, COLUMNS = 5, 16, 256, 240


def buildings(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Measurements (float64, NaN where there is none) and energy use in MWh a year."""
    source = np.random.default_rng(seed)
    columns = source.normal(size=(count, COLUMNS))
    use = (
        2.0 * columns[:, 0] + 1.5 * columns[:, 1] * columns[:, 2] + np.sin(2 * columns[:, 3])
        + np.abs(columns[:, 4]) - 0.8 * columns[:, 5] + columns[:, 6:20] @ source.normal(size=14) * 0.3
    )
    rows = columns * source.uniform(0.5, 40, size=COLUMNS) + source.uniform(-20, 60, size=COLUMNS)
    rows[source.random(rows.shape) < 0.06] = np.nan
    return rows, 18.0 + 4.0 * use + source.normal(size=count)


def make_model(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(width, 512), nn.LayerNorm(512), nn.ReLU(), nn.Dropout(0.1),
        nn.Linear(512, 256), nn.ReLU(),
        nn.Linear(256, 1),
    )


def prepared(rows: np.ndarray, fitted: np.ndarray) -> np.ndarray:
    """Columns of mean 0 and deviation 1 over `fitted`; a gap is the column's mean."""
    mean, deviation = np.nanmean(fitted, 0), np.nanstd(fitted, 0)
    return np.nan_to_num((rows - mean) / deviation, nan=0.0).astype(np.float32)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    rows, use = buildings(8000, args.seed)
    source = np.random.default_rng(args.seed)
    for repeat in itertools.count():
        order = source.permutation(len(rows))
        for fold, held_out in enumerate(np.array_split(order, FOLDS)):
            chosen = np.setdiff1d(order, held_out)
            x_train = prepared(rows[chosen], fitted=rows[chosen])
            x_val = prepared(rows[held_out], fitted=rows[chosen])
            mean, deviation = use[chosen].mean(), use[chosen].std()
            y_train = ((use[chosen] - mean) / deviation).astype(np.float32)
            model = make_model(rows.shape[1])
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
            for _ in range(EPOCHS):
                model.train()
                shuffled = source.permutation(len(chosen))
                for index in np.array_split(shuffled, len(shuffled) // BATCH):
                    x = torch.from_numpy(x_train[index])
                    y = torch.from_numpy(y_train[index])
                    loss = nn.functional.mse_loss(model(x).squeeze(1), y)
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    progress.step(loss.item())
            model.eval()
            with torch.no_grad():
                predicted = model(torch.from_numpy(x_val)).squeeze(1).numpy() * deviation + mean
            error = np.abs(predicted - use[held_out]).mean()
            print(f"repeat {repeat} fold {fold}: mean absolute error {error:.3f} MWh")


if __name__ == "__main__":
    main()
