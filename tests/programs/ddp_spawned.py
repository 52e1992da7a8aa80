"""DistributedDataParallel as in PyTorch's tutorials: the script spawns its ranks itself.

No launcher sets RANK: each rank passes its number to init_process_group. Prints READY when every rank has
made three steps, and trains until a line comes on stdin.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


def train(rank: int, port: int, began: Any, over: Any) -> None:
    """One rank's whole training."""
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step, ends = 0, torch.zeros(1)
    while not ends:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        step += 1
        if step == 3:
            began.put(rank)
        ends.fill_(float(over.is_set()))
        distributed.all_reduce(ends)  # all ranks stop at the same step
        time.sleep(0.02)
    distributed.destroy_process_group()


def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    began, over = context.SimpleQueue(), context.Event()
    ranks = multiprocessing.spawn(train, args=(port, began, over), nprocs=RANKS, join=False)

    def follow() -> None:
        for _ in range(RANKS):
            began.get()
        print("READY", flush=True)
        sys.stdin.readline()
        over.set()

    threading.Thread(target=follow, daemon=True).start()
    while not ranks.join():
        pass
    print("RESULT {}", flush=True)


if __name__ == "__main__":
    main()
