"""Loops without an optimizer of torch: the program updates its parameters itself.

    module       model.zero_grad(), then `p.data.add_(p.grad, alpha=-rate)` after backward
    loader       the same with a DataLoader
    accumulates  two backwards before each update; `grad = None` after it
    clears       no zero_grad: under no_grad `p -= rate * p.grad; p.grad.zero_()`
    tensors      no module either
    adam_later   some steps by hand, then an optimizer is made
    never        only backwards, no update
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ledger import Ledger, options

SHAPES = ("module", "loader", "accumulates", "clears", "tensors", "adam_later", "never")
BATCH, WIDTH, RATE = 4, 8, 0.01
LATER = 10
"""Step from which `adam_later` has an optimizer."""


def batches(shape: str, ledger: Ledger):
    data = torch.randn(5 * BATCH, WIDTH)
    loader = DataLoader(TensorDataset(data), batch_size=BATCH)
    while True:
        if shape == "loader":
            for (x,) in loader:
                ledger.fetched("loader")
                yield x
        else:
            yield from data.split(BATCH)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("shape", choices=SHAPES)
    arguments = parser.parse_args()
    shape, ledger = arguments.shape, Ledger(arguments)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    weight = torch.zeros(WIDTH, 1, requires_grad=True)
    parameters = [weight] if shape == "tensors" else list(model.parameters())
    optimizer = None
    feed = batches(shape, ledger)
    while ledger.running:
        if shape == "adam_later" and ledger.steps == LATER:
            optimizer = torch.optim.Adam(parameters, lr=RATE)
        for _ in range(2 if shape == "accumulates" else 1):
            x = next(feed)
            if shape in ("module", "loader", "adam_later"):
                model.zero_grad()
            out = x @ weight if shape == "tensors" else model(x)
            loss = (out - x.sum(1, keepdim=True)).square().mean()
            loss.backward()
            ledger.loss(loss)
        if optimizer is not None:
            optimizer.step()
        elif shape in ("clears", "tensors"):
            with torch.no_grad():
                for one in parameters:
                    assert one.grad is not None
                    one -= RATE * one.grad
                    one.grad.zero_()
        elif shape != "never":
            for one in parameters:
                assert one.grad is not None
                one.data.add_(one.grad, alpha=-RATE)
                if shape == "accumulates":
                    one.grad = None
        ledger.step()
    ledger.finish(nn.ParameterList([weight, *model.parameters()]))


if __name__ == "__main__":
    main()
