"""Lightning whose `training_step` calls parts of the module, and a loss: one part was tried out before `fit`,
another is made in the second epoch."""

from __future__ import annotations

import tempfile
import time
from typing import Any

import lightning.pytorch as pl
import torch
from account import Account, options
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, TRIED_S = 64, 4, 1.0


class Parts(pl.LightningModule):
    def __init__(self, account: Account) -> None:
        super().__init__()
        self.account = [account]
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(16, 3))
        self.criterion = [nn.CrossEntropyLoss()]  # no part of the module

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        features = self.backbone(x)
        logits = self.head(features)
        if self.current_epoch:
            logits = logits + self.late(features)
        loss = self.criterion[0](logits, y)
        self.account[0].loss(loss.detach())
        return loss

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.late = nn.Sequential(nn.Linear(16, 3), nn.Tanh())
            self.optimizers().add_param_group({"params": list(self.late.parameters())})

    def on_train_batch_end(self, *_: Any) -> None:
        self.account[0].step()

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def fitted(module: Parts, steps: int, out: str) -> None:
    x = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    trainer = pl.Trainer(
        max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu", default_root_dir=out,
    )
    trainer.fit(module, DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=BATCH))


def main() -> None:
    arguments = options(__doc__).parse_args()
    account = Account(arguments)
    module = Parts(account)
    began_s = time.monotonic()
    while time.monotonic() < began_s + TRIED_S:
        module.backbone(torch.zeros(1, 8))
        time.sleep(0.01)
    fitted(module, arguments.steps, arguments.out or tempfile.mkdtemp(prefix="probe-lightning-"))
    account.finish(module)


if __name__ == "__main__":
    main()
