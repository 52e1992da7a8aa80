"""Has a secret in every kind of text that is recorded: a module's name, a row of its own, the names of a span
and of a logged value, an exception of a thread; SECRETS tells them, as JSON. Prints READY after some steps,
and waits for a lock for ever after a line on stdin, having said HANGING.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from dataclasses import dataclass

import torch
from torch import nn

import probe


@probe.table
@dataclass
class Upload:
    """file that was uploaded"""

    address: str
    api_key: str


def fail(secret: str) -> None:
    raise RuntimeError(f"login failed: password={secret}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-key", required=True)
    parser.parse_args()
    assert os.environ["HF_TOKEN"]
    given = argparse.Namespace(**json.loads(os.environ["SECRETS"]))
    torch.manual_seed(0)
    model = nn.Sequential()
    model.add_module(given.module, nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    thread = threading.Thread(target=fail, args=(given.exception,))
    thread.start()
    thread.join()
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    steps = 0
    while not told.wait(0.05):
        optimizer.zero_grad()
        with probe.span(f"upload {given.span}"):
            model(torch.randn(4, 8)).sum().backward()
        probe.record(Upload(f"https://me:{given.row}@host/{steps}", given.field))
        probe.log(f"loss of {given.logged}", 1.0 / (steps + 1))
        optimizer.step()
        steps += 1
        if steps == 20:
            print("READY", flush=True)
    optimizer.zero_grad()
    print("HANGING", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
