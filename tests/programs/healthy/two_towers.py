"""Matches images with captions: a frozen backbone trained before, a text tower, InfoNCE, a temperature."""

import math

import torch
from progress import Progress, options
from synthetic import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

args = options(__doc__)
progress = Progress(args)
total = args.steps or 9000


def pretrained():
    """A small network that was trained to classify the images, without its head."""
    backbone = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 49, 64),
        nn.ReLU(),
    )
    head = nn.Linear(64, 10)
    optimizer = torch.optim.Adam([*backbone.parameters(), *head.parameters()], lr=1e-3)
    images, labels = digits(2000, seed=1234)
    for _ in range(5):
        for rows in torch.randperm(2000).split(50):
            loss = F.cross_entropy(
                head(backbone((images[rows].float()[:, None] / 255 - 0.29) / 0.35)), labels[rows]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return backbone.state_dict()


class Towers(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 49, 64),
            nn.ReLU(),
        )
        self.project = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, width))
        self.words = nn.Embedding(200, 32)
        self.text = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, width))
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.backbone.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, images, captions):
        with torch.no_grad():
            seen = self.backbone(images)
        a = F.normalize(self.project(seen), dim=1)
        b = F.normalize(self.text(self.words(captions).mean(1)), dim=1)
        return self.scale.exp().clamp(max=100) * a @ b.T


def data(count, seed):
    images, labels = digits(count, seed=seed)
    source = torch.Generator().manual_seed(seed)
    captions = torch.stack(
        [
            labels * 4 + torch.randint(4, (count,), generator=source),
            40 + torch.randint(160, (count,), generator=source),
        ],
        1,
    )
    return TensorDataset((images.float()[:, None] / 255 - 0.29) / 0.35, captions, labels)


train = DataLoader(data(6400, args.seed), batch_size=64, shuffle=True, drop_last=True)
validation = DataLoader(data(256, args.seed + 3), batch_size=64)
state = pretrained()
model = Towers()
model.backbone.load_state_dict(state)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total, eta_min=1e-5)
while progress.steps < total:
    model.train()
    for images, captions, _ in train:
        logits = model(images, captions)
        target = torch.arange(len(images))
        loss = (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        progress.step(loss.item())
        if progress.steps >= total:
            break
    model.eval()
    with torch.no_grad():
        right = [
            (labels[model(images, captions).argmax(1)] == labels).float().mean()
            for images, captions, labels in validation
        ]
    print(f"retrieved {sum(right) / len(right):.3f}", flush=True)
