"""Accelerate in a hand-written loop: `accelerator.accumulate`, a validation and `save_state` each epoch."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ledger import Ledger, options

BATCH, TRAIN, VALIDATION, MICRO_STEPS = 4, 40, 24, 2


def main() -> None:
    arguments = options(__doc__).parse_args()
    ledger = Ledger(arguments)
    rows, labels = torch.randn(TRAIN + VALIDATION, 8), torch.randint(0, 2, (TRAIN + VALIDATION,))
    train = DataLoader(TensorDataset(rows[:TRAIN], labels[:TRAIN]), batch_size=BATCH)
    validation = DataLoader(TensorDataset(rows[TRAIN:], labels[TRAIN:]), batch_size=BATCH)
    model: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 2))
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_STEPS)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, train, validation = accelerator.prepare(model, optimizer, train, validation)
    means: list[float] = []
    evaluations = 0
    with tempfile.TemporaryDirectory() as folder:
        while ledger.running:
            of_step: list[float] = []
            for batch, target in train:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(batch), target)
                    accelerator.backward(loss)
                    ledger.loss(loss / MICRO_STEPS)
                    of_step.append(float(loss.detach()))
                    optimizer.step()
                    optimizer.zero_grad()
                if accelerator.sync_gradients:
                    means.append(sum(of_step) / len(of_step))
                    of_step = []
                    ledger.step()
            model.eval()
            with torch.no_grad():
                for batch, _ in validation:
                    model(batch)
            model.train()
            evaluations += 1
            accelerator.save_state(folder)
    ledger.extra = {"logged": means, "evaluations": evaluations}
    ledger.finish(model)


if __name__ == "__main__":
    main()
