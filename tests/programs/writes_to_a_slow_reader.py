"""Writes to a pipe that is read slowly, while a thread has the server started over and over.

Prints how many writes were whole and how many were cut short: a signal in the middle of one cuts it.
Needs no torch.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from probe.base.settings import Settings
from probe.boot.launch import ensure_server

STARTS = 20
SIZE = 200_000


def read_slowly(descriptor: int) -> None:
    """A page at a time."""
    pause = threading.Event()
    while os.read(descriptor, 4096):
        pause.wait(0.0002)


def start_servers() -> None:
    """What the agent does when there is no server."""
    for _ in range(STARTS):
        ensure_server(Path(sys.argv[1]), Settings(), wait_s=0)


def main() -> None:
    read, write = os.pipe()
    if os.fork() == 0:
        os.close(write)
        read_slowly(read)
        os._exit(0)
    os.close(read)
    thread = threading.Thread(target=start_servers)
    thread.start()
    counts = {True: 0, False: 0}
    while thread.is_alive():
        counts[os.write(write, bytes(SIZE)) == SIZE] += 1
    print(counts[True], counts[False])


if __name__ == "__main__":
    main()
