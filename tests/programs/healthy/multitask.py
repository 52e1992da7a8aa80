"""Three tasks on one trunk (class, position, reconstruction), weighted by learned uncertainties."""

import torch
from progress import Progress, options
from synthetic import shapes
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def data(count, seed):
    images, masks = shapes(count, seed=seed)
    area = masks.flatten(1).sum(1).float()
    line = torch.arange(32).float()
    middle = (
        torch.stack([(masks.sum(2) * line).sum(1), (masks.sum(1) * line).sum(1)], 1)
        / area.clamp(min=1)[:, None]
        / 31
    )
    return TensorDataset(images.float() / 255 - 0.2, (area > 110).long() + (area > 170).long(), middle, masks)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, 1, 1),
            nn.ReLU(),
        )
        self.size = nn.Sequential(nn.Flatten(), nn.Linear(32 * 64, 32), nn.GELU(), nn.Linear(32, 3))
        self.place = nn.Sequential(nn.Flatten(), nn.Linear(32 * 64, 32), nn.GELU(), nn.Linear(32, 2))
        self.mask = nn.Sequential(
            nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1)
        )
        self.log_variances = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        hidden = self.trunk(x)
        return self.size(hidden), self.place(hidden), self.mask(hidden).squeeze(1)


args = options(__doc__)
progress = Progress(args)
total = args.steps or 10000
train = DataLoader(data(4096, args.seed), batch_size=32, shuffle=True, drop_last=True)
validation = DataLoader(data(256, args.seed + 50), batch_size=64)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=total, power=0.9)
while progress.steps < total:
    model.train()
    for images, sizes, middles, masks in train:
        size, place, mask = model(images)
        losses = torch.stack(
            [
                F.cross_entropy(size, sizes),
                F.smooth_l1_loss(place, middles),
                F.binary_cross_entropy_with_logits(mask, masks.float()),
            ]
        )
        loss = (torch.exp(-model.log_variances) * losses + 0.5 * model.log_variances).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        progress.step(loss.item())
        if progress.steps >= total:
            break
    model.eval()
    with torch.no_grad():
        right = [(model(images)[0].argmax(1) == sizes).float().mean() for images, sizes, *_ in validation]
    print(f"sizes {sum(right) / len(right):.3f}", flush=True)
