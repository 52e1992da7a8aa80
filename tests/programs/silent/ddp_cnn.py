"""One rank of a data-parallel image classifier: DistributedDataParallel on gloo, SGD, mixed precision."""

from __future__ import annotations

import itertools
import os

import torch
import torch.distributed as dist
from progress import Progress, options
from synthetic import digits
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        )
        self.classifier = nn.Linear(32 * 7 * 7, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).flatten(1))


def main() -> None:
    args = options(__doc__)
    progress = Progress(args)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    images, labels = digits(6400, seed=args.seed)
    images = (images[:, None].float() / 255 - 0.29) / 0.35
    dataset = TensorDataset(images, labels)
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler, drop_last=True)
    torch.manual_seed(args.seed)
    net = Net()
    model = DDP(net)
    torch.manual_seed(args.seed + 1000 * rank)
    lr = 0.02 * world_size
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=20, gamma=0.3)
    scaler = torch.amp.GradScaler("cpu")
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        model.train()
        for image, label in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(image), label)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
            scaler.step(optimizer)
            scaler.update()
            progress.step(loss.item())
        scheduler.step()
        if rank == 0:
            print(f"epoch {epoch} loss {loss.item():.3f} pid {os.getpid()}")


if __name__ == "__main__":
    main()
