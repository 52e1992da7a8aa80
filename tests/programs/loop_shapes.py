"""Training loops of many shapes: where in them is one between two steps?

The variable `stage` of `train` says what the loop does; a snippet that runs between
two steps is to find it at `between`, where nothing of the next step has begun.
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ledger import Ledger, options

SHAPES = ("loader", "drawn", "functional", "prefetches", "evaluates", "accumulates", "two_loaders")
BATCH, WIDTH, EPOCH = 4, 8, 5


def batches(seed: int, length: int = EPOCH) -> DataLoader[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(length * BATCH, WIDTH, generator=generator)
    return DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=BATCH, shuffle=True)


def endless(loader: DataLoader[tuple[torch.Tensor, ...]]):
    while True:
        yield from loader


def train(shape: str, ledger: Ledger, rest_s: float) -> nn.Module:
    stage = "begin"
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 1))
    weight = nn.Parameter(torch.randn(1, WIDTH))
    trained = [weight] if shape == "functional" else list(model.parameters())
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
    loader, other, held_out = endless(batches(1)), endless(batches(2)), batches(3, 2)
    following = next(loader) if shape == "prefetches" else None
    stage = "between"
    while ledger.running:
        micro_steps = 3 if shape == "accumulates" else 1
        for _ in range(micro_steps):
            if shape in ("drawn", "functional"):
                x = torch.randn(BATCH, WIDTH)
                y = x.sum(1, keepdim=True)
            elif shape == "prefetches":
                assert following is not None
                x, y = following
            else:
                x, y = next(loader)
            if shape == "two_loaders":
                stage = "second batch"
                more, _ = next(other)
                x = (x + more) / 2
            stage = "forward"
            out = functional.linear(x, weight) if shape == "functional" else model(x)
            loss = functional.mse_loss(out, y) / micro_steps
            if shape == "prefetches":
                following = next(loader)
            stage = "backward"
            loss.backward()
            ledger.loss(loss)
            stage = "accumulating"
        stage = "optimizer"
        optimizer.step()
        stage = "after the step"
        scheduler.step()
        optimizer.zero_grad()
        if shape == "evaluates" and ledger.steps % 3 == 0:
            stage = "evaluating"
            model.eval()
            with torch.no_grad():
                for x, y in held_out:
                    functional.mse_loss(model(x), y)
            model.train()
        time.sleep(rest_s)
        stage = "between"
        ledger.step()
    ledger.extra["stage"] = stage
    return nn.ParameterList([weight, *model.parameters()])


if __name__ == "__main__":
    parser = options(__doc__)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--rest-s", type=float, default=0.0, help="time between two steps")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    ledger.finish(train(arguments.shape, ledger, arguments.rest_s))
