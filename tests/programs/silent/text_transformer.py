"""Sorts long support tickets into queues: a transformer encoder with sinusoidal positions, AdamW, warm-up.

With `--out`, it starts from the weights there, if there are any, and writes them every fifty steps.
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F

WORDS, QUEUES, PAD = 1500, 6, 0
LONGEST, WARM_UP, RATE = 320, 50, 2e-3


def tickets(count: int, seed: int) -> list[tuple[torch.Tensor, int]]:
    """Tickets of 60 to 320 words: the first third is about one queue's matters, the rest about any."""
    source = torch.Generator().manual_seed(seed)
    matters = torch.randperm(WORDS - 1, generator=torch.Generator().manual_seed(3)).add(1)[: QUEUES * 40]
    matters = matters.view(QUEUES, 40)
    found = []
    for _ in range(count):
        length = int(torch.randint(60, LONGEST + 1, (), generator=source))
        words = torch.randint(1, WORDS, (length,), generator=source)
        queue, other = torch.randperm(QUEUES, generator=source)[:2].tolist()
        share = torch.where(torch.arange(length) < length // 3, 0.5, 0.2)
        telling = torch.rand(length, generator=source) < share
        about = matters[queue][torch.randint(40, (length,), generator=source)]
        about[length // 3 :] = matters[other][torch.randint(40, (length - length // 3,), generator=source)]
        found.append((torch.where(telling, about, words), queue))
    return found


def padded(batch: list[tuple[torch.Tensor, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    words = nn.utils.rnn.pad_sequence([words for words, _ in batch], batch_first=True, padding_value=PAD)
    return words, torch.tensor([queue for _, queue in batch])


class Classifier(nn.Module):
    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(width, 4, 96, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, QUEUES)
        self.register_buffer("speeds", torch.exp(torch.arange(0, width, 2) * (-math.log(10_000.0) / width)))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        padding = words == PAD
        positions = torch.arange(words.shape[1], dtype=torch.float32)
        angles = positions.float()[:, None] * self.speeds
        x = self.embedding(words) + torch.cat([angles.sin(), angles.cos()], 1)
        x = self.norm(self.encoder(x, src_key_padding_mask=padding))
        kept = (~padding).unsqueeze(2)
        return self.head((x * kept).sum(1) / kept.sum(1))


def factor(step: int) -> float:
    """Of the learning rate: a warm-up, then it falls with the root of the steps."""
    return min((step + 1) / WARM_UP, math.sqrt(WARM_UP / (step + 1)))


@torch.no_grad()
def accuracy(model: nn.Module, held_out: list[tuple[torch.Tensor, int]]) -> float:
    model.eval()
    right = 0
    for start in range(0, len(held_out), 32):
        words, queues = padded(held_out[start : start + 32])
        right += (model(words).argmax(1) == queues).sum().item()
    model.train()
    return right / len(held_out)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    train, held_out = tickets(3000, args.seed), tickets(128, args.seed + 10_000)
    weights = Path(args.out) / "tickets.pt" if args.out else None
    model = Classifier()
    if weights and weights.exists():
        model.load_state_dict(torch.load(weights, weights_only=True))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    step = 0
    for epoch in itertools.count():
        order = torch.randperm(len(train)).tolist()
        for start in range(0, len(order) - 7, 8):
            words, queues = padded([train[number] for number in order[start : start + 8]])
            loss = F.cross_entropy(model(words), queues)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            if weights and step % 50 == 0:
                torch.save(model.state_dict(), weights)
            progress.step(loss.item())
            if step % 300 == 0:
                print(f"epoch {epoch} step {step}: accuracy {accuracy(model, held_out):.3f}")


if __name__ == "__main__":
    main()
