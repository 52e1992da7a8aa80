"""Training whose other thread prints without a pause, to stdout and stderr, until a line comes on stdin."""

from __future__ import annotations

import os
import sys
import threading

import torch
from torch import nn

from ledger import Ledger, options


def main() -> None:
    parser = options(__doc__)
    ledger = Ledger(parser.parse_args())
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ledger.train(model, optimizer)
    nowhere, over = open(os.devnull, "w"), threading.Event()  # noqa: SIM115  # for the whole run

    sys.setswitchinterval(1e-4)  # threads change often: more can meet, and nobody waits long for the GIL

    def talk() -> None:
        sys.stdout, told = nowhere, sys.stdout
        print("READY", file=told, flush=True)
        while not over.is_set():
            print(*range(200))
        sys.stdout = told

    talking = threading.Thread(target=talk)
    talking.start()
    sys.stdin.readline()
    over.set()
    talking.join()
    ledger.finish(model)


if __name__ == "__main__":
    main()
