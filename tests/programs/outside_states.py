"""Gets into one state that a job can be in, says READY before, and stays there; standard library only.

The first argument names the state, which is a function here. `computes` ends: it prints the sum it got.
"""

from __future__ import annotations

import _thread
import ctypes
import json
import os
import sys
import threading
import time

LONG_S = 600
PEOPLE = 64


def ready() -> None:
    print("READY", os.getpid(), flush=True)


def sleeps() -> None:
    ready()
    time.sleep(LONG_S)


def holds_the_gil() -> None:
    """In C, without giving the GIL away (`PyDLL`), on the thread that calls."""
    usleep = ctypes.PyDLL(None).usleep
    ready()
    while True:
        usleep(LONG_S * 1_000_000)


def another_thread_holds_the_gil() -> None:
    threading.Thread(target=holds_the_gil, name="holder", daemon=True).start()
    while True:
        waits_for_the_gil()


def waits_for_the_gil() -> None:
    time.sleep(0.01)


def deadlocks() -> None:
    first, second = threading.Lock(), threading.Lock()
    both = threading.Barrier(2)

    def takes(one: threading.Lock, other: threading.Lock) -> None:
        with one:
            both.wait()
            with other:
                raise AssertionError("no deadlock")

    threading.Thread(target=takes, args=(second, first), name="crosses", daemon=True).start()
    threading.Timer(0.0, ready).start()
    takes(first, second)


def is_stuck_in_the_kernel() -> None:
    """State D: who spawns waits uninterruptibly until the child has run `exec`, with the GIL.

    The child first opens a pipe that nobody writes to: whoever opens it for writing ends this."""
    pipe = sys.argv[2]
    os.mkfifo(pipe)
    ready()
    child = os.posix_spawn(
        "/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, pipe, os.O_RDONLY, 0)]
    )
    os.waitpid(child, 0)
    print("FREE", flush=True)
    time.sleep(LONG_S)


def has_many_threads() -> None:
    everybody = threading.Barrier(PEOPLE)

    def one_of_many() -> None:
        everybody.wait()
        time.sleep(LONG_S)

    for number in range(PEOPLE - 1):
        threading.Thread(target=one_of_many, name=f"person-{number}", daemon=True).start()
    everybody.wait()
    ready()
    time.sleep(LONG_S)


def keeps_secrets() -> None:
    password = "correct horse"
    settings = {"api_key": "battery staple", "batch": 4}
    remembered = "hf_" + "a" * 30
    n_tokens = 17
    ready()
    time.sleep(LONG_S)
    print(password, settings, remembered, n_tokens)


def has_children() -> None:
    """One that is Python and one that is not."""
    import subprocess

    code = "import time\ndef child_sleeps():\n  print('up', flush=True); time.sleep(600)\nchild_sleeps()"
    python = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    other = subprocess.Popen(["sleep", str(LONG_S)])
    assert python.stdout is not None
    python.stdout.readline()
    print("CHILDREN", python.pid, other.pid, flush=True)
    sleeps()


def spins() -> None:
    """One thread computes in C with the GIL given away; the main one sleeps."""
    import zlib

    block = bytes(1 << 24)

    def spinning() -> None:
        while True:
            zlib.crc32(block)

    threading.Thread(target=spinning, name="spinner", daemon=True).start()
    sleeps()


def calls_back_and_forth() -> None:
    """Python in C in Python, several times: qsort calls us, sorted and map do, a class does."""

    class Nested:
        def __init__(self) -> None:
            sorted([1, 2], key=key)

    def key(number: int) -> list[None]:
        return list(map(innermost, [number]))

    def innermost(_: int) -> None:
        ready()
        time.sleep(LONG_S)

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    def compare(_one: int, _other: int) -> int:
        Nested()
        return 0

    ctypes.CDLL(None).qsort((ctypes.c_int * 2)(2, 1), 2, 4, compare)


def recurses() -> None:
    """Two threads whose stacks never stay as they are."""

    def leaf(number: int) -> int:
        return number * number + 1

    def deep(level: int) -> int:
        return deep(level - 1) + 1 if level else sum(leaf(number) for number in range(30))

    def runs() -> None:
        while True:
            deep(15)

    threading.Thread(target=runs, name="other", daemon=True).start()
    ready()
    runs()


def has_a_bare_thread() -> None:
    """One that does not begin in `threading`, as those that C++ makes do not."""
    started = _thread.allocate_lock()
    started.acquire()

    def bare_thread() -> None:
        started.release()
        time.sleep(LONG_S)

    _thread.start_new_thread(bare_thread, ())
    started.acquire()
    sleeps()


def computes() -> None:
    ready()
    print("RESULT", json.dumps({"sum": checksum()}), flush=True)


def checksum(rounds: int = 300_000) -> float:
    """Integers, floats and dictionaries, and a thread that does the same; always the same number."""
    sums: list[float] = []

    def work() -> None:
        number, total, seen = 1, 0.0, {}
        for _ in range(rounds):
            number = number * 6364136223846793005 % (1 << 63) + 1
            seen[number % 97] = float(number) * 1.000001
            total += seen[number % 97] / 3.0
        sums.append(total)

    other = threading.Thread(target=work)
    other.start()
    work()
    other.join()
    return sums[0] + sums[1]


if __name__ == "__main__":
    globals()[sys.argv[1]]()
