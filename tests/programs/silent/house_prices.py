"""Predicts prices from a table: an MLP, Adam, cosine rate, and an average of the weights for evaluation."""

import copy

import torch
from progress import Progress, options
from synthetic import table
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

args = options(__doc__)
progress = Progress(args)

features, prices = table(34816, seed=args.seed)
mean, std = features.mean(0), features.std(0)
features = (features - mean) / std
train_set = TensorDataset(features[:32768], prices[:32768])
val_x, val_y = features[32768:], prices[32768:].unsqueeze(1)
loader = DataLoader(train_set, batch_size=128, shuffle=True, drop_last=True)


class MLP(nn.Module):
    def __init__(self, inputs: int, width: int, depth: int) -> None:
        super().__init__()
        self.first = nn.Linear(inputs, width)
        self.hidden = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(depth)])
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for layer, norm in zip(self.hidden, self.norms, strict=True):
            x = x + torch.relu(layer(norm(x)))
        return self.last(x)


model = MLP(features.shape[1], 256, 3)
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200, eta_min=2e-5)


@torch.no_grad()
def update_ema(decay: float = 0.995) -> None:
    for averaged, current in zip(ema.parameters(), model.parameters(), strict=True):
        averaged.mul_(decay).add_(current, alpha=1 - decay)


epoch = 0
while True:
    for x, y in loader:
        prediction = model(x)
        target = y.unsqueeze(1)
        loss = ((prediction - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_ema()
        progress.step(loss.item())
    scheduler.step()
    epoch += 1
    with torch.no_grad():
        val_loss = ((ema(val_x) - val_y) ** 2).mean()
    print(f"epoch {epoch} val {val_loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
