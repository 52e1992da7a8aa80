"""Measures the cost of recording collectives: per call, per step of a two-rank job, per Flight Recorder read.

    python bench/collectives.py [--calls N] [--blocks N]

With a world size of one, a single process makes N all_reduces per block, alternating with and without the
wrappers; then two ranks do the same together; then two ranks train with DistributedDataParallel, with the
wrappers installed on every other block of steps. Times are CPU time of the calling thread, the only thread
the wrappers run on; each figure is the median over neighbouring blocks, with its 95 % bootstrap interval,
next to the wrappers' own clock (wall time). Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

from overhead import alternating, free_port, microseconds, places

WARM_CALLS = 200


class Measured:
    """One rank: measures blocks of work with and without the wrappers, and the cost by their own clock."""

    def __init__(self, blocks: int) -> None:
        import probe
        from probe.job.agent.lifecycle import agent_here

        probe.start()
        agent = agent_here()
        assert agent is not None
        self.instruments = agent.instruments
        self.blocks = blocks

    def pairs(self, work: Any, times: int) -> dict[str, Any]:
        """CPU ns per unit of work: without the wrappers, added by them, and added by their own clock."""
        part, recorder = self.instruments.collectives, self.instruments.recorder
        assert part is not None
        own: list[float] = []

        def switch(on: bool) -> None:
            own.append(recorder.cost_ns / times)
            recorder.cost_ns = 0
            part.install() if on else part.uninstall()

        recorder.cost_ns = 0
        without, added = alternating(switch, work, self.blocks, times)
        switch(True)
        return {"without": without, "added": added, "own": [cost for cost in own if cost]}


def calls(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure a rank that calls all_reduce repeatedly."""
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
    reads = []
    for _ in range(20):
        flight._last_ns = flight._cost_ns = 0
        flight.read()
        reads.append(flight._cost_ns)
    dist.destroy_process_group()
    return {**found, "reads": reads}


def trained(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure a rank that trains with DistributedDataParallel and also reduces its losses."""
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
    return {**found, "own": [], "reads": []}  # the recorder's clock restarts with each step


ROLES = {"calls": calls, "trained": trained}


def run(role: str, ranks: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """The measurements of rank 0."""
    with places() as (_, environ):
        words = ["--calls", str(arguments.calls), "--blocks", str(arguments.blocks), "--role", role]
        environ |= {
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks),
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
    reads: list[float] = []
    for name, role, ranks in (
        ("one `all_reduce`, world size 1", "calls", 1), ("one `all_reduce`, two ranks", "calls", 2),
        ("one step of DDP and one `all_reduce`, two ranks", "trained", 2),
    ):
        found = run(role, ranks, arguments)
        reads += found["reads"]
        plain = median(found["without"]) / 1e3
        own = f"{median(found['own']) / 1e3:.1f} µs" if found["own"] else ""
        print(f"| {name} | {plain:.1f} µs | {microseconds(found['added'])} | {own} |")
    print(f"\nOne read of the Flight Recorder, 256 entries: {median(reads) / 1e6:.2f} ms")


if __name__ == "__main__":
    main()
