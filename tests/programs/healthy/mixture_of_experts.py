"""A mixture of eight experts, two for each token, with a loss that balances their load."""

import torch
from progress import Progress, options
from synthetic import text
from torch import nn
from torch.nn import functional as F

BLOCK, BATCH, WIDTH = 32, 16, 48


class Experts(nn.Module):
    def __init__(self, count=8, chosen=2):
        super().__init__()
        self.router = nn.Linear(WIDTH, count, bias=False)
        self.experts = nn.ModuleList(
            [nn.Sequential(nn.Linear(WIDTH, 96), nn.GELU(), nn.Linear(96, WIDTH)) for _ in range(count)]
        )
        self.chosen = chosen

    def forward(self, x):
        flat = x.reshape(-1, WIDTH)
        chances = self.router(flat).softmax(-1)
        weights, picked = chances.topk(self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, place = torch.where(picked == number)
            if len(rows):
                out = out.index_add(0, rows, weights[rows, place, None] * expert(flat[rows]))
        share = F.one_hot(picked, len(self.experts)).float().sum(1).mean(0)
        self.balance = len(self.experts) * (share * chances.mean(0)).sum()
        return out.view_as(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.position = nn.Embedding(128, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.norm1, self.norm2, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.experts = Experts()
        self.head = nn.Linear(WIDTH, 128)
        self.register_buffer("mask", torch.ones(BLOCK, BLOCK).triu(1).bool())

    def forward(self, tokens):
        x = self.token(tokens) + self.position.weight
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, attn_mask=self.mask, need_weights=False)[0]
        x = x + self.experts(self.norm2(x))
        return self.head(self.norm(x)), self.experts.balance


def batch(data):
    starts = torch.randint(len(data) - BLOCK - 1, (BATCH,))
    rows = torch.stack([data[i : i + BLOCK + 1] for i in starts])
    return rows[:, :-1], rows[:, 1:]


args = options(__doc__)
progress = Progress(args)
total = args.steps or 12000
data = text(1 << 18)
train, held_out = data[:230000], data[230000:]
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
scheduler = torch.optim.lr_scheduler.SequentialLR(
    optimizer,
    [
        torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, 1.0, 200),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total - 200, 1e-4),
    ],
    [200],
)
for step in range(total):
    x, y = batch(train)
    logits, balance = model(x)
    loss = F.cross_entropy(logits.flatten(0, 1), y.flatten()) + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    if step % 500 == 499:
        model.eval()
        with torch.no_grad():
            x, y = batch(held_out)
            print(f"held out {F.cross_entropy(model(x)[0].flatten(0, 1), y.flatten()):.3f}", flush=True)
        model.train()
    progress.step(loss.item())
