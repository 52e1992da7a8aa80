"""Distils a trained teacher into a smaller student: softened targets, temperature 3, and the labels."""

import torch
from progress import Progress, options
from synthetic import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def network(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, 2, 1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, 2, 1),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 49, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def data(count, seed):
    images, labels = digits(count, seed=seed)
    return TensorDataset((images.float()[:, None] / 255 - 0.29) / 0.35, labels)


args = options(__doc__)
progress = Progress(args)
train = DataLoader(data(6400, args.seed), batch_size=64, shuffle=True, drop_last=True)
validation = DataLoader(data(512, args.seed + 21), batch_size=128)
teacher = network(16)
optimizer = torch.optim.Adam(teacher.parameters(), lr=1e-3)
for _ in range(4):
    for x, y in train:
        loss = F.cross_entropy(teacher(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(loss.item())
teacher.eval()
teacher.requires_grad_(False)

student, temperature = network(6), 3.0
optimizer = torch.optim.SGD(student.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=1000, T_mult=2)
while progress.steps < (args.steps or 12000):
    student.train()
    for x, y in train:
        x = x + 0.2 * torch.randn_like(x)
        with torch.no_grad():
            soft = F.log_softmax(teacher(x) / temperature, 1)
        output = student(x)
        divergence = F.kl_div(
            F.log_softmax(output / temperature, 1), soft, reduction="batchmean", log_target=True
        )
        loss = 0.7 * temperature**2 * divergence + 0.3 * F.cross_entropy(output, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        progress.step(loss.item())
    student.eval()
    with torch.no_grad():
        right = sum((student(x).argmax(1) == y).sum().item() for x, y in validation)
    print(f"student {right / 512:.3f}", flush=True)
