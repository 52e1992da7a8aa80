"""Job 7: a DataLoader with 0, 2 or 4 workers, forked or spawned, kept between epochs or not.

An epoch is 4 batches, so workers that are not kept start and end all the time.
`batch_workers` says which worker made each batch (-1: the training process).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, get_worker_info

from ledger import Ledger, options

BATCHES = 4
BATCH = 8


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Samples computed from their index, with the number of the worker that made them."""

    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        x = torch.arange(16, dtype=torch.float32).add(index).sin()
        info = get_worker_info()
        return x, x.sum(dim=0, keepdim=True), -1 if info is None else info.id


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start", choices=("fork", "spawn"), default="fork")
    parser.add_argument("--persistent", action="store_true", help="keep the workers between epochs")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    workers = arguments.workers
    train_loader = DataLoader(
        Samples(), batch_size=BATCH, shuffle=True, num_workers=workers,
        multiprocessing_context=arguments.start if workers else None,
        persistent_workers=arguments.persistent and workers > 0,
    )
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch_workers: list[int] = []
    while ledger.running:
        for x, y, worker in train_loader:
            ledger.fetched("train_loader")
            batch_workers.append(int(worker[0]))
            optimizer.zero_grad()
            loss = functional.mse_loss(model(x), y)
            loss.backward()
            ledger.loss(loss)
            optimizer.step()
            ledger.step()
            if not ledger.running:
                break
    ledger.extra = {"batch_workers": batch_workers}
    ledger.finish(model)


if __name__ == "__main__":
    main()
