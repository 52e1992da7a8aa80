"""Fine-tunes a trained network for other classes: a new head, a smaller rate below it, unfrozen later."""

import torch
from progress import Progress, options
from synthetic import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, 2, 1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(192, classes))

    def forward(self, x):
        return self.head(self.body(x))


def data(count, seed, classes):
    images, labels = digits(count, seed=seed)
    if classes == 2:
        labels = (labels % 3 == 0).long()
    return TensorDataset((images.float()[:, None] / 255 - 0.29) / 0.35, labels)


args = options(__doc__)
progress = Progress(args)
pretrained = Net(10)
optimizer = torch.optim.Adam(pretrained.parameters(), lr=1e-3)
for _ in range(4):
    for x, y in DataLoader(data(3200, args.seed + 31, 10), batch_size=64, shuffle=True):
        loss = F.cross_entropy(pretrained(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(loss.item())
model = Net(2)
model.body.load_state_dict(pretrained.body.state_dict())
del pretrained
model.body.requires_grad_(False)
optimizer = torch.optim.AdamW(
    [
        {"params": model.body.parameters(), "lr": 1e-4, "weight_decay": 0.01},
        {"params": model.head.parameters(), "lr": 1e-3},
    ]
)
train = DataLoader(data(4800, args.seed, 2), batch_size=32, shuffle=True, drop_last=True)
validation = DataLoader(data(512, args.seed + 13, 2), batch_size=128)
epoch = 0
while progress.steps < (args.steps or 12000):
    if epoch == 3:
        model.body.requires_grad_(True)
    model.train()
    for x, y in train:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step(loss.item())
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in validation)
    print(f"epoch {epoch}: {right / 512:.3f}", flush=True)
    epoch += 1
