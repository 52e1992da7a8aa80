"""Lightning: automatic optimization (a closure) or manual (a GAN's two optimizers), a validation each epoch
and checkpoints.

`--manual`: manual optimization. `updates_s` of the result is the time inside the optimizer's own update.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ledger import Ledger, options

BATCH, TRAIN, VALIDATION = 4, 32, 60
LOGGING_S = 0.004
"""What `training_step` does beside the model: in a closure that is not the optimizer's time."""


class Automatic(lightning.LightningModule):
    """One optimizer, which Lightning steps with a closure."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.1), nn.Linear(32, 2))
        self.ledger = ledger
        self.validated: list[int] = []

    def training_step(self, batch: Any, _number: int) -> torch.Tensor:
        rows, labels = batch
        loss = nn.functional.cross_entropy(self.model(rows), labels)
        time.sleep(LOGGING_S)
        self.log("loss", loss)
        return loss

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.ledger.loss(loss)

    def on_train_batch_end(self, *_: Any) -> None:
        if self.trainer.fit_loop.epoch_loop.batch_progress.current.ready % self.accumulates == 0:
            self.ledger.step()

    @property
    def accumulates(self) -> int:
        return int(self.trainer.accumulate_grad_batches)

    def validation_step(self, batch: Any, _number: int) -> None:
        rows, labels = batch
        self.log("validation", nn.functional.cross_entropy(self.model(rows), labels))
        self.validated.append(len(rows))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=1e-3)


class Manual(Automatic):
    """Generator and discriminator, each with its own optimizer and backward."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.automatic_optimization = False
        self.judge = nn.Linear(8, 1)
        self.maker = nn.Linear(4, 8)

    def training_step(self, batch: Any, _number: int) -> None:
        rows, _ = batch
        judge_optimizer, maker_optimizer = self.optimizers()
        fake = self.maker(torch.randn(len(rows), 4))
        with torch.no_grad():
            self.judge(rows)  # a figure for the log: part of the step
        self._update(judge_optimizer, self.judge(fake.detach()).mean() - self.judge(rows).mean())
        self._update(maker_optimizer, -self.judge(fake).mean())

    def _update(self, optimizer: Any, loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def configure_optimizers(self) -> Any:
        return tuple(torch.optim.SGD(one.parameters(), lr=1e-3) for one in (self.judge, self.maker))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--manual", action="store_true")
    parser.add_argument("--accumulate", type=int, default=1)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    made = torch.Generator().manual_seed(1)

    def loader(size: int) -> DataLoader[Any]:
        rows = torch.randn(size, 8, generator=made)
        return DataLoader(TensorDataset(rows, torch.randint(0, 2, (size,), generator=made)), batch_size=BATCH)

    module = Manual(ledger) if arguments.manual else Automatic(ledger)
    epochs = max(1, arguments.steps * arguments.accumulate * BATCH // TRAIN)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, callbacks=[ModelCheckpoint(folder)],
            accumulate_grad_batches=arguments.accumulate,
        )
        trainer.fit(module, loader(TRAIN), loader(VALIDATION))
    ledger.extra = {"validated": sum(module.validated), "evaluations": epochs + 1}
    ledger.finish(module)


if __name__ == "__main__":
    main()
