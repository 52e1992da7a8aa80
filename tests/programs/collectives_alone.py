"""Collectives of a world of one, watched and not, in one process that looks at what watching leaves behind.

Prints `RESULT {…}`: what each check found. The tests say what it is to be.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist

import probe
from probe.job.agent.lifecycle import agent_here

C10D: Any = torch._C._distributed_c10d  # type: ignore[attr-defined]
CALLS = int(os.environ.get("CALLS", "20000"))


def classes() -> list[dict[str, Any]]:
    """What stands in the classes that are wrapped."""
    return [dict(vars(C10D.ProcessGroup)), dict(vars(C10D.Work))]


def changed(before: list[dict[str, Any]]) -> list[str]:
    """Names in them that stand for something else than they did."""
    return [
        name for now, then in zip(classes(), before, strict=True)
        for name in {*now, *then} if now.get(name) is not then.get(name)
    ]


def watched(check: Callable[[], Any]) -> Any:
    """The check's answer, recorded."""
    probe.start()
    try:
        return check()
    finally:
        probe.stop()


def rows() -> int:
    """Rows of python.collectives written so far."""
    agent = agent_here()
    assert agent is not None
    collectives = agent.instruments.collectives
    assert collectives is not None
    return collectives.newest(0)


def failure() -> list[str]:
    """How a refused call fails: its type, its text, the functions it went through."""
    try:
        dist.all_to_all_single(torch.ones(3), torch.ones(4))
    except (RuntimeError, ValueError) as error:
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        return [type(error).__name__, str(error).partition("\n")[0], *names]
    return []


def kept_alive() -> dict[str, Any]:
    """Nothing holds what the job let go of; and what many calls leave behind."""
    x = torch.ones(64)
    work = dist.all_reduce(x, async_op=True)
    tensor, waiting = weakref.ref(x), weakref.ref(work)
    work.wait()
    del x, work
    dropped = weakref.ref(dist.all_reduce(torch.ones(4), async_op=True))
    until_s = time.monotonic() + 30.0  # gloo's thread lets go of its own references after it has said "done"
    while (alive := [one() is not None for one in (tensor, waiting, dropped)]) != [False] * 3:
        if time.monotonic() > until_s:
            break
        time.sleep(0.001)
    gc.collect()
    gc.disable()
    sizes = []
    for part in range(3):
        for number in range(CALLS // 3):
            dist.all_reduce(torch.ones(1 + number % 7), async_op=bool(number % 2))
        sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        del part
    agent = agent_here()
    assert agent is not None
    collectives = agent.instruments.collectives
    assert collectives is not None
    garbage = gc.collect()
    gc.enable()
    return {
        "alive": alive, "grew_bytes": sizes[2] - sizes[0], "works": len(collectives._works),
        "garbage": garbage, "rows": rows(), "failures": dict(agent.isolation.failures),
    }


def from_many_threads() -> list[int]:
    """Calls that eight threads made in groups of their own, and the rows of them."""
    groups = [dist.new_group([0]) for _ in range(8)]
    before = rows()

    def talk(group: Any) -> None:
        for _ in range(200):
            dist.all_reduce(torch.ones(2), group=group)

    threads = [threading.Thread(target=talk, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [8 * 200, rows() - before]


def hushed() -> int:
    """Rows of what is called while probe acts."""
    agent = agent_here()
    assert agent is not None
    before = rows()
    agent.isolation.mute()
    dist.all_reduce(torch.ones(2))
    agent.isolation.unmute()
    return rows() - before


def compiled() -> list[Any]:
    """A compiled function with a collective in it: value, graphs, breaks, recompilations."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    @torch.compile(backend="eager")
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        return y.sum()

    values = [float(step(torch.ones(5) * number)) for number in range(3)]
    counters = torch._dynamo.utils.counters
    return [values, dict(counters["stats"]), sum(counters["graph_break"].values())]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{Path(folder) / 'store'}", rank=0, world_size=1)
        dist.all_reduce(torch.ones(2))
        before = classes()
        plain = {"failure": failure(), "compiled": compiled()}
        found: dict[str, Any] = {
            "failure": watched(failure), "compiled": watched(compiled), "plain": plain,
            "kept": watched(kept_alive), "threads": watched(from_many_threads),
            "hushed": watched(hushed),
            "replaced": watched(lambda: len(changed(before))), "left": changed(before),
        }
        print("READY", flush=True)
        print("RESULT " + json.dumps(found), flush=True)
        sys.stdin.readline()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
