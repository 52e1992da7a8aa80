"""Accelerate: a hand-written loop whose model, optimizer, loader and scheduler are wrapped by `prepare`."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from account import Account, options
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, ACCUMULATION = 64, 4, 2


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))


def build() -> tuple[Classifier, torch.optim.Optimizer, DataLoader[Any], Any]:
    """What a script makes before `prepare`."""
    x = torch.randn(SAMPLES, 8)
    loader = DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=BATCH, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=4000)
    return model, optimizer, loader, scheduler


def main() -> None:
    arguments = options(__doc__).parse_args()
    account = Account(arguments)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
    model, optimizer, train_dataloader, lr_scheduler = accelerator.prepare(*build())
    state = None
    if arguments.resume:
        import probe

        state = probe.load_checkpoint(
            arguments.resume, model=model, optimizer=optimizer.optimizer, lr_scheduler=lr_scheduler.scheduler,
        )
        account.most -= state.step or 0
        train_dataloader.set_epoch(state.epoch or 0)
    epoch = 0 if state is None else state.epoch or 0
    while account.steps < account.most:
        batches = train_dataloader if state is None else state.rest_of(train_dataloader)
        state = None
        for x, y in batches:
            account.samples += len(x)
            with accelerator.accumulate(model):
                loss = functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                lr_scheduler.step()
                optimizer.zero_grad()
            account.loss(loss.detach())
            if accelerator.sync_gradients:
                account.rates.append(lr_scheduler.get_last_lr()[0])
                account.step()
                if account.steps >= account.most:
                    break
        epoch += 1
    account.finish(accelerator.unwrap_model(model))


if __name__ == "__main__":
    main()
