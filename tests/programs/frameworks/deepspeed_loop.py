"""DeepSpeed: the engine owns backward, accumulation and the optimizer's step; ZeRO shards under `--zero`."""

from __future__ import annotations

from typing import Any

import deepspeed
import torch
from account import Account, options
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

SAMPLES, BATCH = 64, 4


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--zero", type=int, default=0)
    parser.add_argument("--local_rank", type=int, default=0)
    arguments = parser.parse_args()
    account = Account(arguments)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    x = torch.randn(SAMPLES, 8)
    net = Classifier()
    engine, optimizer, train_dataloader, lr_scheduler = deepspeed.initialize(  # noqa: RUF059 - asked for
        model=net,
        model_parameters=net.parameters(),
        training_data=TensorDataset(x, (x.sum(1) > 0).long()),
        dist_init_required=False,
        config={
            "train_micro_batch_size_per_gpu": BATCH,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
            "scheduler": {"type": "WarmupDecayLR", "params": {
                "total_num_steps": 4000, "warmup_num_steps": 20, "warmup_min_lr": 1e-4, "warmup_max_lr": 1e-2,
            }},
            "zero_optimization": {"stage": arguments.zero},
            "zero_allow_untested_optimizer": True,
        },
    )
    while account.steps < account.most:
        for x, y in train_dataloader:
            account.samples += len(x)
            loss = functional.cross_entropy(engine(x), y)
            engine.backward(loss)
            engine.step()
            account.loss(loss.detach())
            account.rates.append(lr_scheduler.get_last_lr()[0])
            account.step()
            if account.steps >= account.most:
                break
    account.finish(engine.module)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
