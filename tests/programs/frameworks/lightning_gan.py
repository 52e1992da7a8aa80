"""Lightning with manual optimization: a GAN with two optimizers, whose parts are called by themselves."""

from __future__ import annotations

import tempfile
from typing import Any

import lightning.pytorch as pl
import torch
from account import Account, options
from lightning_resumed import Resumed
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH, NOISE = 32, 4, 4


class Gan(pl.LightningModule):
    def __init__(self, account: Account) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.account = [account]
        self.generator = nn.Sequential(nn.Linear(NOISE, 32), nn.ReLU(), nn.Linear(32, 8))
        self.discriminator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def training_step(self, batch: Any, index: int) -> None:
        (real,) = batch
        account = self.account[0]
        account.samples += len(real)
        one, other = self.optimizers()
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        made = self.generator(torch.randn(len(real), NOISE))
        loss = functional.binary_cross_entropy_with_logits(self.discriminator(made), ones)
        one.zero_grad()
        self.manual_backward(loss)
        one.step()
        account.loss(loss.detach())
        loss = functional.binary_cross_entropy_with_logits(
            self.discriminator(real), ones
        ) + functional.binary_cross_entropy_with_logits(self.discriminator(made.detach()), zeros)
        other.zero_grad()
        self.manual_backward(loss)
        other.step()
        account.loss(loss.detach())
        self.log_dict({"d_loss": loss})
        account.step()

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.Adam(self.generator.parameters(), lr=1e-3),
            torch.optim.Adam(self.discriminator.parameters(), lr=1e-3),
        ]


def main() -> None:
    arguments = options(__doc__).parse_args()
    account = Account(arguments)
    module = Gan(account)
    x = torch.randn(SAMPLES, 8, generator=torch.Generator().manual_seed(1))
    batches: Any = DataLoader(TensorDataset(x), batch_size=BATCH, shuffle=True)
    steps = 2 * arguments.steps
    if arguments.resume:
        batches = Resumed(arguments.resume, batches)
        steps -= batches.step
    trainer = pl.Trainer(
        max_steps=steps, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, accelerator="cpu",
        default_root_dir=arguments.out or tempfile.mkdtemp(prefix="probe-lightning-"),
    )
    if arguments.resume:
        batches.trainer = trainer
    trainer.fit(module, batches)
    account.finish(module)


if __name__ == "__main__":
    main()
