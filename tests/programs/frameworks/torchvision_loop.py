"""A loop as torchvision's references have it: `train_one_epoch`, a schedule by epochs, `evaluate`, an
exponential average of the model."""

from __future__ import annotations

from typing import Any

import torch
from account import Account, options
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH = 48, 4


def train_one_epoch(
    model: nn.Module, criterion: nn.Module, optimizer: Any, data_loader: Any, epoch: int, model_ema: Any,
    lr_scheduler: Any, account: Account,
) -> None:
    model.train()
    for image, target in data_loader:
        account.samples += len(image)
        output = model(image)
        loss = criterion(output, target)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model_ema.update_parameters(model)
        account.loss(loss.item())
        account.rates.append(optimizer.param_groups[0]["lr"])
        account.step()
        if account.steps >= account.most:
            return
    lr_scheduler.step()


def evaluate(model: nn.Module, criterion: nn.Module, data_loader: Any, account: Account) -> None:
    model.eval()
    with torch.inference_mode():
        for image, target in data_loader:
            criterion(model(image), target)
            account.evaluated += 1


def images(samples: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 3, 8, 8, generator=generator)
    return TensorDataset(x, (x.mean((1, 2, 3)) > 0).long())


def main() -> None:
    args = options(__doc__).parse_args()
    account = Account(args)
    account.most = args.steps
    data_loader = DataLoader(images(SAMPLES, 1), batch_size=BATCH, shuffle=True)
    data_loader_test = DataLoader(images(8, 2), batch_size=BATCH)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 2),
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    lr_scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [
        torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=2),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40),
    ], milestones=[2])
    model_ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    start_epoch, state = 0, None
    if args.resume:
        import probe

        state = probe.load_checkpoint(
            args.resume, model=model, optimizer=optimizer, lr_scheduler=lr_scheduler, model_ema=model_ema
        )
        start_epoch = state.epoch or 0
        account.most -= state.step or 0
    for epoch in range(start_epoch, 10_000):
        batches = data_loader if state is None else state.rest_of(data_loader)
        state = None
        train_one_epoch(model, criterion, optimizer, batches, epoch, model_ema, lr_scheduler, account)
        if account.steps >= account.most:
            break
        evaluate(model, criterion, data_loader_test, account)
    account.finish(model)


if __name__ == "__main__":
    main()
