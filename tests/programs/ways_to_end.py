"""Training that ends in the way asked for, after its steps: by itself, by an exception, by a signal.

Waits for a line on stdin before it ends, with --wait.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ledger import Ledger, options


class Trouble(RuntimeError):
    """What goes wrong."""


class Samples(Dataset[torch.Tensor]):
    """Five samples; the one after them is broken."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise Trouble("sample 5 is damaged")
        return torch.full((4,), float(index))


def trouble(_gradient: object = None) -> None:
    """Raise what nobody catches."""
    raise Trouble("something of the user's own is wrong")


def in_backward() -> None:
    """An exception raised within backward."""
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * 2).sum()
    loss.register_hook(trouble)
    loss.backward()


def in_loader(workers: int) -> None:
    """An exception raised by a dataset, here or in a worker."""
    context = "fork" if workers else None
    for batch in DataLoader(Samples(), num_workers=workers, multiprocessing_context=context):
        batch.sum()


def in_optimizer() -> None:
    """An exception raised by the closure of an optimizer's step."""
    torch.optim.SGD([nn.Parameter(torch.zeros(1))]).step(trouble)


def in_module() -> None:
    """An exception raised within a model's forward."""

    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            trouble()
            return x

    nn.Sequential(nn.Linear(2, 2), Broken())(torch.zeros(1, 2))


def in_thread(target: Callable[[], Any]) -> None:
    """Whatever that does, in another thread."""
    thread = threading.Thread(target=target, name="user-thread")
    thread.start()
    thread.join()


def training_thread() -> None:
    """Train a step here, and raise."""
    weight = nn.Parameter(torch.ones(2))
    weight.sum().backward()
    torch.optim.SGD([weight]).step()
    trouble()


def crash() -> None:
    """Read where nothing is."""
    ctypes.string_at(0)


def crash_of_a_child() -> None:
    """A forked child that crashes; how it ended is printed."""
    child = os.fork()
    if child == 0:
        crash()
    print(f"CHILD {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)


def with_own_faulthandler() -> None:
    """As a careful user: what there is is asked first."""
    faulthandler.disable()
    if not faulthandler.is_enabled():
        faulthandler.enable()
    crash()


def own_handler() -> None:
    """A handler for a fatal signal, put in later; it is still there at the end."""
    signal.signal(signal.SIGABRT, lambda number, frame: print(f"HANDLED {number}", flush=True))
    print("SET", flush=True)
    sys.stdin.readline()
    signal.raise_signal(signal.SIGABRT)


def beside_a_thread() -> None:
    """An exception of the main thread, which then waits for another one for ever."""
    threading.Thread(target=threading.Event().wait, name="never-ends").start()
    trouble()


def patched() -> None:
    """Say which of these are not the standard library's, and which signals are caught."""
    names = {
        "os._exit": os._exit, "faulthandler.enable": faulthandler.enable,
        "faulthandler.disable": faulthandler.disable, "faulthandler.is_enabled": faulthandler.is_enabled,
        "threading.excepthook": threading.excepthook,
    }
    found = [name for name, value in names.items() if not isinstance(value, type(len))]
    with open("/proc/self/status") as status:
        caught = next(line.split()[1] for line in status if line.startswith("SigCgt"))
    print("PATCHED " + json.dumps({"names": found, "caught": caught}), flush=True)


def by_signal(number: signal.Signals) -> None:
    """Send it to this process and wait to be ended."""
    os.kill(os.getpid(), number)
    time.sleep(60)


def leave(_number: int, _frame: object) -> None:
    """A user's own handler."""
    sys.exit(7)


def handled() -> None:
    """SIGTERM with a handler of the user's own."""
    signal.signal(signal.SIGTERM, leave)
    by_signal(signal.SIGTERM)


WAYS: dict[str, Callable[[], Any]] = {
    "return": lambda: None,
    "sys.exit": lambda: sys.exit(3),
    "sys.exit with a text": lambda: sys.exit("the user's last words"),
    "os._exit": lambda: os._exit(3),
    "exception": trouble,
    "exception in backward": in_backward,
    "exception in the optimizer": in_optimizer,
    "exception in a module": in_module,
    "exception in the dataset": lambda: in_loader(0),
    "exception in a data worker": lambda: in_loader(1),
    "exception in a thread": lambda: in_thread(trouble),
    "sys.exit in a thread": lambda: in_thread(lambda: sys.exit(5)),
    "KeyboardInterrupt": lambda: by_signal(signal.SIGINT),
    "SIGTERM": lambda: by_signal(signal.SIGTERM),
    "SIGTERM with a handler": handled,
    "abort": os.abort,
    "SIGKILL": lambda: by_signal(signal.SIGKILL),
    "SIGSEGV": crash,
    "SIGSEGV with faulthandler": with_own_faulthandler,
    "SIGSEGV of a forked child": crash_of_a_child,
    "exception in the training thread": lambda: in_thread(training_thread),
    "exception beside a thread": beside_a_thread,
    "a handler of its own": own_handler,
    "says what is patched": patched,
}


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--way", choices=WAYS, default="return")
    parser.add_argument("--wait", action="store_true")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ledger.train(model, optimizer)
    if arguments.wait:
        print("WAITING", flush=True)
        sys.stdin.readline()
    WAYS[arguments.way]()


if __name__ == "__main__":
    main()
