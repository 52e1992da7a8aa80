"""Measures the cost of the sentinel: its share of a step, and the fork when it fires.

    python bench/sentinel.py [--blocks N] [--steps N] [--memory BYTES]

A network with a DataLoader trains in steps of about a millisecond; the sentinel is removed and reinstalled
every few steps of one process, with phases, losses and batches recorded throughout, and neighbouring blocks
are compared. CPU time of the training thread; the median with its 95 % bootstrap interval. Then a process
that holds the given number of bytes forks itself as the sentinel does. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from statistics import median
from typing import Any

from collectives import figure
from overhead import places

BATCH, WIDTH = 32, 128


def pairs(blocks: int, steps: int) -> tuple[list[float], list[float]]:
    """CPU ns of a step without, and what each block with the sentinel took more."""
    import torch
    from torch import nn

    import probe
    from probe.job.agent.lifecycle import agent_here

    probe.start()
    agent = agent_here()
    assert agent is not None
    instruments = agent.instruments
    sentinel = instruments.sentinel
    assert sentinel is not None and instruments.data is not None
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    data = [(torch.randn(WIDTH), number % 10) for number in range(4096)]
    loader = torch.utils.data.DataLoader(data, batch_size=BATCH)  # type: ignore[arg-type]
    batches: Any = iter(())

    def step() -> None:
        nonlocal batches
        batch = next(batches, None)
        if batch is None:
            batches = iter(loader)
            batch = next(batches)
        loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(400):
        step()
    without, more = [], []
    for block in range(blocks):
        taken = {}
        for on in (block % 2 == 0, block % 2 == 1):
            sentinel.install() if on else sentinel.uninstall()
            instruments.data.batches = sentinel.batches if on else None
            begun = time.thread_time_ns()
            for _ in range(steps):
                step()
            taken[on] = (time.thread_time_ns() - begun) / steps
        without.append(taken[False])
        more.append(taken[True] - taken[False])
    probe.stop()
    return without, more


def forks(size_bytes: int) -> list[float]:
    """Milliseconds that the training thread is held by one fork of a process that holds so many bytes."""
    import torch

    from probe.job.instruments.nan import forked_probe

    held = torch.ones(size_bytes // 4)
    found = []
    for _ in range(5):
        one = forked_probe.Frozen(lambda send: None)
        found.append(one.took_ms)
        while not one.collect():
            time.sleep(0.01)
    del held
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--memory", type=int, default=2_000_000_000)
    arguments = parser.parse_args()
    with places() as (_, environment):
        environment |= {"PROBE_BUDGET": "50%", "PROBE_INSTRUMENTS": "steps,losses,data,nonfinite"}
        os.environ.update(environment)
        without, more = pairs(arguments.blocks, arguments.steps)
    print("| | |\n|---|---|")
    print(f"| a step without it | {median(without) / 1e3:.0f} µs |")
    print(f"| with it | {figure(more)} |")
    held = sorted(forks(arguments.memory))
    print(f"| one fork of a process of {arguments.memory / 1e9:.1f} GB | {held[len(held) // 2]:.1f} ms |")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
