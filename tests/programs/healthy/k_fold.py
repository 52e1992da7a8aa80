"""Five folds and three widths of a regression, one after another, each stopped early on its fold."""

import copy

import torch
from progress import Progress, options
from synthetic import table
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Subset, TensorDataset

args = options(__doc__)
progress = Progress(args)
features, prices = table(4000, seed=args.seed)
folds = torch.randperm(4000).chunk(5)


def trained(width, train_rows, val_rows):
    mean, std = features[train_rows].mean(0), features[train_rows].std(0)
    data = TensorDataset((features - mean) / std, prices[:, None])
    train = DataLoader(Subset(data, train_rows.tolist()), batch_size=64, shuffle=True, drop_last=True)
    val_x, val_y = ((features[val_rows] - mean) / std), prices[val_rows, None]
    model = nn.Sequential(
        nn.Linear(8, width),
        nn.SiLU(),
        nn.Dropout(0.1),
        nn.Linear(width, width),
        nn.SiLU(),
        nn.Linear(width, 1),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=3)
    best, best_state, patience = float("inf"), None, 0
    for _epoch in range(60):
        model.train()
        for x, y in train:
            loss = F.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            progress.step(loss.item())
        model.eval()
        with torch.no_grad():
            val = F.mse_loss(model(val_x), val_y).item()
        scheduler.step(val)
        if val < best:
            best, best_state, patience = val, copy.deepcopy(model.state_dict()), 0
        else:
            patience += 1
            if patience == 8:
                break
    model.load_state_dict(best_state)
    with torch.no_grad():
        return F.mse_loss(model.eval()(val_x), val_y).item()


for width in (32, 64, 128):
    scores = []
    for number in range(5):
        others = torch.cat([fold for place, fold in enumerate(folds) if place != number])
        scores.append(trained(width, others, folds[number]))
        print(f"width {width}, fold {number}: {scores[-1]:.4f}", flush=True)
    print(f"width {width}: {sum(scores) / 5:.4f}", flush=True)
