"""Learns to repeat sequences with an LSTM; they grow longer once the shorter ones are learned."""

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F

args = options(__doc__)
progress = Progress(args)


class Repeater(nn.Module):
    def __init__(self, symbols=12, width=96):
        super().__init__()
        self.embedding = nn.Embedding(symbols, 24)
        self.rnn = nn.LSTM(24, width, batch_first=True)
        self.head = nn.Linear(width, symbols)

    def forward(self, tokens):
        return self.head(self.rnn(self.embedding(tokens))[0])


def batch(length, count=32):
    words = torch.randint(2, 12, (count, length))
    inputs = torch.cat(
        [words, torch.ones(count, 1, dtype=torch.long), torch.zeros(count, length - 1, dtype=torch.long)], 1
    )
    return inputs, words


model = Repeater()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
length, recent = 2, []
while progress.steps < (args.steps or 20000):
    inputs, words = batch(length)
    loss = F.cross_entropy(model(inputs)[:, length:].flatten(0, 1), words.flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    recent = [*recent[-49:], loss.item()]
    if len(recent) == 50 and sum(recent) / 50 < 0.2 and length < 20:
        length, recent = length + 1, []
        print(f"length {length}", flush=True)
    progress.step(loss.item())
