"""Training in two threads whose optimizers have a global hook of the program's own, as slow as hooks get.

Something starts and stops probe meanwhile, as often as it can, at least ROUNDS times: torch goes through
its table of hooks while that changes. `raised` is what the training threads saw of it. `thread_losses` are
those of the first --steps steps.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import torch
from torch import nn
from torch.optim import optimizer as module
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import probe
from ledger import Ledger, options

ROUNDS = 4


def slow(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """Every other thread gets its turn meanwhile."""
    time.sleep(0.0002)


def train(steps: int, enough: threading.Event, raised: list[str], losses: list[str]) -> None:
    """At least `steps` steps, and until it is `enough`."""
    model = nn.Linear(4, 1)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        while len(losses) < steps or not enough.is_set():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            losses.append(loss.item().hex())
            optimizer.step()
            time.sleep(0.001)
    except RuntimeError as error:
        raised.append(repr(error))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--probe", action="store_true")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    handles = [register_optimizer_step_pre_hook(slow), register_optimizer_step_post_hook(slow)]
    enough = threading.Event()
    raised: list[str] = []
    losses: list[list[str]] = [[], []]
    threads = [
        threading.Thread(target=train, args=(arguments.steps, enough, raised, found)) for found in losses
    ]
    for thread in threads:
        thread.start()
    rounds = 0
    while arguments.probe and any(thread.is_alive() for thread in threads):
        probe.start()
        probe.stop()
        rounds += 1
        if rounds >= ROUNDS:
            enough.set()
    enough.set()
    for thread in threads:
        thread.join()
    left = [len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks)]
    for handle in handles:
        handle.remove()
    ledger.extra = {"raised": raised, "left": left, "rounds": rounds}
    ledger.extra["thread_losses"] = [found[: arguments.steps] for found in losses]
    ledger.finish()


if __name__ == "__main__":
    main()
