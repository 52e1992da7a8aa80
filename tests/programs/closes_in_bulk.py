"""Closes all low descriptors again and again, as who daemonises does, and writes into files opened then.

`wrong` in the result is what became of a file: a write that failed, or content that is not its own.
"""

from __future__ import annotations

import os
import tempfile

import torch
from torch import nn

from ledger import Ledger, options

FILES = 8


def main() -> None:
    parser = options(__doc__)
    parser.set_defaults(steps=5)
    parser.add_argument("--rounds", type=int, default=3000, help="times that everything is closed")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ledger.train(model, optimizer)
    scratch = tempfile.TemporaryDirectory()
    folder = scratch.name
    wrong: list[str] = []
    for count in range(arguments.rounds):
        sum(range(2000))  # some Python, in which other threads may get their turn
        os.closerange(3, 256)
        names = [os.path.join(folder, str(number)) for number in range(FILES)]
        opened = [os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for name in names]
        own = f"round {count}".encode()
        try:
            for number in opened:
                os.write(number, own)
            sum(range(2000))
            for number in opened:
                os.write(number, own)
            found = [os.pread(number, 100, 0) for number in opened]
            wrong += [f"{content!r} in round {count}" for content in found if content != own + own]
            for number in opened:
                os.close(number)
        except OSError as error:
            wrong.append(f"{error} in round {count}")
    scratch.cleanup()
    ledger.extra = {"wrong": wrong[:10], "wrongs": len(wrong)}
    ledger.finish(model)


if __name__ == "__main__":
    main()
