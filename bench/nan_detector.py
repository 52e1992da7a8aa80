"""Measures the cost of the NaN detector: per step, and per fork on an event.

    python bench/nan_detector.py [--blocks N] [--steps N] [--memory BYTES]

A network with a DataLoader trains in steps of about a millisecond; the detector is removed and reinstalled
every few steps of one process, with phases, losses and batches recorded throughout, and neighbouring blocks
are compared. CPU time of the training thread; the median with its 95 % bootstrap interval. Then a process
that holds the given number of bytes forks as the detector does. Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median
from typing import Any

from overhead import alternating, microseconds, places

BATCH, WIDTH = 32, 128


def pairs(blocks: int, steps: int) -> tuple[list[float], list[float]]:
    """CPU ns of a step without the detector, and the CPU ns it adds."""
    import torch
    from torch import nn

    import probe
    from probe.job.agent.lifecycle import agent_here

    probe.start()
    agent = agent_here()
    assert agent is not None
    instruments = agent.instruments
    detector, data = instruments.nan_detector, instruments.data
    assert detector is not None and data is not None
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(0.1), nn.Linear(WIDTH, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    samples = [(torch.randn(WIDTH), number % 10) for number in range(4096)]
    loader = torch.utils.data.DataLoader(samples, batch_size=BATCH)  # type: ignore[arg-type]
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

    def switch(on: bool) -> None:
        detector.install() if on else detector.uninstall()
        data.batches = detector.batches if on else None

    for _ in range(400):
        step()
    found = alternating(switch, step, blocks, steps)
    probe.stop()
    return found


def forks(size_bytes: int) -> list[float]:
    """Milliseconds for which a fork holds the training thread, in a process of this size."""
    import torch

    from probe.job.instruments.nan import forked_probe

    held = torch.ones(size_bytes // 4)
    found = []
    for _ in range(5):
        one = forked_probe.ForkedProbe(lambda send: None)
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
        without, added = pairs(arguments.blocks, arguments.steps)
    print("| case | CPU time |\n|---|---|")
    print(f"| a step without the detector | {median(without) / 1e3:.0f} µs |")
    print(f"| with it | {microseconds(added)} |")
    held_ms = median(forks(arguments.memory))
    print(f"| one fork of a process of {arguments.memory / 1e9:.1f} GB | {held_ms:.1f} ms |")


if __name__ == "__main__":
    main()
