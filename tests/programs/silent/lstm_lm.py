"""A language model of characters with an LSTM, after word_language_model: one long text in columns."""

from __future__ import annotations

import torch
from progress import Progress, options
from synthetic import text
from torch import nn


class RNNModel(nn.Module):
    def __init__(self, ntoken: int, ninp: int, nhid: int, nlayers: int, dropout: float) -> None:
        super().__init__()
        self.nlayers, self.nhid = nlayers, nhid
        self.drop = nn.Dropout(dropout)
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid, nlayers, dropout=dropout)
        self.decoder = nn.Linear(nhid, ntoken)
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)
        nn.init.uniform_(self.decoder.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens: torch.Tensor, hidden: tuple) -> tuple[torch.Tensor, tuple]:
        embedded = self.drop(self.encoder(tokens))
        output, hidden = self.rnn(embedded, hidden)
        return self.decoder(self.drop(output)), hidden

    def init_hidden(self, bsz: int) -> tuple[torch.Tensor, torch.Tensor]:
        weight = next(self.parameters())
        return weight.new_zeros(self.nlayers, bsz, self.nhid), weight.new_zeros(self.nlayers, bsz, self.nhid)


def batchify(data: torch.Tensor, bsz: int) -> torch.Tensor:
    rows = data.size(0) // bsz
    return data[: rows * bsz].view(bsz, -1).t().contiguous()


def get_batch(source: torch.Tensor, i: int, bptt: int) -> tuple[torch.Tensor, torch.Tensor]:
    seq_len = min(bptt, len(source) - 1 - i)
    return source[i : i + seq_len], source[i + 1 : i + 1 + seq_len].reshape(-1)


def repackage_hidden(h: tuple) -> tuple:
    return tuple(each.detach() for each in h)


class Trainer:
    def __init__(self, args, bptt: int = 32, bsz: int = 16) -> None:
        corpus = text()
        start = 1000 * args.seed
        self.train_data = batchify(corpus[start : start + 300_000], bsz)
        self.val_data = batchify(corpus[-10_000:], bsz)
        self.bptt, self.bsz = bptt, bsz
        self.model = RNNModel(128, 48, 96, 2, 0.2)
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=8.0)
        self.progress = Progress(args)

    def evaluate(self) -> float:
        self.model.eval()
        total, hidden = 0.0, self.model.init_hidden(self.bsz)
        with torch.no_grad():
            for i in range(0, self.val_data.size(0) - 1, self.bptt):
                data, targets = get_batch(self.val_data, i, self.bptt)
                output, hidden = self.model(data, hidden)
                total += len(data) * self.criterion(output.view(-1, 128), targets).item()
        self.model.train()
        return total / (len(self.val_data) - 1)

    def train_epoch(self) -> None:
        self.model.train()
        hidden = self.model.init_hidden(self.bsz)
        for batch, i in enumerate(range(0, self.train_data.size(0) - 1, self.bptt)):
            data, targets = get_batch(self.train_data, i, self.bptt)
            hidden = repackage_hidden(hidden)
            self.model.zero_grad()
            output, hidden = self.model(data, hidden)
            loss = self.criterion(output.view(-1, 128), targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.25)
            self.optimizer.step()
            self.progress.step(loss.item())
            if batch % 300 == 299:
                print(f"valid loss {self.evaluate():.3f}")

    def run(self) -> None:
        while True:
            self.train_epoch()


if __name__ == "__main__":
    Trainer(options(__doc__)).run()
