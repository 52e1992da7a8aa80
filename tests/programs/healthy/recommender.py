"""Ranks items for users: sparse embeddings under SparseAdam, a dense network under Adam, negatives."""

import torch
from progress import Progress, options
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

USERS, ITEMS, WIDTH = 500, 800, 16


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, WIDTH, sparse=True)
        self.items = nn.Embedding(ITEMS, WIDTH, sparse=True)
        nn.init.normal_(self.users.weight, std=0.1)
        nn.init.normal_(self.items.weight, std=0.1)
        self.net = nn.Sequential(
            nn.Linear(2 * WIDTH, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, users, items):
        u, i = self.users(users), self.items(items)
        return self.net(torch.cat([u, i], -1)).squeeze(-1) + (u * i).sum(-1)


args = options(__doc__)
progress = Progress(args)
total = args.steps or 15000
taste, kind = torch.randn(USERS, 4), torch.randn(ITEMS, 4)
affinity = taste @ kind.T
seen = torch.stack([row.topk(60).indices for row in affinity + 0.7 * torch.randn(USERS, ITEMS)])
users = torch.arange(USERS).repeat_interleave(60)
order = torch.randperm(len(users))
users, items = users[order], seen.flatten()[order]
train = DataLoader(TensorDataset(users[:-3000], items[:-3000]), batch_size=128, shuffle=True, drop_last=True)
model = Ranker()
sparse = torch.optim.SparseAdam([model.users.weight, model.items.weight], lr=2e-3)
dense = torch.optim.Adam(model.net.parameters(), lr=1e-3, weight_decay=1e-5)
while progress.steps < total:
    model.train()
    for user, item in train:
        other = torch.randint(ITEMS, item.shape)
        loss = -F.logsigmoid(model(user, item) - model(user, other)).mean()
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        sparse.step()
        dense.step()
        progress.step(loss.item())
    model.eval()
    with torch.no_grad():
        user, item = users[-3000:], items[-3000:]
        auc = (model(user, item) > model(user, torch.randint(ITEMS, item.shape))).float().mean()
    print(f"auc {auc:.3f}", flush=True)
