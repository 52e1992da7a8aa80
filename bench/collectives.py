"""Measures the cost of recording collectives: per call, per step of a two-rank job, per Flight Recorder read.

    python bench/collectives.py [--calls N] [--blocks N]

With a world size of one, a single process makes N all_reduces per block, alternating with and without the
wrappers; then two ranks do the same together; then two ranks train with DistributedDataParallel, with the
wrappers installed on every other block of steps. Times are CPU time of the calling thread, the only thread
the wrappers run on; each figure is the median over neighbouring blocks, with its 95 % bootstrap interval,
beside the wrappers' own clock (wall time). Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from overhead import places

WARM_CALLS = 200


def interval(values: list[float]) -> tuple[float, float]:
    """The middle 95 % of the medians of samples drawn from the values."""
    draw = random.Random(0)
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def figure(values: list[float], unit: str = "µs") -> str:
    """Median and interval; values in ns."""
    low, high = interval(values)
    return f"{median(values) / 1e3:+.1f} [{low / 1e3:+.1f}, {high / 1e3:+.1f}] {unit}"


class Measured:
    """One rank: blocks of work with the instruments and without, and what their own clock says."""

    def __init__(self, blocks: int) -> None:
        import probe
        from probe.job.agent.lifecycle import agent_here

        probe.start()
        agent = agent_here()
        assert agent is not None
        self.instruments = agent.instruments
        self.blocks = blocks

    def pairs(self, work: Any, times: int) -> dict[str, Any]:
        """CPU ns of one unit of work in each block without, and what the block with took more."""
        part = self.instruments.collectives
        assert part is not None
        without, more, own = [], [], []
        for block in range(self.blocks):
            taken = {}
            for on in (block % 2 == 0, block % 2 == 1):
                part.install() if on else part.uninstall()
                self.instruments.recorder.cost_ns = 0
                begun = time.thread_time_ns()
                for _ in range(times):
                    work()
                taken[on] = (time.thread_time_ns() - begun) / times
                if on:
                    own.append(self.instruments.recorder.cost_ns / times)
            without.append(taken[False])
            more.append(taken[True] - taken[False])
        part.install()
        return {"without": without, "more": more, "own": own}


def calls(arguments: argparse.Namespace) -> dict[str, Any]:
    """A rank that calls all_reduce again and again."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    measured = Measured(arguments.blocks)
    dist.init_process_group("gloo")
    x = torch.ones(1024)
    for _ in range(WARM_CALLS):
        dist.all_reduce(x)
    found = measured.pairs(lambda: dist.all_reduce(x), arguments.calls)
    flight: Any = measured.instruments.flight
    looks = []
    for _ in range(20):
        flight._last_ns = flight._cost_ns = 0
        flight.read()
        looks.append(flight._cost_ns)
    dist.destroy_process_group()
    return {**found, "looks": looks}


def trained(arguments: argparse.Namespace) -> dict[str, Any]:
    """A rank that trains with DistributedDataParallel; losses are reduced too."""
    import torch
    import torch.distributed as dist
    from torch import nn

    torch.set_num_threads(1)
    measured = Measured(arguments.blocks)
    dist.init_process_group("gloo")
    layers = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.ReLU())]
    model: Any = nn.parallel.DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.ones(32, 256)

    def step() -> None:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        dist.all_reduce(loss.detach())
        optimizer.step()

    for _ in range(20):
        step()
    found = measured.pairs(step, max(1, arguments.calls // 20))
    dist.destroy_process_group()
    return {**found, "own": [], "looks": []}  # the recorder's clock begins anew with each step


ROLES = {"calls": calls, "trained": trained}


def run(role: str, ranks: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """What rank 0 of so many measured."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    with places() as (_, environ):
        words = ["--calls", str(arguments.calls), "--blocks", str(arguments.blocks), "--role", role]
        environ |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), environ.get("PYTHONPATH", "")]),
        }
        started = [
            subprocess.Popen(
                [sys.executable, __file__, *words], env={**environ, "RANK": str(rank)},
                stdout=subprocess.PIPE, text=True,
            )
            for rank in range(ranks)
        ]
        answers = [one.communicate()[0] for one in started]
        found: dict[str, Any] = json.loads(answers[0].splitlines()[-1])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--blocks", type=int, default=30)
    parser.add_argument("--role", choices=tuple(ROLES))
    arguments = parser.parse_args()
    if arguments.role:
        print(json.dumps(ROLES[arguments.role](arguments)))
        return
    print("| | without | added, paired | by its own clock |\n|---|---|---|---|")
    looks: list[float] = []
    for name, role, ranks in (
        ("one `all_reduce`, a world of one", "calls", 1), ("one `all_reduce`, two ranks", "calls", 2),
        ("one step of DDP and one `all_reduce`, two ranks", "trained", 2),
    ):
        found = run(role, ranks, arguments)
        looks += found["looks"]
        plain = median(found["without"]) / 1e3
        own = f"{median(found['own']) / 1e3:.1f} µs" if found["own"] else ""
        print(f"| {name} | {plain:.1f} µs | {figure(found['more'])} | {own} |")
    print(f"\nOne look at the Flight Recorder, 256 entries: {median(looks) / 1e6:.2f} ms")


if __name__ == "__main__":
    main()
