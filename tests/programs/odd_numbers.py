"""Training whose losses and logged values are the oddest numbers, under the oddest names."""

from __future__ import annotations

import torch
from torch import nn

import probe
from ledger import Ledger, options

NUMBERS = ("nan", "inf", "-inf", "-0.0", "0.0", "5e-324", "1.7976931348623157e308", "0.1", "-3.5")
NAMES = (
    "plain", "", "two\nlines", "nul\0inside", "\ud800 alone", "'; DROP TABLE python.scalars; --", "é" * 3000
)


def main() -> None:
    ledger = Ledger(options(__doc__).parse_args())
    weight = nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    for number in NUMBERS:
        optimizer.zero_grad()
        loss = weight * 0 + torch.tensor(float(number), dtype=torch.float64)
        loss.backward()
        ledger.loss(loss)
        for name in NAMES:
            probe.log(name, float(number))
        optimizer.step()
        ledger.step()
    probe.log("too large", 2**2000)  # no float: not kept, and no trouble
    probe.log("no number", "three")  # type: ignore[arg-type]
    ledger.finish()


if __name__ == "__main__":
    main()
