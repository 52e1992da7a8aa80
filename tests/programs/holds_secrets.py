"""Has secrets on its command line, in its environment, in an exception of a thread, and on a child's.

Any option is taken. Prints READY after some steps; after a line on stdin its training thread waits for a
child that was started with the same words, and prints WAITING with the child's pid.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading

import torch
from torch import nn


def fail() -> None:
    raise RuntimeError(f"login failed: {sys.argv[1:-4]}")


def main() -> None:
    words = sys.argv[1:]
    pairs = [word.lstrip("-+").partition("=") for word in words if "=" in word and word[0] in "-+abcdefgh"]
    args = argparse.Namespace(**{name.replace(".", "_").replace("-", "_"): value for name, _, value in pairs})
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    steps = 0
    rest_s = float(os.environ.get("REST_S", "0.01"))
    while not told.wait(0.01 if steps < 20 else rest_s):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        steps += 1
        if steps == 20:
            print("READY", len(vars(args)), flush=True)
    child = subprocess.Popen([sys.executable, "-S", "-c", "input()", *words], stdin=subprocess.PIPE)
    print("WAITING", child.pid, flush=True)
    child.wait()


if __name__ == "__main__":
    main()
