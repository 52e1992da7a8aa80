"""Two threads that train, each its own model, as fast as they can.

`--late` starts probe only once both train, and while a third thread makes tuples as it goes, of a kind
that breaks where somebody else holds one that is not finished.
"""

from __future__ import annotations

import threading

import torch
from torch import nn

import probe
from ledger import Ledger, options


def train(steps: int, losses: list[str], raised: list[str], ready: threading.Barrier) -> None:
    model = nn.Linear(4, 1)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    inputs = torch.ones(2, 4)
    try:
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            losses.append(loss.item().hex())
            optimizer.step()
            if step == 10:
                ready.wait()
    except (RuntimeError, SystemError) as error:
        raised.append(repr(error))
        ready.abort()


def make_tuples(over: threading.Event, raised: list[str]) -> None:
    while not over.is_set():
        try:
            tuple(number for number in range(2000))
        except SystemError as error:
            raised.append(repr(error))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--late", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1).step()  # what torch imports at its first step
    ledger = Ledger(arguments)
    raised: list[str] = []
    losses: list[list[str]] = [[], []]
    ready, over = threading.Barrier(3), threading.Event()
    threads = [
        threading.Thread(target=train, args=(arguments.steps, found, raised, ready)) for found in losses
    ]
    maker = threading.Thread(target=make_tuples, args=(over, raised))
    for thread in threads:
        thread.start()
    ready.wait()
    print("READY", flush=True)
    if arguments.late:
        maker.start()
        for _ in range(5):
            probe.start()
            probe.stop()
        probe.start()
    for thread in threads:
        thread.join()
    over.set()
    if arguments.late:
        maker.join()
    ledger.extra = {"raised": raised, "thread_losses": losses}
    ledger.finish()


if __name__ == "__main__":
    main()
