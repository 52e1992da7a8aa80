"""Calls of probe's own functions before the start, while it records, after the stop and from threads, with
what no annotation allows. Says how many of them came back; none may raise.

`--refused` calls `probe.start()` alone: where nothing can be recorded it comes back too.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

import probe


class Hostile:
    """Fails wherever it is asked."""

    def __float__(self) -> float:
        raise RuntimeError("not today")

    __str__ = __repr__ = __hash__ = __float__  # type: ignore[assignment]

    @property
    def detach(self) -> None:
        raise RuntimeError("not this either")


ODD_VALUES: tuple[Any, ...] = (
    "three", None, [], {}, object(), Hostile(), 2**2000, 1j, torch.zeros(3),
    torch.zeros((), requires_grad=True), torch.zeros((), dtype=torch.complex64),
    torch.zeros((), device="meta"),
    float, b"1",
)
ODD_NAMES: tuple[Any, ...] = (None, 5, b"loss", [], Hostile(), "x" * 100_000, "\udcff", "")


def calls() -> list[Callable[[], object]]:
    """Every call, each to be made by itself."""
    anything: Any = probe
    found: list[Callable[[], object]] = [
        lambda value=value: anything.log("value", value) for value in ODD_VALUES
    ]
    found += [lambda name=name: anything.log(name, 1.0) for name in ODD_NAMES]
    found += [
        lambda: anything.log(), lambda: anything.log("alone"), lambda: anything.log({"loss": 1.0}),
        lambda: anything.log("a", 1.0, 2, x=3), lambda: anything.step(5), lambda: anything.step(),
        lambda: anything.stop("now"),
    ]
    return found


def made(came_back: list[int]) -> None:
    for call in calls():
        call()
        came_back[0] += 1


def main() -> None:
    came_back = [0]
    if "--refused" in sys.argv:
        probe.start()
        probe.start(5)  # type: ignore[arg-type]
        probe.start("twice")
        came_back[0] = 3
    else:
        made(came_back)
        probe.start()
        made(came_back)
        threads = [threading.Thread(target=made, args=(came_back,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        probe.log("right", 1.0)
        probe.stop()
        made(came_back)
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    probe.step()
    print("RESULT", json.dumps({"came_back": came_back[0], "calls": len(calls())}), flush=True)


if __name__ == "__main__":
    main()
