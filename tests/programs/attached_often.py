"""A job with torch in one of the states in which it is attached to and left, again and again.

`attached_often.py STATE [LIBRARY]` trains a small model from the same start each round and compares every bit
with what it got before it said READY. It stays in its state until SIGUSR1, says RESULT with its rounds and
the wrong ones among them, and ends with status 17. LIBRARY is attach_loops.c, compiled.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

STATUS = 17
THREADS = 500
STEPS = 3
REFERENCE: list[float] = []
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_EPERM = 1
_FORBIDDEN = {"x86_64": (101, 165, 250, 310), "aarch64": (117, 40, 219, 270)}
"""ptrace, mount, keyctl, process_vm_readv: the filters of containers forbid them, training needs none."""


class Released(Exception):
    """SIGUSR1 came while the main thread waited for a lock; torch would turn it into an error of its own."""


over = threading.Event()
"""SIGUSR1 came."""


class Work:
    """Rounds of training, each from the same start."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
        self.start = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.data = torch.arange(64.0).reshape(4, 16).sin()
        self.rounds = self.wrong = 0

    def sums(self) -> list[float]:
        self.model.load_state_dict(self.start)
        found = []
        for _ in range(STEPS):
            self.optimizer.zero_grad()
            loss = self.model(self.data).square().mean()
            loss.backward()
            self.optimizer.step()
            found.append(float(loss.detach()))
        return found + [float(parameter.detach().double().sum()) for parameter in self.model.parameters()]

    def check(self, right: bool = True) -> None:
        self.rounds += 1
        self.wrong += not (right and self.sums() == REFERENCE)


def trains(work: Work) -> None:
    while not over.is_set():
        work.check()


def sleep(work: Work) -> None:
    while not over.is_set():
        began = time.monotonic()
        time.sleep(0.25)
        work.check(time.monotonic() - began >= 0.25)


def allocate(work: Work) -> None:
    loops = ctypes.CDLL(sys.argv[2])
    ready()
    while not over.is_set():
        work.check(loops.allocate(ctypes.c_double(0.1)) == 0)


def lock(work: Work) -> None:
    """The main thread waits for a lock that nobody gives back; another one trains."""

    def other() -> None:
        while not over.is_set():
            work.check()
            time.sleep(0.01)

    trainer = threading.Thread(target=other, name="trainer", daemon=True)
    trainer.start()
    held = threading.Lock()
    held.acquire()
    signal.signal(signal.SIGUSR1, released)
    ready()
    try:
        held.acquire()
    except Released:
        over.set()
    trainer.join()


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.full((4,), float(number % 1000)) for number in itertools.count())


def loader(work: Work) -> None:
    batches = iter(DataLoader(Endless(), batch_size=4, num_workers=2))
    next(batches), next(batches)  # both workers are there
    ready()
    for number, batch in enumerate(batches, 2):
        first = float(number // 2 * 4 % 1000)
        expected = torch.arange(first, first + 4).remainder(1000).reshape(4, 1).expand(4, 4)
        work.check(torch.equal(batch, expected))
        if over.is_set():
            return


def threads(work: Work) -> None:
    held = threading.Lock()
    held.acquire()
    for _ in range(THREADS):
        threading.Thread(target=held.acquire, daemon=True).start()
    ready()
    while not over.is_set():
        work.check()
        time.sleep(0.01)


def no_new_privs(work: Work) -> None:
    assert ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    ready()
    trains(work)


def seccomp(work: Work) -> None:
    """A filter as containers have one: some calls fail with EPERM."""
    import os

    forbidden = _FORBIDDEN[os.uname().machine]
    code = [(0x20, 0, 0, 0)]  # load the number of the call
    code += [(0x15, len(forbidden) - place, 0, number) for place, number in enumerate(forbidden)]
    code += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | _EPERM)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(program), 0, 0) == 0
    assert libc.ptrace(0, 0, 0, 0) == -1 and ctypes.get_errno() == _EPERM
    ready()
    trains(work)


STATES: dict[str, Callable[[Work], None]] = {
    "trains": trains, "sleep": sleep, "allocate": allocate, "lock": lock, "loader": loader,
    "threads": threads, "no_new_privs": no_new_privs, "seccomp": seccomp,
}
SAY_READY_THEMSELVES = frozenset({"allocate", "loader", "lock", "threads", "no_new_privs", "seccomp"})


def ready() -> None:
    print("READY", flush=True)


def released(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise Released


def main() -> None:
    signal.signal(signal.SIGUSR1, lambda _number, _frame: over.set())
    torch.set_num_threads(1)
    state = sys.argv[1]
    work = Work()
    REFERENCE[:] = work.sums()
    if state not in SAY_READY_THEMSELVES:
        ready()
    STATES[state](work)
    names = sorted(thread.name for thread in threading.enumerate())
    print("RESULT", json.dumps({
        "rounds": work.rounds, "wrong": work.wrong, "threads": [name for name in names if "probe" in name],
    }), flush=True)
    sys.stdout.flush()
    sys.exit(STATUS)


if __name__ == "__main__":
    main()
