"""Job 6: evaluation. No optimizer and no backward; with a DataLoader, or with --plain without one."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ledger import Ledger, options

SAMPLES = 256
BATCH = 8


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--plain", action="store_true", help="slices of a tensor instead of a DataLoader")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    inputs = torch.randn(SAMPLES, 64)
    loader = DataLoader(TensorDataset(inputs), batch_size=BATCH)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).eval()
    total = 0.0
    with torch.no_grad():
        while ledger.running:
            for (batch,) in zip(inputs.split(BATCH), strict=True) if arguments.plain else loader:
                if not arguments.plain:
                    ledger.fetched("loader")
                with ledger.phase("forward"):
                    total += float(model(batch).sum())
                ledger.step()
                if not ledger.running:
                    break
    ledger.extra = {"total": total.hex()}
    ledger.finish(model)


if __name__ == "__main__":
    main()
