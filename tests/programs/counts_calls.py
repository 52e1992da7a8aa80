"""Counts the Python calls of probe inside the steps of a small loop, by function, while it trains.

With --loader a DataLoader gives the batches. Only steps whose phases are not timed are counted: those of a
job whose steps are short. Starts probe itself.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import probe
from ledger import Ledger, options
from probe.base import compiled
from probe.job.agent.lifecycle import agent_here

NAMED_AT_STEP = 10
WARM_UP_STEPS = 60
"""Past the first steps, which are looked at more closely."""


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--loader", action="store_true")
    arguments = parser.parse_args()
    probe.start()
    agent: Any = agent_here()
    recorder = agent.instruments.recorder
    ledger = Ledger(arguments)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = [torch.full((8,), float(number)).sin() for number in range(4096)]
    batches = iter(DataLoader(samples, batch_size=2)) if arguments.loader else None  # type: ignore[arg-type]
    batch = torch.stack(samples[:2])
    names: Counter[str] = Counter()
    found: list[tuple[int, Counter[str]]] = []

    def note(frame: Any, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and "/probe/" in path and "/tests/" not in path:
            names[f"{os.path.basename(path)[:-3]}.{frame.f_code.co_name}"] += 1

    while ledger.running:
        while ledger.steps == NAMED_AT_STEP and not agent.instruments.names.ready:
            time.sleep(0.002)  # steps are timed until one can be sampled
        recorder.timed_every = 8  # as the governor decides for short steps
        counts = ledger.steps >= WARM_UP_STEPS and not recorder.timing
        names.clear()
        if counts:
            sys.setprofile(note)
        if batches is not None:
            batch = next(batches)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        sys.setprofile(None)
        ledger.loss(loss)
        ledger.step()
        if counts:
            found.append((sum(names.values()), names.copy()))
    usual = median(number for number, _ in found)
    typical = next(one for number, one in found if number == usual)
    ledger.extra["form"] = "0" if compiled.library() is None else "1"
    ledger.extra.update(counted_steps=len(found), calls=usual, names=dict(typical.most_common()))
    ledger.finish(model)
    probe.stop()


if __name__ == "__main__":
    main()
