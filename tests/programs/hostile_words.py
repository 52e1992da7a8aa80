"""A training in which whatever can be named is named like markup: modules, functions, files, events.

Trains until killed. A line on stdin says what it does next: `nan` (its loss is NaN from then on) or `hang`
(in a function with such a name, in a file with such a name).
"""

from __future__ import annotations

import select
import sys
import time
from typing import Any

import torch
from torch import nn

import probe
from ledger import Ledger, options

WORDS = "<img src=x onerror=hacked=1>"
SCRIPT = "<script>hacked=1</script>"


def named_like_markup() -> Any:
    """A function that sleeps for an hour; its name and its file are markup."""
    code = compile("def hang(sleep):\n    sleep(3600)\n", f"/tmp/{SCRIPT}.py", "exec")
    room: dict[str, Any] = {}
    exec(code, room)
    hang = room["hang"]
    names = {"co_name": WORDS, **({"co_qualname": WORDS} if sys.version_info >= (3, 11) else {})}
    hang.__code__ = hang.__code__.replace(**names)
    return hang


def main() -> None:
    arguments = options(__doc__).parse_args()
    arguments.forever = True
    ledger = Ledger(arguments)
    model = nn.Sequential()
    model.add_module(WORDS, nn.Linear(4, 4))
    model.add_module(SCRIPT, nn.ReLU())
    model.add_module("out", nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    told = ""
    probe.event(WORDS, SCRIPT, value=1.0)
    while ledger.running:
        if select.select([sys.stdin], [], [], 0)[0]:
            told = sys.stdin.readline().strip()
        optimizer.zero_grad()
        loss = model(torch.ones(8, 4)).square().mean()
        if told == "nan":
            loss = loss * float("nan")
        if told == "hang":
            print("HANGING", flush=True)
            named_like_markup()(time.sleep)
        loss.backward()
        ledger.loss(loss)
        optimizer.step()
        ledger.step()


if __name__ == "__main__":
    main()
