"""Training that hangs in its fifth step in the way asked for, after a line on stdin; says HANGING before.

The line is waited for so that a test may look first. None of the ways ends by itself. With --thread it trains
in a thread that is not the main one.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import re
import sys
import threading
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from ledger import Ledger, options

LAST_STEP = 5
first, second = threading.Lock(), threading.Lock()
both_hold = threading.Barrier(2)


def hang_in_read() -> None:
    """Blocked in C, the GIL released: a pipe that nobody writes to."""
    reading, _writing = os.pipe()
    os.read(reading, 1)


def hang_in_sleep() -> None:
    """Blocked in C, the GIL released: asleep for an hour."""
    time.sleep(3600)


def hang_with_gil() -> None:
    """Asleep in C without giving the GIL back."""
    ctypes.PyDLL(None).sleep(3600)


def hang_in_regex() -> None:
    """Computing in C without giving the GIL back: a pattern that backtracks for years."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def hang_with_gil_elsewhere() -> None:
    """Another thread sleeps in C with the GIL; this one waits for the GIL."""
    thread = threading.Thread(target=hang_with_gil, name="user-thread", daemon=True)
    thread.start()
    while True:
        pass


def backwards() -> None:
    """Take the two locks in the other order."""
    with second:
        both_hold.wait()
        with first:
            pass


def hang_in_deadlock() -> None:
    """Two threads, two locks, taken in opposite orders."""
    threading.Thread(target=backwards, name="other-order", daemon=True).start()
    with first:
        both_hold.wait()
        with second:
            pass


def hang_in_event() -> None:
    """An event that nobody sets."""
    threading.Event().wait()


def hang_in_python() -> None:
    """Running for ever: a condition that never comes true, over several lines."""
    found = 0
    while found >= 0:
        found += 1
        if found > 1000:
            found = 0


WAYS: dict[str, Callable[[], None]] = {
    "read": hang_in_read,
    "sleep": hang_in_sleep,
    "gil": hang_with_gil,
    "regex": hang_in_regex,
    "gil elsewhere": hang_with_gil_elsewhere,
    "deadlock": hang_in_deadlock,
    "event": hang_in_event,
    "python": hang_in_python,
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--way", choices=[*WAYS, "none"], required=True, help="none: trains on")
    parser.add_argument("--thread", action="store_true", help="train in another thread")
    arguments = parser.parse_args()
    arguments.forever = True
    if not arguments.thread:
        return train(arguments)
    thread = threading.Thread(target=train, args=(arguments,), name="trainer")
    thread.start()
    return thread.join()


def train(arguments: argparse.Namespace) -> None:
    ledger = Ledger(arguments)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while ledger.running:
        x = torch.full((4, 16), float(ledger.steps)).sin()
        optimizer.zero_grad()
        loss = functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        loss.backward()
        if ledger.steps == LAST_STEP and arguments.way != "none":
            sys.stdin.readline()
            print(f"HANGING {os.getpid()}", flush=True)
            WAYS[arguments.way]()
        optimizer.step()
        ledger.step()
        time.sleep(0.001)  # leaves the two cores to the other tests


if __name__ == "__main__":
    main()
