"""HF Trainer on a tiny random model: accumulation, an evaluation and a checkpoint on the way, predictions.

`losses` of the result holds what the Trainer logged, by step; `micro_losses` what each of its backwards was
called on.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ledger import Ledger, options

STEPS_PER_EVALUATION = 4
MICRO_STEPS = 2
BATCH = 4


class Tokens(torch.utils.data.Dataset[Any]):
    """Random tokens, a part of which is not to be predicted: the items of the batches differ."""

    def __init__(self, size: int, length: int = 16) -> None:
        self.tokens = torch.randint(0, 64, (size, length), generator=torch.Generator().manual_seed(size))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        labels = self.tokens[index].clone()
        labels[: index % 12] = -100
        return {"input_ids": self.tokens[index], "labels": labels}


class Counted(Trainer):
    """Notes every loss that it calls backward on."""

    ledger: Ledger

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self.ledger.loss(loss)
        if self.accelerator.sync_gradients:
            self.ledger.step()
        return loss


def main() -> None:
    arguments = options(__doc__).parse_args()
    ledger = Ledger(arguments)
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=64, n_positions=16))
    with tempfile.TemporaryDirectory() as folder:
        trainer = Counted(
            model=model, train_dataset=Tokens(400), eval_dataset=Tokens(60),
            args=TrainingArguments(
                output_dir=folder, max_steps=arguments.steps, per_device_train_batch_size=BATCH,
                per_device_eval_batch_size=8, gradient_accumulation_steps=MICRO_STEPS, logging_steps=1,
                eval_strategy="steps", eval_steps=STEPS_PER_EVALUATION, save_steps=STEPS_PER_EVALUATION,
                save_total_limit=1, report_to="none", use_cpu=True, disable_tqdm=True, learning_rate=1e-3,
            ),
        )
        trainer.ledger = ledger
        trainer.train()
        trainer.predict(Tokens(40))
    ledger.extra = {
        "logged": [one["loss"] for one in trainer.state.log_history if "loss" in one],
        "evaluations": sum("eval_loss" in one for one in trainer.state.log_history),
    }
    ledger.finish(model)


if __name__ == "__main__":
    main()
