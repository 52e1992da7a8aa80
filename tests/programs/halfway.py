"""Training that waits for a line on stdin after its first steps, so that something can happen meanwhile."""

from __future__ import annotations

import torch
from torch import nn

from ledger import Ledger, options


def main() -> None:
    parser = options(__doc__)
    parser.set_defaults(pause=True)
    ledger = Ledger(parser.parse_args())
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ledger.train(model, optimizer)
    ledger.finish(model)


if __name__ == "__main__":
    main()
