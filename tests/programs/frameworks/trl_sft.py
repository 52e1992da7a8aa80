"""TRL's SFTTrainer: a tiny GPT-2 on texts, with a tokenizer of a few words."""

from __future__ import annotations

import tempfile
from typing import Any

from account import Account, options
from datasets import Dataset
from hf_checkpoint import as_trainers
from hf_trainer import Counting
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

WORDS = [
    "the", "a", "cat", "dog", "sat", "ran", "on", "under", "mat", "hill", "and", "then", "slept", ".",
    "<pad>", "<eos>",
]


def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="."))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")


def texts() -> Dataset:
    said = [f"the {who} {did} on the {where} and then slept" for who in ("cat", "dog")
            for did in ("sat", "ran") for where in ("mat", "hill")]
    return Dataset.from_dict({"text": said * 4})


def main() -> None:
    arguments = options(__doc__).parse_args()
    account = Account(arguments)
    model: Any = GPT2LMHeadModel(GPT2Config(
        vocab_size=len(WORDS), n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=15,
        eos_token_id=15, loss_type="ForCausalLM",
    ))
    settings = SFTConfig(
        output_dir=arguments.out or tempfile.mkdtemp(prefix="probe-trl-"), max_steps=arguments.steps,
        per_device_train_batch_size=4, gradient_accumulation_steps=1, learning_rate=1e-3, logging_steps=1,
        report_to="none", disable_tqdm=True, use_cpu=True, bf16=False, save_strategy="no", max_length=16,
        lr_scheduler_type="linear", seed=7, gradient_checkpointing=False,
    )
    trainer = SFTTrainer(
        model=model, args=settings, train_dataset=texts(), processing_class=tokenizer(),
        callbacks=[Counting(account)],
    )
    resume = as_trainers(arguments.resume, trainer) if arguments.resume else None
    trainer.train(resume_from_checkpoint=resume)
    account.finish(model)


if __name__ == "__main__":
    main()
