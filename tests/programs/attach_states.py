"""A process in one of the states that attaching meets, which checks its own arithmetic all the while.

`attach_states.py STATE [LIBRARY]` says READY, stays in that state until SIGUSR1, then says RESULT with what
it found: rounds of work, wrong answers, the longest gap between two rounds of the main thread. LIBRARY is
attach_loops.c, compiled. Standard library, and numpy or torch in the states named after them.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

ANSWER = sum(range(300))
SLEEP_S = 1.0
HELD_US = 4_000_000


class Released(Exception):
    """SIGUSR1 came."""


class Work:
    """Counts rounds, wrong answers, and the longest time between two rounds."""

    def __init__(self) -> None:
        self.rounds = 0
        self.wrong = 0
        self.longest_gap_s = 0.0
        self._last = time.monotonic()

    def ready(self) -> None:
        """From here on it may be attached to."""
        print("READY", flush=True)
        self._last = time.monotonic()

    def check(self, right: bool) -> None:
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self._last)
        self._last = now
        self.rounds += 1
        self.wrong += not right


def add_up(work: Work) -> None:
    total = 0
    for number in range(300):
        total += number
    work.check(total == ANSWER)


def busy(work: Work) -> None:
    while True:
        add_up(work)


def sleep(work: Work) -> None:
    while True:
        began = time.monotonic()
        time.sleep(SLEEP_S)
        work.check(time.monotonic() - began >= SLEEP_S)


def lock(work: Work) -> None:
    import threading

    work.ready()  # an import opens files, which a count of descriptors would see
    held = threading.Lock()
    held.acquire()
    held.acquire()


def recv(_work: Work) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.recv(1)


def join(_work: Work) -> None:
    import threading

    held = threading.Lock()
    held.acquire()
    worker = threading.Thread(target=held.acquire, daemon=True)
    worker.start()
    worker.join()


def many(work: Work) -> None:
    import threading

    held = threading.Lock()
    held.acquire()
    for _ in range(64):
        threading.Thread(target=held.acquire, daemon=True).start()
    work.ready()
    busy(work)


def numpy(work: Work) -> None:
    import threading

    import numpy as np

    numbers = np.arange(20_000, dtype=np.float64)
    expected = float((numbers * 2 + 1).sum())

    def go_on() -> None:
        while True:
            if float((numbers * 2 + 1).sum()) != expected:
                work.wrong += 1

    for _ in range(4):
        threading.Thread(target=go_on, daemon=True).start()
    work.ready()
    while True:
        work.check(float((numbers * 2 + 1).sum()) == expected)


def torch(work: Work) -> None:
    import torch as library

    library.set_num_threads(4)
    numbers = library.arange(90_000, dtype=library.float64).reshape(300, 300) % 7
    expected = float((numbers @ numbers).sum())
    work.ready()
    while True:
        work.check(float((numbers @ numbers).sum()) == expected)


def asleep_with_torch(work: Work) -> None:
    import torch as library

    assert library.__version__
    work.ready()
    sleep(work)


def allocate(work: Work) -> None:
    import ctypes

    loops = ctypes.CDLL(sys.argv[2])
    while True:
        work.check(loops.allocate(ctypes.c_double(0.2)) == 0)


def multiply(work: Work) -> None:
    """One long call: no system call, no allocation, the GIL released."""
    import ctypes

    loops = ctypes.CDLL(sys.argv[2])
    while True:
        work.check(loops.multiply(ctypes.c_long(15_000)) == 0)


def held(work: Work) -> None:
    """The GIL is held in C for a while, in a job that has torch."""
    import ctypes

    import torch as library

    assert library.__version__
    library_of_c = ctypes.PyDLL(None)
    work.ready()
    hold(library_of_c)
    busy(work)


def hold(library_of_c: Any) -> None:
    library_of_c.usleep(HELD_US)


def closes(work: Work) -> None:
    """The GIL is held until there is a file `go` in the working folder; before anybody else has it, every
    descriptor is closed and the file `mine` stands under their numbers."""
    import ctypes

    library_of_c = ctypes.PyDLL(None)
    sys.setswitchinterval(5)  # so long others wait before they ask for the GIL
    work.ready()
    while library_of_c.access(b"go", 0) != 0:
        library_of_c.usleep(1000)
    library_of_c.close_range(3, 65535, 0)
    mine = library_of_c.open(b"mine", 0o102, 0o644)
    for number in (*range(4, 20), *range(505, 530)):
        library_of_c.dup2(mine, number)
    sys.setswitchinterval(0.005)
    time.sleep(0.001)  # whoever waits for the GIL has it now
    busy(work)


def stuck(work: Work) -> None:
    """State D and the GIL held: who spawns waits until the child has run `exec`, and the child first opens
    a pipe (in the working folder) that nobody writes to. Another thread is parked."""
    import os
    import threading

    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
    os.mkfifo("pipe")
    work.ready()
    opened = [(os.POSIX_SPAWN_OPEN, 0, "pipe", os.O_RDONLY, 0)]
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=opened), 0)
    busy(work)


def regex(work: Work) -> None:
    """The GIL is held by one long match."""
    import re

    work.ready()
    re.match(r"(a|aa)+$", "a" * 34 + "b")
    busy(work)


STATES: dict[str, Callable[[Work], None]] = {
    name: found for name, found in list(globals().items())
    if callable(found) and name in (
        "busy", "sleep", "lock", "recv", "join", "many", "numpy", "torch", "asleep_with_torch", "allocate",
        "multiply", "held", "closes", "regex", "stuck",
    )
}
SAY_READY_THEMSELVES = frozenset(
    {"asleep_with_torch", "closes", "held", "lock", "many", "numpy", "regex", "stuck", "torch"}
)


def released(_number: int, _frame: Any) -> None:
    raise Released


def main() -> None:
    signal.signal(signal.SIGUSR1, released)
    state = sys.argv[1]
    work = Work()
    add_up(work)
    try:
        if state not in SAY_READY_THEMSELVES:
            work.ready()
        STATES[state](work)
    except Released:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    add_up(work)
    print("RESULT", json.dumps({
        "rounds": work.rounds, "wrong": work.wrong, "longest_gap_ms": work.longest_gap_s * 1e3,
        "threads": sorted(thread.name for thread in sys.modules["threading"].enumerate())
        if "threading" in sys.modules else [],
    }), flush=True)


if __name__ == "__main__":
    main()
