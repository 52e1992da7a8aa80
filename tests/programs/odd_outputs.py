"""Modules that return dicts, None, a dataclass, a number, nested containers; in-place ReLU; tied weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ledger import Ledger, options

WIDTH = 16


@dataclass
class Output:
    """What one layer returns."""

    hidden: torch.Tensor
    size: int


class ReturnsDict(nn.Module):
    """Returns a dict of tensors, in the manner of many libraries."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        return {"hidden": self.linear(x), "attentions": None}


class ReturnsDataclass(nn.Module):
    """Takes a keyword, returns a dataclass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, *, hidden: torch.Tensor, **_others: object) -> Output:
        return Output(self.linear(hidden), WIDTH)


class ReturnsNested(nn.Module):
    """Returns containers within containers, one of which contains itself."""

    def forward(self, output: Output) -> list[Any]:
        loop: list[Any] = [(output.hidden, {"again": [output.hidden]}), None]
        loop.append(loop)
        return loop


class ReturnsNone(nn.Module):
    """Only looks."""

    def forward(self, x: torch.Tensor) -> None:
        self.seen = x.shape


class ReturnsNumber(nn.Module):
    """Returns a float."""

    def forward(self, x: torch.Tensor) -> float:
        return float(x.detach().abs().mean())


class Odd(nn.Module):
    """All of them; the embedding's weight is the head's too, and one layer is there under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, WIDTH)
        self.by_dict = ReturnsDict()
        self.by_dataclass = ReturnsDataclass()
        self.nested = ReturnsNested()
        self.nothing = ReturnsNone()
        self.number = ReturnsNumber()
        self.relu = nn.ReLU(inplace=True)
        self.shared = nn.Linear(WIDTH, WIDTH)
        self.shared_again = self.shared
        self.head = nn.Linear(WIDTH, 32, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        named = self.by_dict(self.embedding(tokens))
        (hidden, _), _, _ = self.nested(self.by_dataclass(**named))
        self.nothing(hidden)
        hidden = hidden * (1 + 0.001 * self.number(hidden))
        return self.head(self.shared_again(self.relu(self.shared(hidden))))


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(0, 32, (8, 12))
    while ledger.running:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, dims=1).flatten())
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        ledger.step()
    ledger.finish(model)


if __name__ == "__main__":
    main()
