"""The loop of PyTorch's DDP tutorial under torchrun: a Trainer class, DistributedSampler, gloo.

`--shard`: that of the FSDP tutorial, `fully_shard` of each layer and of the model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from account import Account, options
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SAMPLES, BATCH = 64, 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.out = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = functional.relu(layer(x))
        return self.out(x)


class Trainer:
    def __init__(self, model: Any, train_data: Any, optimizer: Any, scheduler: Any, account: Account) -> None:
        self.model = model
        self.train_data = train_data
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.account = account

    def _run_batch(self, source: torch.Tensor, targets: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        output = self.model(source)
        loss = functional.cross_entropy(output, targets)
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.account.samples += len(source)
        self.account.rates.append(self.optimizer.param_groups[0]["lr"])
        self.account.loss(loss.detach())
        self.account.step()

    def train(self) -> None:
        for epoch in range(10_000):
            self.train_data.sampler.set_epoch(epoch)
            for source, targets in self.train_data:
                if self.account.steps >= self.account.most:
                    return
                self._run_batch(source, targets)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--shard", action="store_true")
    arguments = parser.parse_args()
    dist.init_process_group("gloo")
    account = Account(arguments)
    x = torch.randn(SAMPLES, 16, generator=torch.Generator().manual_seed(1))
    dataset = TensorDataset(x, (x.sum(1) > 0).long())
    train_data: Any = DataLoader(dataset, batch_size=BATCH, sampler=DistributedSampler(dataset))
    model: Any = Net()
    if arguments.shard:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4000)
    Trainer(model, train_data, optimizer, scheduler, account).train()
    account.finish(model if arguments.shard else model.module)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
