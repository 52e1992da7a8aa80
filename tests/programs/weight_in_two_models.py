"""Two models trained together: the head's decoder is tied to the encoder's embedding, as one parameter."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

WORDS, WIDTH = 50, 8


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.middle = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.middle(self.tokens(x))


class Head(nn.Module):
    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.dense, self.decoder = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)
        self.decoder.weight = encoder.tokens.weight

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.dense(hidden))


def main() -> None:
    torch.set_num_threads(1)
    encoder = Encoder()
    head = Head(encoder)
    parameters = {id(one): one for one in (*encoder.parameters(), *head.parameters())}
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-3)
    step = 0
    while True:
        x = torch.randint(WORDS, (16, 10))
        optimizer.zero_grad()
        functional.cross_entropy(head(encoder(x)).flatten(0, 1), x.flatten()).backward()
        optimizer.step()
        step += 1
        if step == 20:
            print("READY", flush=True)


if __name__ == "__main__":
    main()
