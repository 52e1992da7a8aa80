"""Translates one made-up language into another: a GRU encoder, a GRU decoder with attention, warm-up."""

from __future__ import annotations

import itertools
import random

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F

PAD, BEGIN, END, FIRST, WORDS = 0, 1, 2, 3, 60
BATCH, RATE, WARM_UP = 32, 3e-3, 100


def translated(words: list[int]) -> list[int]:
    """Every word has one of its own in the other language; even ones change places with the next."""
    words, place = list(words), 0
    while place + 1 < len(words):
        if words[place] % 2 == 0:
            words[place], words[place + 1] = words[place + 1], words[place]
            place += 1
        place += 1
    return [FIRST + (7 * (word - FIRST) + 5) % (WORDS - FIRST) for word in words]


def sentence_pairs(count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    source = random.Random(seed)
    sentences = [[source.randrange(FIRST, WORDS) for _ in range(source.randint(3, 12))] for _ in range(count)]
    return [(sentence, translated(sentence)) for sentence in sentences]


def padded(sentences: list[list[int]]) -> torch.Tensor:
    longest = max(map(len, sentences))
    return torch.tensor([sentence + [PAD] * (longest - len(sentence)) for sentence in sentences])


class Translator(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.source = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.target = nn.Embedding(WORDS, width, padding_idx=PAD)
        self.encoder = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.decoder = nn.GRUCell(2 * width, width)
        self.query = nn.Linear(width, width)
        self.out = nn.Linear(2 * width, WORDS)

    def forward(self, source: torch.Tensor, target: torch.Tensor, forcing: float = 1.0) -> torch.Tensor:
        """Logits of `target`; its own last word goes in where `forcing` does not give the right one."""
        memory, last = self.encoder(self.source(source))
        state = torch.cat([last[0], last[1]], 1)
        context = torch.zeros_like(state)
        word = torch.full_like(target[:, 0], BEGIN)
        outputs = []
        for place in range(target.shape[1]):
            state = self.decoder(torch.cat([self.target(word), context], 1), state)
            scores = torch.einsum("btw,bw->bt", memory, self.query(state)) / state.shape[1] ** 0.5
            weights = scores.masked_fill(source == PAD, float("-inf")).softmax(1)
            context = torch.einsum("bt,btw->bw", weights, memory)
            outputs.append(self.out(torch.cat([state, context], 1)))
            word = target[:, place] if random.random() < forcing else outputs[-1].argmax(1)
        return torch.stack(outputs, 1)


def batches(pairs: list[tuple[list[int], list[int]]]) -> list[list[tuple[list[int], list[int]]]]:
    order = random.sample(pairs, len(pairs))
    return [order[start : start + BATCH] for start in range(0, len(order) - BATCH + 1, BATCH)]


@torch.no_grad()
def accuracy(model: Translator, pairs: list[tuple[list[int], list[int]]]) -> float:
    """Of the words, when it hears only itself."""
    model.eval()
    target = padded([[*words, END] for _, words in pairs])
    said = model(padded([words for words, _ in pairs]), target, forcing=0.0).argmax(2)
    model.train()
    return (said == target)[target != PAD].float().mean().item()


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    random.seed(args.seed)
    train, held_out = sentence_pairs(20_000, args.seed), sentence_pairs(200, args.seed + 10_000)
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / WARM_UP))
    step = 0
    for _ in itertools.count():
        for batch in batches(train):
            source, target = padded([pair[0] for pair in batch]), padded([pair[1] + [END] for pair in batch])
            logits = model(source, target)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            progress.step(loss.item())
            if step % 250 == 0:
                print(f"step {step}: {accuracy(model, held_out):.3f} of the words right")


if __name__ == "__main__":
    main()
