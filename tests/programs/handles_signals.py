"""Training with signal handlers of the user's own; `handlers` is the table of all signals at three moments.

Sends itself the signals while it trains; `caught` counts what arrived.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

import torch
from torch import nn

from ledger import Ledger, options

OWN = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGPROF, signal.SIGTERM, signal.SIGCHLD)


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    caught: dict[str, int] = {}

    def handle(number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        caught[name] = caught.get(name, 0) + 1

    moments = [moment()]
    for number in OWN:
        signal.signal(number, handle)
    moments.append(moment())
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while ledger.running:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).square().mean()
        os.kill(os.getpid(), OWN[ledger.steps % 5])
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        ledger.step()
    moments.append(moment())
    caught.pop("SIGCHLD", None)  # of whom is not told
    ledger.extra = {"handlers": moments, "caught": caught}
    ledger.finish(model)


def moment() -> dict[str, str]:
    """Everything about signals that belongs to the process or to this thread."""
    descriptor = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(descriptor)
    blocked = sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
    timers = [signal.getitimer(which) for which in (signal.ITIMER_REAL, signal.ITIMER_PROF)]
    return {**table(), "wakeup": str(descriptor), "blocked": str(blocked), "timers": str(timers)}


def table() -> dict[str, str]:
    """Every signal's handler, by name."""
    return {number.name: described(number) for number in signal.Signals}


def described(number: int) -> str:
    """A handler as text."""
    handler = signal.getsignal(number)
    return getattr(handler, "__qualname__", str(handler))


if __name__ == "__main__":
    main()
