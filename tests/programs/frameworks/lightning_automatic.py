"""Lightning with automatic optimization: validation, a schedule by steps, `self.log`, no logger.

`--resume` takes a checkpoint of Lightning's own, which `--save-every` has it write, or a file of probe's.
"""

from __future__ import annotations

import tempfile
from typing import Any

import lightning.pytorch as pl
import torch
from account import Account, options
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning_resumed import Resumed
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH = 32, 4


class Classifier(pl.LightningModule):
    def __init__(self, account: Account) -> None:
        super().__init__()
        self.account = [account]  # in a list: no module looks into it
        self.backbone = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1))
        self.head = nn.Sequential(nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.backbone(x))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        loss = functional.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        self.account[0].loss(loss.detach())
        self.account[0].samples += len(x)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        x, y = batch
        self.log("val_loss", functional.cross_entropy(self(x), y))
        self.account[0].evaluated += 1

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4000)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


class Counting(pl.Callback):
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        pl_module.account[0].rates.append(trainer.optimizers[0].param_groups[0]["lr"])
        pl_module.account[0].step()


def loader(samples: int, seed: int, *, shuffle: bool) -> DataLoader[Any]:
    x = torch.randn(samples, 8, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(x, (x.sum(1) > 0).long()), batch_size=BATCH, shuffle=shuffle)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--save-every", type=int, default=0)
    arguments = parser.parse_args()
    account = Account(arguments)
    out = arguments.out or tempfile.mkdtemp(prefix="probe-lightning-")
    callbacks: list[Any] = [Counting()]
    if arguments.save_every:
        callbacks.append(ModelCheckpoint(out, every_n_train_steps=arguments.save_every, save_top_k=-1))
    module = Classifier(account)
    batches: Any = loader(SAMPLES, 1, shuffle=True)
    resume, steps = arguments.resume, arguments.steps
    if resume.endswith(".pt"):
        batches = Resumed(resume, batches)
        resume, steps = "", steps - batches.step
    trainer = pl.Trainer(
        max_steps=steps, logger=False, enable_checkpointing=bool(arguments.save_every),
        enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", callbacks=callbacks,
        default_root_dir=out, num_sanity_val_steps=2,
    )
    if arguments.resume.endswith(".pt"):
        batches.trainer = trainer
    trainer.fit(module, batches, loader(8, 2, shuffle=False), ckpt_path=resume or None)
    account.finish(module)


if __name__ == "__main__":
    main()
