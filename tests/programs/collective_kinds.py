"""Rank RANK of a gloo job of WORLD_SIZE (at least 2) that communicates in every way there is.

At its end it says what it did: `calls`, a list of `[thread, group, seq, op, peer, elements, asynchronous,
state]`, counted by itself, and `flight`, what torch's own recorder has. `--then hang`: after the result rank
1 does not take part in an all_reduce that all others enter, and sleeps. `--then mismatch`: ranks reduce
tensors of different sizes, which ends the processes. `--then wait`: until stdin is closed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d

from ledger import Ledger, options


class Calls:
    """What was called, with the number that the group had before."""

    def __init__(self) -> None:
        self.made: list[list[Any]] = []
        self._counts: dict[str, int] = {}

    def note(
        self, op: str, elements: int | None, *, group: Any = None, peer: int | None = None,
        early: bool = False, state: str = "done", counts: int = 1,
    ) -> None:
        """A call that is made now; `counts`: places in the order of the group's collectives."""
        name = (group if group is not None else dist.group.WORLD).group_name
        self._counts[name] = self._counts.get(name, 0) + counts
        seq = self._counts[name] if counts == 1 else None
        self.made.append([threading.current_thread().name, name, seq, op, peer, elements, early, state])


def collectives(calls: Calls, rank: int, world_size: int) -> None:
    """Those of the default group."""
    x = torch.ones(4, 3)
    calls.note("all_reduce", 12)
    dist.all_reduce(x)
    calls.note("broadcast", 12, peer=1)
    dist.broadcast(x, 1)
    calls.note("all_gather", 12)
    dist.all_gather([torch.empty(4, 3) for _ in range(world_size)], x)
    calls.note("reduce", 12, peer=1)
    dist.reduce(x, 1)
    calls.note("scatter", 12 * world_size if rank == 0 else 0, peer=0)
    dist.scatter(torch.empty(4, 3), [x.clone() for _ in range(world_size)] if rank == 0 else None, 0)
    calls.note("gather", 12, peer=0)
    dist.gather(x, [torch.empty(4, 3) for _ in range(world_size)] if rank == 0 else None, 0)
    calls.note("barrier", None)
    dist.barrier()
    calls.note("monitored_barrier", None, counts=2)
    dist.monitored_barrier()
    calls.note("all_to_all_single", 2 * world_size)
    dist.all_to_all_single(torch.empty(2 * world_size), torch.ones(2 * world_size))
    calls.note("all_reduce_coalesced", 15)
    with distributed_c10d._coalescing_manager():
        dist.all_reduce(x)
        dist.all_reduce(torch.ones(3))


def asynchronous(calls: Calls) -> None:
    """Works that are waited for, and one that nobody waits for."""
    first, second = torch.ones(5), torch.ones(6)
    calls.note("all_reduce", 5, early=True)
    one = dist.all_reduce(first, async_op=True)
    calls.note("all_reduce", 6, early=True)
    two = dist.all_reduce(second, async_op=True)
    two.wait()
    one.wait()
    calls.note("all_reduce", 7, early=True, state="unknown")
    dist.all_reduce(torch.ones(7), async_op=True)


def from_one_to_another(calls: Calls, rank: int) -> None:
    """Ranks 0 and 1 send and receive."""
    if rank > 1:
        return
    other, x = 1 - rank, torch.ones(2, 2)
    for sender in (0, 1, 0):  # one has sent more often than it received, the other less often
        if rank == sender:
            calls.note("send", 4, peer=other, counts=0)
            dist.send(x, other)
        else:
            calls.note("recv", 4, peer=other, counts=0)
            dist.recv(x) if sender else dist.recv(x, other)
    calls.note("send", 4, peer=other, early=True, counts=0)
    sending = dist.isend(x, other)
    calls.note("recv", 4, peer=other, early=True, counts=0)
    dist.irecv(torch.empty(2, 2), other).wait()
    sending.wait()
    both = [dist.P2POp(dist.isend, x, other), dist.P2POp(dist.irecv, torch.empty(2, 2), other)]
    calls.note("send", 4, peer=other, early=True, counts=0)
    calls.note("recv", 4, peer=other, early=True, counts=0)
    for work in dist.batch_isend_irecv(both):
        work.wait()


def elsewhere(calls: Calls, groups: list[Any], rank: int) -> None:
    """In a group of one's own, and in another thread at the same time."""
    calls.note("all_reduce", 9, group=groups[rank])
    dist.all_reduce(torch.ones(9), group=groups[rank])

    def talk() -> None:
        for _ in range(3):
            calls.note("all_reduce", 8, group=groups[-1])
            dist.all_reduce(torch.ones(8), group=groups[-1])

    thread = threading.Thread(target=talk, name="talks")
    thread.start()
    thread.join()


def refused(calls: Calls) -> None:
    """A call that the backend refuses, and that torch then does not count."""
    calls.note("all_reduce", 5, early=True, state="failed", counts=0)
    with contextlib.suppress(RuntimeError, ValueError):
        dist.group.WORLD.allreduce([torch.ones(2), torch.ones(3)], dist.AllreduceOptions())
        raise SystemExit("that was not refused")


def flight() -> list[list[Any]]:
    """`[group, number, operation]` of what torch's Flight Recorder has."""
    c10d: Any = torch._C._distributed_c10d  # type: ignore[attr-defined]
    entries = pickle.loads(c10d._dump_fr_trace(includeStackTraces=False))["entries"]
    return [
        [entry["process_group"][0], entry["collective_seq_id"], entry["profiling_name"].partition(":")[2]]
        for entry in entries
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--then", choices=("wait", "hang", "mismatch"), default="wait")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=600))
    groups = [dist.new_group([each]) for each in range(world_size)]
    groups.append(dist.new_group(list(range(world_size))))
    calls = Calls()
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        calls.note("all_reduce", 1)
        dist.all_reduce(loss.detach())
        optimizer.step()
        ledger.step()
    collectives(calls, rank, world_size)
    asynchronous(calls)
    from_one_to_another(calls, rank)
    elsewhere(calls, groups, rank)
    refused(calls)
    for _ in range(2):  # the size of the object, and the object
        calls.note("broadcast", None, peer=0)
    dist.broadcast_object_list([{"a": 1}] if rank == 0 else [None], 0)
    ledger.extra = {"calls": calls.made, "flight": flight()}
    ledger.finish(model)
    if arguments.then == "hang":
        if rank == 1:
            time.sleep(600)
        dist.all_reduce(torch.ones(11))
    elif arguments.then == "mismatch":
        dist.all_reduce(torch.ones(100_000 if rank else 7))
        dist.barrier()
    sys.stdin.read()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
