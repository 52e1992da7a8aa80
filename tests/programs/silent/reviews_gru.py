"""Tells good reviews from bad ones, with negations in them: a bidirectional GRU over padded words, AdamW."""

from __future__ import annotations

import itertools

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

PAD, NOT, WORDS, BATCH = 0, 1, 200, 32


class Reviews:
    """Reviews of 8 to 48 words; the words of praise and blame count by the `not` before them."""

    def __init__(self, count: int, seed: int) -> None:
        source = torch.Generator().manual_seed(seed)
        self.texts, stars = [], []
        while len(self.texts) < count:
            length = int(torch.randint(8, 49, (), generator=source))
            words = torch.randint(2, WORDS, (length,), generator=source)
            words[torch.rand(len(words), generator=source) < 0.1] = NOT
            feeling = torch.where(words < 40, 1, 0) - torch.where((words >= 40) & (words < 80), 1, 0)
            feeling[words == NOT] = 0
            feeling[1:] *= 1 - 2 * (words[:-1] == NOT).long()
            if feeling.sum() != 0:
                self.texts.append(words)
                stars.append(float(feeling.sum() > 0))
        self.stars = torch.tensor(stars)

    def batch(self, numbers: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        texts = [self.texts[number] for number in numbers]
        lengths = torch.tensor([len(text) for text in texts])
        return pad_sequence(texts, batch_first=True, padding_value=PAD), lengths, self.stars[numbers]

    def epoch(self) -> list[list[int]]:
        order = torch.randperm(len(self.texts)).tolist()
        return [order[start : start + BATCH] for start in range(0, len(order), BATCH)]


class Sentiment(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width = width
        self.words = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.gru = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.score = nn.Linear(2 * width, 1)

    def forward(self, text: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(self.words(text), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        end = states[torch.arange(len(text)), lengths - 1]
        ends = torch.cat([end[:, : self.width], states[:, 0, self.width :]], 1)
        return self.score(self.dropout(ends)).squeeze(1)


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    train, held_out = Reviews(4800, args.seed), Reviews(320, args.seed + 10_000)
    model = Sentiment()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)
    decay = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.85)
    for epoch in itertools.count(1):
        model.train()
        for numbers in train.epoch():
            text, lengths, stars = train.batch(numbers)
            loss = F.binary_cross_entropy_with_logits(model(text, lengths), stars)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress.step(loss.item())
        decay.step()
        model.eval()
        with torch.no_grad():
            text, lengths, stars = held_out.batch(list(range(320)))
            right = ((model(text, lengths) > 0) == (stars > 0.5)).float().mean().item()
        print(f"epoch {epoch}: {right:.3f} right")


if __name__ == "__main__":
    main()
