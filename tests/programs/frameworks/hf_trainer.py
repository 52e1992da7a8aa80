"""transformers.Trainer: a tiny GPT-2 with dropout, accumulation, a cosine schedule with warm-up, evaluations.

`--lora` trains a PEFT adapter of it, `--bf16` under autocast. `--resume` takes a checkpoint of the Trainer's
own, which `--save-steps` has it write, or a file of probe's.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from account import Account, options
from hf_checkpoint import as_trainers
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

SAMPLES, BATCH, ACCUMULATION, LENGTH = 40, 2, 2, 16


class Tokens(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, samples: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, 64, (samples, LENGTH), generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Counting(TrainerCallback):
    def __init__(self, account: Account) -> None:
        self.account = account

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.account.samples += BATCH * ACCUMULATION
        self.account.step()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **others: Any) -> None:
        if "loss" in logs:
            self.account.loss(logs["loss"])
            self.account.rates.append(logs["learning_rate"])

    def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.account.evaluated += 1


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--lora", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--save-steps", type=int, default=0)
    parser.add_argument("--stop-after", type=int, default=0, help="end after that many steps")
    arguments = parser.parse_args()
    account = Account(arguments)
    config = GPT2Config(
        vocab_size=64, n_positions=LENGTH, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        loss_type="ForCausalLM",
    )
    model: Any = GPT2LMHeadModel(config)
    if arguments.lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
    settings = TrainingArguments(
        output_dir=arguments.out or tempfile.mkdtemp(prefix="probe-hf-"), max_steps=arguments.steps,
        per_device_train_batch_size=BATCH, per_device_eval_batch_size=4,
        gradient_accumulation_steps=ACCUMULATION, learning_rate=1e-2, lr_scheduler_type="cosine",
        warmup_steps=3, logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True,
        bf16=arguments.bf16, eval_strategy="steps", eval_steps=25, seed=7,
        save_strategy="steps" if arguments.save_steps else "no", save_steps=arguments.save_steps or 500,
    )
    trainer = Trainer(
        model=model, args=settings, train_dataset=Tokens(SAMPLES, 1), eval_dataset=Tokens(8, 2),
        callbacks=[Counting(account), *([Stop(arguments.stop_after)] if arguments.stop_after else [])],
    )
    resume = arguments.resume
    if resume.endswith(".pt"):
        resume = as_trainers(resume, trainer)
    trainer.train(resume_from_checkpoint=resume or None)
    account.finish(model)


class Stop(TrainerCallback):
    """Ends the run early, as if it had been killed: the schedule is that of the whole run."""

    def __init__(self, after: int) -> None:
        self.after = after

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop = state.global_step >= self.after


if __name__ == "__main__":
    main()
