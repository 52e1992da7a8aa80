"""A training that records rows, spans and events of its own, well and badly: before and after recording
begins, from several threads, in a forked child, in a compiled function, with values and names of every kind.

Without probe in the job nothing of it may do anything. With `--hold` it waits at its end to be killed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import pickle
import sys
import threading
from dataclasses import dataclass, field

import probe


@probe.table
@dataclass
class RolloutScore:
    """rollout that was scored"""

    reward: float = field(metadata={"unit": "nats", "doc": "what it was worth"})
    tokens: int = 0
    accepted: bool | None = None
    prompt: str | None = None
    hf_token: str = ""


@probe.table(name="small")
@dataclass(frozen=True)
class Small:
    number: int


class Larger(RolloutScore):
    """Not declared itself."""


@probe.span("decorated")
def half(number: int) -> float:
    return number / 2


@probe.span("awaited")
async def later(number: int) -> int:
    await asyncio.sleep(0.001)
    return number


def refused() -> None:
    """What cannot be a table: one line each, and the classes stay as they are."""
    for made in (
        probe.table(int),
        probe.table(name="odd name")(dataclasses.make_dataclass("Odd", [("a", int)])),
        probe.table(dataclasses.make_dataclass("Step", [("step", int)])),
        probe.table(dataclasses.make_dataclass("Listed", [("a", list)])),
        probe.table(dataclasses.make_dataclass("Nested", [("a", "Unknown")])),
        probe.table(name="small")(dataclasses.make_dataclass("Small", [("other", str)])),
    ):
        assert isinstance(made, type)
    probe.record(object())
    probe.record(None)
    probe.span(None)  # type: ignore[arg-type]


def written() -> None:
    probe.record(RolloutScore(0.5, 3, True, "good", "anything"))
    probe.record(RolloutScore(1, 1 << 70, None, "né" * 200 + "\udc80"))
    probe.record(RolloutScore("text", 2.0, 1, b"bytes"))  # type: ignore[arg-type]
    probe.record(Larger(float("nan"), 4, False, "a\0b password=hunter2"))
    probe.record(Larger(float("-inf"), 5, False, ""))
    with probe.span("outer") as outer, probe.span("inner"), outer:
        half(3)
    asyncio.run(later(1))
    try:
        with probe.span("fails"):
            raise KeyError("mine")
    except KeyError:
        pass
    probe.event("saved", "/there", 3)
    probe.event("é" * 300)
    probe.event(None, 5, "x")  # type: ignore[arg-type]


def many(count: int) -> None:
    small = Small(7)
    for _ in range(count):
        probe.record(small)


def main() -> None:
    threads = "torch" not in sys.modules
    import torch

    torch.manual_seed(0)
    if "--late" in sys.argv:
        written()  # nowhere
        probe.start("own")
    refused()
    written()
    assert pickle.loads(pickle.dumps(Small(3))) == Small(3)
    workers = [threading.Thread(target=many, args=(2000,)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    child = os.fork()
    if not child:
        written()
        many(100)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x: torch.Tensor) -> torch.Tensor:
        with probe.span("compiled"):
            y = x + 1
        probe.record(Small(9))
        probe.event("compiled")
        return y

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with probe.span("in a step"):
            probe.record(RolloutScore(float(step), step))
    total = compiled(torch.ones(2)).sum().item()
    print("READY", threads, round(model.weight.sum().item(), 6), total, flush=True)
    if "--hold" in sys.argv:
        sys.stdin.readline()


if __name__ == "__main__":
    main()
