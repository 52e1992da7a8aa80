"""A character GPT, its whole loop in `main()`: a schedule, a gradient scaler, a list to note things in."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from gpt import GPT, SIZES, Characters, standard_library_text
from ledger import Ledger, options


def build(size: str = "tiny") -> tuple[Any, ...]:
    """Everything that a run begins with, in the order in which random numbers are drawn for it."""
    sizes = SIZES[size]
    train_loader = DataLoader(
        Characters(standard_library_text(), sizes.block), batch_size=sizes.batch, shuffle=True, drop_last=True
    )
    model = GPT(sizes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100_000)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return model, optimizer, scheduler, scaler, train_loader


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model, optimizer, scheduler, scaler, train_loader = build(arguments.size)
    notes: list[tuple[int, int]] = []
    ledger.extra["notes"] = notes
    while ledger.running:
        for tokens, targets in train_loader:
            ledger.fetched("train_loader")
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            scaler.scale(loss).backward()
            ledger.loss(loss)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            ledger.step()
            if not ledger.running:
                break
    ledger.finish(model)


if __name__ == "__main__":
    main()
