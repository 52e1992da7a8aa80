"""Training that forks now and then: with os.fork, with multiprocessing, and many times over.

`children` says what each child found in itself. With --orphan the last child outlives the job: it says
`ORPHAN pid` and waits to be killed.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from typing import Any

import torch
from torch import nn

from ledger import Ledger, options
from traces import traces

WIDTH = 8


class Training:
    """A model, its optimizer, and steps."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)

    def step(self) -> torch.Tensor:
        """One step on data of its own."""
        self.optimizer.zero_grad()
        loss = self.model(torch.randn(4, WIDTH)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss


def in_child(say: int, training: Training) -> None:
    """Train on with what was inherited and with something new; say what there is."""
    for one in (training, Training()):
        for _ in range(20):
            one.step()
    os.write(say, json.dumps(traces()).encode() + b"\n")


def by_fork(training: Training) -> Any:
    """What a child of os.fork says."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        in_child(write, training)
        os._exit(0)
    os.close(write)
    return heard(read, os.waitpid(pid, 0)[1])


def by_multiprocessing(training: Training) -> Any:
    """What a forked child of multiprocessing says."""
    read, write = os.pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=(write, training))
    child.start()
    os.close(write)
    child.join()
    return heard(read, child.exitcode)


def heard(read: int, code: int | None) -> Any:
    """The line from a child that has ended."""
    with os.fdopen(read) as stream:
        return [code, json.loads(stream.readline())]


def many(training: Training, times: int) -> list[int]:
    """Forks whose children compute something and end; every status."""
    found = []
    for _ in range(times):
        pid = os.fork()
        if pid == 0:
            training.step()
            os._exit(0)
        training.step()
        found.append(os.waitpid(pid, 0)[1])
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--forks", type=int, default=0)
    parser.add_argument("--orphan", action="store_true")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    training = Training()
    children = []
    while ledger.running:
        ledger.loss(training.step())
        ledger.step()
        if ledger.steps == 5:
            children.append(by_fork(training))
        if ledger.steps == 10:
            children.append(by_multiprocessing(training))
    ledger.extra = {"children": children, "statuses": many(training, arguments.forks)}
    if arguments.orphan and os.fork() == 0:
        print(f"ORPHAN {os.getpid()}", flush=True)
        threading.Event().wait()
    ledger.finish(training.model)


if __name__ == "__main__":
    main()
