"""Job 3: gradients of 4 micro steps, bf16 autocast, a GradScaler that skips one step, cosine LR with warm-up.

`losses` holds what each backward was called on with the scaler's factor removed: a quarter
of the micro batch's mean.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from gpt import GPT, SIZES, Characters, standard_library_text
from ledger import Ledger, options

MICRO_STEPS = 4
WARM_UP_STEPS = 4
PERIOD_STEPS = 100
INFINITE_AT_STEP = 2
"""Gradients of this step are made infinite, so the scaler skips it and halves its factor."""


def warm_up_then_cosine(step: int) -> float:
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    return 0.5 * (1 + math.cos(math.pi * (step % PERIOD_STEPS) / PERIOD_STEPS))


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    size = SIZES["tiny"]
    train_loader = DataLoader(
        Characters(standard_library_text(), size.block), batch_size=size.batch, shuffle=True, drop_last=True
    )
    model = GPT(size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, warm_up_then_cosine)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    rates: list[float] = []
    scales: list[float] = []
    batches = iter(train_loader)
    while ledger.running:
        optimizer.zero_grad()
        for _ in range(MICRO_STEPS):
            try:
                tokens, targets = next(batches)
            except StopIteration:
                batches = iter(train_loader)
                tokens, targets = next(batches)
            ledger.fetched("train_loader")
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(tokens)
            loss = functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten()) / MICRO_STEPS
            scaler.scale(loss).backward()
            ledger.loss(loss)
        if ledger.steps == INFINITE_AT_STEP:
            model.head.weight.grad[0, 0] = math.inf
        scales.append(scaler.get_scale())
        rates.append(optimizer.param_groups[0]["lr"])
        scaler.step(optimizer)
        scaler.update()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch takes the skipped step for a wrong order of calls
            scheduler.step()
        ledger.step(skipped=scaler.get_scale() < scales[-1])
    ledger.extra = {"learning_rates": rates, "loss_scales": scales, "micro_steps_per_step": MICRO_STEPS}
    ledger.finish(model)


if __name__ == "__main__":
    main()
