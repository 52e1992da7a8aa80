"""One rank of a ranker of search results: a network over features, pairwise loss, DistributedDataParallel."""

from __future__ import annotations

import itertools
import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, RESULTS = 60, 12


def queries(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of twelve results for each query, and how well (0 to 4) each suits it."""
    source = torch.Generator().manual_seed(seed)
    taste = torch.randn(FEATURES, 4, generator=torch.Generator().manual_seed(13)) / FEATURES**0.5
    features = torch.randn(count, RESULTS, FEATURES, generator=source)
    views = features @ taste
    worth = views[..., 0] + views[..., 1] * views[..., 2] + views[..., 3].abs()
    worth = worth + 0.3 * torch.randn(count, RESULTS, generator=source)
    return features, torch.bucketize(worth, torch.tensor([-0.4, 0.5, 1.4, 2.3])).float()


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(FEATURES, 384), nn.LayerNorm(384), nn.GELU(),
            nn.Linear(384, 384), nn.LayerNorm(384), nn.GELU(),
        )
        self.score = nn.Linear(384, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.score(self.body(features)).squeeze(-1)


def pairwise(scores: torch.Tensor, worth: torch.Tensor) -> torch.Tensor:
    better = worth[:, :, None] > worth[:, None, :]
    return F.softplus(scores[:, None, :] - scores[:, :, None])[better].mean()


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    folder = Path(args.out or tempfile.gettempdir())
    checkpoint = folder / f"ranker_{os.environ.get('MASTER_PORT', 0)}.pt"
    data = TensorDataset(*queries(8000, args.seed))
    sampler = DistributedSampler(data, seed=args.seed)
    loader = DataLoader(data, batch_size=32, sampler=sampler, drop_last=True)
    test_features, test_worth = queries(200, args.seed + 10_000)
    model = DistributedDataParallel(Ranker())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3 * world**0.5, weight_decay=0.05)
    step = 0
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        model.train()
        for features, worth in loader:
            loss = pairwise(model(features), worth)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 50 == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                if rank == 0:
                    torch.save(state, checkpoint)
            progress.step(loss.item())
        if rank == 0:
            model.eval()
            with torch.no_grad():
                test_loss = pairwise(model.module(test_features), test_worth).item()
            print(f"epoch {epoch}: train {loss.item():.3f}, test {test_loss:.3f}")


if __name__ == "__main__":
    main()
