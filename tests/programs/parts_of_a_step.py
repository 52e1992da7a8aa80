"""Steps whose loss comes in parts, in the ways jobs divide it, or whose optimizer calls a closure.

`logged` of the result: each step's loss as the job would log it. `--way closure`: the closure also does work
of its own for `CLOSURE_S`.
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from ledger import Ledger, options

PARTS, INCOMPLETE_EVERY = 4, 5
CLOSURE_S = 0.02
WAYS = ("divided", "multiplied", "by items", "whole", "weighted", "packed", "scaled", "closure")


def micro_losses(way: str, number: int, out: torch.Tensor, labels: torch.Tensor, items: int) -> torch.Tensor:
    """What backward is called on in this micro step."""
    if way == "by items":
        return cross_entropy(out, labels, reduction="sum") / torch.tensor(items)
    loss = cross_entropy(out, labels)
    if way == "multiplied":
        return (1 / PARTS) * loss
    if way == "weighted":  # two tasks, not two parts of one loss
        return loss * (0.1 if number else 1.0)
    return loss if way == "whole" else loss / PARTS


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--way", choices=WAYS, required=True)
    arguments = parser.parse_args()
    ledger, way = Ledger(arguments), arguments.way
    model = nn.Linear(8, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=way == "scaled")
    hooks = torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone)
    logged: list[float] = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = cross_entropy(model(torch.randn(4, 8)), torch.randint(0, 3, (4,)))
        loss.backward()
        ledger.loss(loss)
        logged.append(float(loss.detach()))
        time.sleep(CLOSURE_S)
        return loss

    while ledger.running:
        if way == "closure":
            optimizer.step(closure)
            ledger.step()
            continue
        short = way == "divided" and ledger.steps % INCOMPLETE_EVERY == INCOMPLETE_EVERY - 1
        parts = 2 if way == "weighted" else PARTS - 1 if short else PARTS
        sizes = [3 + part for part in range(parts)]
        losses = []
        optimizer.zero_grad()
        for number, size in enumerate(sizes):
            rows, labels = torch.randn(size, 8), torch.randint(0, 3, (size,))
            if way == "packed":
                with hooks:
                    loss = micro_losses("by items", number, model(rows), labels, sum(sizes))
            else:
                loss = micro_losses(way, number, model(rows), labels, sum(sizes))
            scaler.scale(loss).backward()
            ledger.loss(loss)
            losses.append(float(loss.detach()))
        seen = sum(losses) if way in ("divided", "multiplied", "by items", "scaled") else sum(losses) / parts
        logged.append(seen * PARTS / parts if way == "divided" else seen)
        scaler.step(optimizer)
        scaler.update()
        ledger.step()
    ledger.extra = {"logged": logged}
    ledger.finish(model)


if __name__ == "__main__":
    main()
