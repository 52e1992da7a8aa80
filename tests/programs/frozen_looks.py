"""Forks itself to look at things, as the NaN detector does, and says what each look came to.

Each look tries what a repeated forward must not be able to do to the process that trains.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from probe.job.instruments.nan import forked_probe

HEAVY_BYTES = int(sys.argv[1]) if len(sys.argv) > 1 else 0


def looked(look: Callable[[forked_probe.Send], object], deadline_s: float = 30.0) -> dict[str, Any]:
    """What a look found, and how its process ended."""
    one = forked_probe.ForkedProbe(look, deadline_s)
    pid = one.pid
    while not one.collect():
        time.sleep(0.005)
    return {**one.found, "gone": not Path(f"/proc/{pid}").exists(), "took_ms": one.took_ms}


def main() -> None:
    torch.set_num_threads(2)
    shared = torch.zeros(8).share_memory_()
    own = torch.zeros(max(8, HEAVY_BYTES // 4)) + 1
    kept = Path(tempfile.mkdtemp()) / "kept"
    kept.write_text("before")
    stream = kept.open("a")
    near, far = socket.socketpair()
    far.setblocking(False)

    def writes_shared(send: forked_probe.Send) -> None:
        send("read", float(shared.sum()))
        shared.fill_(7.0)

    def writes_own(send: forked_probe.Send) -> None:
        own.fill_(7.0)
        torch.randn(3)
        send("sum", float(own[:8].sum()))

    def writes_files(send: forked_probe.Send) -> None:
        stream.write("after")
        stream.flush()
        near.send(b"x")
        kept.write_text("after")

    def calls_outside(send: forked_probe.Send) -> None:
        socket.create_connection(("127.0.0.1", 1))

    def hangs(send: forked_probe.Send) -> None:
        send("begun", True)
        while True:
            time.sleep(1)

    def computes(send: forked_probe.Send) -> None:
        torch.set_num_threads(1)
        x = torch.randn(1000, 1000, requires_grad=True)
        (x @ x).sum().backward()
        send("finite", bool(torch.isfinite(x.grad).all()) if x.grad is not None else None)

    loader = DataLoader(range(64), batch_size=4, num_workers=2)
    batches = iter(loader)
    next(batches)
    # With threads that are not there in a fork.
    (torch.randn(1000, 1000, requires_grad=True) @ torch.randn(1000, 1000)).exp().sum().backward()
    state = torch.get_rng_state()
    found = {
        "refusal": forked_probe.refusal(),
        "shared": looked(writes_shared), "own": looked(writes_own), "files": looked(writes_files),
        "outside": looked(calls_outside), "hangs": looked(hangs, 0.3), "computes": looked(computes),
    }
    found["batches"] = 1 + sum(1 for _ in batches)
    found["kept"] = kept.read_text()
    found["after"] = {"shared": float(shared.sum()), "own": float(own[:8].sum())}
    found["same_random"] = bool((torch.get_rng_state() == state).all())
    try:
        found["received"] = len(far.recv(10))
    except BlockingIOError:
        found["received"] = 0
    stream.close()
    kept.unlink()
    os.rmdir(kept.parent)
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
