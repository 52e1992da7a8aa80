"""Training loops that evaluate, save or read data between their steps, or seem to.

`intervals` of the result: kind, batches and samples of each; `trained`: samples of the batches trained on.
"""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ledger import Ledger, options

TRAIN, HELD_OUT, BATCH, EVALUATED = 20, 18, 4, 6
PER_EPOCH = TRAIN // BATCH
Rows = list[tuple[str, int | None, int | None]]


def loader(size: int, batch: int, seed: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    rows = torch.randn(size, 8, generator=torch.Generator().manual_seed(seed))
    return DataLoader(TensorDataset(rows, (rows.sum(1) > 0).long()), batch_size=batch)


class Loop:
    """One training; `between` is called after every step with its number, from 1."""

    def __init__(self, ledger: Ledger, shape: str) -> None:
        self.ledger, self.shape = ledger, shape
        self.train_loader, self.held_out = loader(TRAIN, BATCH, 1), loader(HELD_OUT, EVALUATED, 2)
        self.unlabelled = loader(TRAIN, BATCH, 3)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 2))
        self.teacher = nn.Linear(8, 2).eval()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.intervals: Rows = []
        self.trained = 0

    def run(self) -> None:
        while self.ledger.running:
            others = iter(self.unlabelled)
            for number, (rows, labels) in enumerate(self.train_loader, 1):
                self.trained += len(rows)
                self.optimizer.zero_grad()
                if self.shape == "two loaders and a teacher":
                    with torch.no_grad():
                        self.teacher(rows)
                    more, _ = next(others)
                    self.trained += len(more)
                    rows = (rows + more) / 2
                loss = nn.functional.cross_entropy(self.model(rows), labels)
                loss.backward()
                self.ledger.loss(loss)
                self.optimizer.step()
                if self.shape == "a metric in each step":
                    self._call(rows)
                self.ledger.step()
                self._between(rows, number)
                if not self.ledger.running:
                    break

    def _call(self, rows: torch.Tensor, *, training: bool = False) -> None:
        self.model.train(training)
        with torch.no_grad():
            self.model(rows)
        self.model.train()

    def _between(self, rows: torch.Tensor, number: int) -> None:
        shape, epoch_ends = self.shape, number == PER_EPOCH
        if shape == "in the epoch" and number == 2:
            self._evaluate(self.held_out)
        elif shape == "one batch" and number == 2:
            self._call(next(iter(self.held_out))[0])
            self.intervals.append(("evaluation", 1, EVALUATED))
        elif shape in ("without a loader", "without a loader in train mode") and number == 4:
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                self._call(rows, training=shape.endswith("train mode"))
            self.intervals.append(("inference", None, None))
        elif shape == "a sample in train mode" and number == 4:
            self._call(rows, training=True)
            time.sleep(0.3)  # the picture is drawn
        elif shape == "saves" and number == 2:
            torch.save(self.model.state_dict(), Slow() if self.ledger.asks else io.BytesIO())
            self.intervals.append(("checkpoint", None, None))
        elif shape == "stays in eval mode" and self.ledger.steps == PER_EPOCH:
            self.model.eval()
        elif epoch_ends and shape == "after the epoch":
            self._evaluate(self.held_out)
        elif epoch_ends and shape == "the loader of the training":
            self._evaluate(self.train_loader)
        elif epoch_ends and shape == "with gradients":
            self._evaluate(self.held_out, gradients=True)
        elif epoch_ends and shape == "with gradients in training mode":
            self._evaluate(self.held_out, gradients=True, mode=True)
        elif epoch_ends and shape in ("without eval mode", "dropout sampled"):
            self._evaluate(self.held_out, mode=True)
        elif epoch_ends and shape == "a pass without the model":
            batches = [len(rows) for rows, _ in self.held_out]
            self.intervals.append(("reading", len(batches), sum(batches)))
        elif epoch_ends and shape == "one backward for a pass":
            self._whole_pass()

    def _evaluate(
        self, loader: DataLoader[tuple[torch.Tensor, ...]], *, gradients: bool = False, mode: bool = False
    ) -> None:
        self.model.train(mode)
        batches = []
        with torch.set_grad_enabled(gradients):
            for rows, labels in loader:
                for _ in range(5 if self.shape == "dropout sampled" else 1):
                    nn.functional.cross_entropy(self.model(rows), labels)
                batches.append(len(rows))
                if self.ledger.steps == 2 and len(batches) == 2 and self.ledger.asks:
                    print("EVALUATING", flush=True)
                    sys.stdin.readline()
        self.model.train()
        self.intervals.append(("evaluation", len(batches), sum(batches)))

    def _whole_pass(self) -> None:
        """A step on all batches at once: there is a backward, though only after the pass."""
        if not self.ledger.running:
            return
        self.optimizer.zero_grad()
        losses = []
        for rows, labels in self.held_out:
            losses.append(nn.functional.cross_entropy(self.model(rows), labels))
            self.trained += len(rows)
        loss = torch.stack(losses).mean()
        loss.backward()
        self.ledger.loss(loss)
        self.optimizer.step()
        self.ledger.step()


class Slow(io.BytesIO):
    """A file whose disk waits for a line on stdin when the first bytes come."""

    def write(self, content: Any) -> int:
        if not self.tell():
            print("SAVING", flush=True)
            sys.stdin.readline()
        return super().write(content)


class Asking(Ledger):
    """With --pause it waits in the first evaluation, and in each saving, instead of after READY."""

    asks = False


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--shape", required=True)
    arguments = parser.parse_args()
    Asking.asks, arguments.pause = arguments.pause, False
    ledger = Asking(arguments)
    loop = Loop(ledger, arguments.shape)
    loop.run()
    ledger.extra = {"intervals": loop.intervals, "trained": loop.trained}
    ledger.finish(loop.model)


if __name__ == "__main__":
    main()
