"""Measures the work of probe's hooks in one step, separate from the training: calls, and time by edge.

    python bench/hooks.py [--steps N] [--loader] [--quick]

Unlike `overhead.py` it shows where the cost lies, even on a busy machine. One process runs steps whose
backward, optimizer and module do nothing, alternating with and without the instruments. Figures are lower
quartiles of the training thread's CPU time, medians over the turns. `cold`: other memory is written before
each edge, as a model's step does, so that the hooks find their code and data outside the inner caches. Then
counts the Python calls of probe by function, separately for steps whose phases are timed and the others.
Prints Markdown.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

from overhead import places

COLD_BYTES = 2 << 20
"""Bytes written before each edge: as much as the inner caches of a core hold."""
WARM_UP_STEPS = 1500
"""Enough to pass the first samples, and for the governor to decide."""
_cpu = time.thread_time_ns


class Still:
    """A training loop whose parts only run the hooks; `edges` are in the order of a step."""

    def __init__(self, *, loader: bool) -> None:
        import torch
        from torch import nn

        class Model(nn.Module):
            def forward(self, x: Any) -> Any:
                return x

        class Optimizer(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                return None

        torch.set_num_threads(1)
        self._model = Model()
        self._model.weight = nn.Parameter(torch.zeros(64))
        self._optimizer = Optimizer(self._model.parameters(), lr=0.1)
        self._x = torch.zeros(8, 8)
        self._loss = (self._model.weight * 2).sum()
        self._model.weight.grad = torch.zeros(64)
        self._torch = torch
        samples = [torch.zeros(8) for _ in range(1 << 16)]
        self._loader = torch.utils.data.DataLoader(samples, batch_size=8) if loader else None  # type: ignore[arg-type]
        self._batches: Any = iter(())
        batch: dict[str, Callable[[], object]] = {"batch": self._fetch} if loader else {}
        self.edges: dict[str, Callable[[], object]] = {
            **batch, "forward": self._forward, "backward": self._backward, "optimizer": self._step,
        }

    def _fetch(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(self._loader)  # type: ignore[arg-type]
            next(self._batches)

    def _forward(self) -> None:
        self._model(self._x)

    def _backward(self) -> None:
        self._torch.autograd.backward(self._loss)

    def _step(self) -> None:
        self._optimizer.step()


def no_backward() -> None:
    """Replace torch's backward with a no-op, before probe wraps it."""
    import torch

    def backward(tensors: Any, *_args: Any, **_kwargs: Any) -> None:
        return None

    torch.autograd.backward = backward


def timed(
    loop: Still, switch: Callable[[bool], object], steps: int, blocks: int, cold_bytes: int
) -> dict[str, float]:
    """CPU ns that the hooks add to each edge."""
    memory = bytearray(cold_bytes)
    other = bytes(cold_bytes)
    added: dict[str, list[float]] = {name: [] for name in loop.edges}
    for block in range(blocks):
        taken: dict[bool, dict[str, float]] = {}
        for on in (block % 2 == 0, block % 2 == 1):
            switch(on)
            found: dict[str, list[int]] = {name: [] for name in loop.edges}
            for _ in range(steps):
                for name, edge in loop.edges.items():
                    memory[:] = other
                    begun = _cpu()
                    edge()
                    found[name].append(_cpu() - begun)
            taken[on] = {name: quantiles(ones, n=4)[0] for name, ones in found.items()}
        for name in loop.edges:
            added[name].append(taken[True][name] - taken[False][name])
    switch(True)
    return {name: median(ones) for name, ones in added.items()}


def counted(loop: Still, recorder: Any, steps: int) -> dict[bool, tuple[int, Counter[str]]]:
    """Number of steps and Python calls of probe's functions in them, by whether the phases were timed."""
    found: dict[bool, tuple[int, Counter[str]]] = {True: (0, Counter()), False: (0, Counter())}
    calls: Counter[str] = Counter()

    def note(frame: Any, event: str, _argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and "/probe/" in path:
            calls[f"{os.path.basename(path)[:-3]}.{frame.f_code.co_name}"] += 1

    for _ in range(steps):
        timing = bool(recorder.timing)
        calls.clear()
        sys.setprofile(note)
        for edge in loop.edges.values():
            edge()
        sys.setprofile(None)
        number, before = found[timing]
        found[timing] = (number + 1, before + calls)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--loader", action="store_true", help="each step takes a batch of a DataLoader")
    parser.add_argument("--no-cold", action="store_true")
    parser.add_argument("--quick", action="store_true", help="few blocks, as a smoke test")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.blocks, arguments.steps = 4, 16
    with places() as (_, environment):
        os.environ.update(environment, PROBE_SERVER_PYTHON="/bin/true")
        import torch  # noqa: F401

        import probe
        from probe.job.agent.lifecycle import agent_here

        no_backward()
        probe.start()
        agent: Any = agent_here()
        instruments = agent.instruments
        loop = Still(loader=arguments.loader)
        for _ in range(WARM_UP_STEPS):
            for edge in loop.edges.values():
                edge()
            time.sleep(0.001)

        installed = True

        def switch(on: bool) -> None:
            nonlocal installed
            if on != installed:
                instruments.install() if on else instruments.uninstall()
                installed = on

        print("| | " + " | ".join(loop.edges) + " | a step |\n|---|" + "---|" * (len(loop.edges) + 1))
        for name, cold_bytes in (("hot", 0), ("cold", COLD_BYTES)):
            if cold_bytes and arguments.no_cold:
                continue
            blocks = arguments.blocks if not cold_bytes else max(4, arguments.blocks // 4)
            figures = timed(loop, switch, arguments.steps, blocks, cold_bytes)
            cells = [f"{one / 1e3:.1f}" for one in (*figures.values(), sum(figures.values()))]
            print(f"| CPU µs, {name} | " + " | ".join(cells) + " |")
        for timing, (steps, calls) in counted(loop, instruments.recorder, 800).items():
            print(f"\n{'Timed' if timing else 'Other'} steps: {steps}, calls of probe in one: "
                  f"{sum(calls.values()) / max(1, steps):.1f}\n")
            for name, number in calls.most_common(30):
                if number * 20 > steps:
                    print(f"    {number / steps:6.2f}  {name}")
        probe.stop()


if __name__ == "__main__":
    main()
