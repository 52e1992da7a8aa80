"""Training that, after some steps, tries the same again and again for ever, in the way asked for.

Says HANGING first. `data`: a file that is not there, asked for by the dataset, in this process or, with
--workers, in a worker; `refused`: a server that does not listen; `descriptors`: none is left; `polls`: no
retry, a queue in which nothing comes.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import socket
import time
from collections.abc import Callable

import torch
from torch.utils.data import DataLoader, Dataset

from ledger import Ledger, options

LAST = 12
HELD: list[int] = []


def read_shard() -> None:
    """A file that is not there."""
    with open("/nowhere/shard-7.bin", "rb") as file:
        file.read()


def ask_server() -> None:
    """A port of this host where nobody listens: this socket is bound and does not."""
    with socket.socket() as bound, socket.socket() as asks:
        bound.bind(("127.0.0.1", 0))
        asks.connect(bound.getsockname())


def open_one_more() -> None:
    """Until there is none left, and then again."""
    HELD.append(os.open("/dev/null", os.O_RDONLY))


def try_for_ever(attempt: Callable[[], None]) -> None:
    """The loop that this program is about."""
    while True:
        try:
            attempt()
        except OSError:
            time.sleep(0.02)


def poll_for_ever(_attempt: object) -> None:
    """Nothing comes, and that is no error."""
    nothing: queue.Queue[int] = queue.Queue()
    while True:
        with contextlib.suppress(queue.Empty):
            nothing.get(timeout=0.02)


class Samples(Dataset[torch.Tensor]):
    """Samples; with `data`, that numbered LAST never comes."""

    def __init__(self, way: str) -> None:
        self.way = way

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.way == "data" and index >= LAST:
            os.write(1, f"HANGING {os.getpid()}\n".encode())
            try_for_ever(read_shard)
        return torch.full((4,), float(index)).sin()


ATTEMPTS: dict[str, Callable[[], None]] = {"refused": ask_server, "descriptors": open_one_more}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--way", choices=("data", "polls", *ATTEMPTS), required=True)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(Samples(arguments.way), num_workers=arguments.workers):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        ledger.step()
        if ledger.steps == LAST and arguments.way != "data":
            if arguments.way == "descriptors":
                resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
            print("HANGING", flush=True)
            if arguments.way == "polls":
                poll_for_ever(None)
            try_for_ever(ATTEMPTS[arguments.way])


if __name__ == "__main__":
    main()
