"""Tags words: a Transformer encoder on padded sentences, AdamW, linear warm-up and decay, checkpoints."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from progress import Progress, options
from synthetic import PADDING, TAGS, WORDS, sentences
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def collate(batch: list) -> dict[str, torch.Tensor]:
    words, tags = zip(*batch, strict=True)
    input_ids = pad_sequence(words, batch_first=True, padding_value=PADDING)
    labels = pad_sequence(tags, batch_first=True, padding_value=-100)
    return {"input_ids": input_ids, "attention_mask": input_ids != PADDING, "labels": labels}


class Tagger(nn.Module):
    def __init__(self, width: int = 48, heads: int = 4, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(WORDS, width, padding_idx=PADDING)
        self.positions = nn.Embedding(32, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, TAGS)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.embeddings(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        x = self.encoder(x, src_key_padding_mask=~attention_mask)
        return self.classifier(self.dropout(x))


class Trainer:
    def __init__(self, args) -> None:
        self.progress = Progress(args)
        self.train_set = sentences(6400, seed=args.seed)
        self.dev_set = sentences(256, seed=10_000)
        self.train_loader = DataLoader(self.train_set, batch_size=16, shuffle=True, collate_fn=collate)
        self.dev_loader = DataLoader(self.dev_set, batch_size=64, collate_fn=collate)
        self.model = Tagger()
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, weight_decay=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        self.accumulation = 2
        self.path = Path(args.out or ".") / "checkpoint.pt"
        self.saves = bool(args.out)
        if self.saves and self.path.exists():
            self.load()

    def rate(self, step: int) -> float:
        warmup_steps, total_steps = 100, 20_000
        if step < warmup_steps:
            return (step + 1) / warmup_steps
        return max(0.05, (total_steps - step) / (total_steps - warmup_steps))

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
        }
        torch.save(state, self.path.with_suffix(".new"))
        os.replace(self.path.with_suffix(".new"), self.path)

    def load(self) -> None:
        state = torch.load(self.path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = self.model(batch["input_ids"], batch["attention_mask"])
        return self.criterion(logits.view(-1, TAGS), batch["labels"].view(-1))

    @torch.no_grad()
    def evaluate(self) -> float:
        self.model.eval()
        losses = [self.loss(batch).item() for batch in self.dev_loader]
        self.model.train()
        return sum(losses) / len(losses)

    def train(self) -> None:
        self.model.train()
        self.optimizer.zero_grad()
        while True:
            total = 0.0
            for number, batch in enumerate(self.train_loader):
                loss = self.loss(batch) / self.accumulation
                loss.backward()
                total += loss.item()
                if (number + 1) % self.accumulation:
                    continue
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
                if self.saves and self.progress.steps % 100 == 99:
                    self.save()
                self.progress.step(total)
                total = 0.0
            print(f"dev loss {self.evaluate():.4f}")


if __name__ == "__main__":
    Trainer(options(__doc__)).train()
