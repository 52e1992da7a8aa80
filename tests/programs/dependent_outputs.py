"""Trains a small Transformer on padded sentences, with what it depends on examined in a fork at step 8.

Has what a repeated forward could disturb: dropout, normalization by the batch, a buffer that counts its
calls, Python's and numpy's random numbers. `--inverted`: the padding mask is in the other convention.
"""

from __future__ import annotations

import random
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from ledger import Ledger, options

STEP = 8
WORDS, TAGS = 40, 5


class Tagger(nn.Module):
    def __init__(self, inverted: bool) -> None:
        super().__init__()
        self.inverted = inverted
        self.embeddings = nn.Embedding(WORDS, 16)
        self.positions = nn.Embedding(16, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.1, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, TAGS)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        scale = 1.0 + 0.01 * random.random() + 0.01 * float(np.random.rand())
        x = self.embeddings(tokens) + self.positions(torch.arange(tokens.shape[1]))
        x = self.layer(x, src_key_padding_mask=mask if self.inverted else ~mask)
        return self.last(self.norm(x.transpose(1, 2)).transpose(1, 2)) * scale


def sentences() -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    found = []
    for number in range(640):
        length = 4 + number % 9
        tokens = torch.zeros(12, dtype=torch.long)
        tokens[:length] = torch.randint(1, WORDS, (length,))
        found.append((tokens, tokens != 0, torch.where(tokens != 0, tokens % TAGS, -100)))
    return found


def audit_at(step: int) -> Any:
    """Have probe look at this step, however young the run is; what is called then waits for the rows."""
    lifecycle: Any = sys.modules.get("probe.job.agent.lifecycle")
    agent = lifecycle.agent_here() if lifecycle is not None else None
    if agent is None:
        return lambda: None
    audit = agent.instruments.dependence
    audit.begun_s -= 1e6
    audit.due = step

    def wait() -> None:
        deadline = time.monotonic() + 60
        while not audit.audits_written and time.monotonic() < deadline:
            time.sleep(0.01)

    return wait


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--inverted", action="store_true")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    random.seed(1)
    np.random.seed(1)
    model = Tagger(arguments.inverted)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loader = DataLoader(sentences(), batch_size=8, shuffle=True)
    batches = iter(loader)
    wait = audit_at(STEP)
    while ledger.running:
        tokens, mask, tags = next(batches)
        ledger.fetched("train")
        optimizer.zero_grad()
        loss = cross_entropy(model(tokens, mask).transpose(1, 2), tags)
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        ledger.step()
    wait()
    ledger.extra["random"] = [random.random(), float(np.random.rand()), float(torch.rand(()))]
    ledger.extra["calls"] = float(model.calls)
    ledger.finish(model)


if __name__ == "__main__":
    main()
