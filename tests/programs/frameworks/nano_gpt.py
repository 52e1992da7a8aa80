"""nanoGPT's train.py: at module level, batches drawn by hand, a rate set by hand, `torch.compile`,
accumulation, estimates of the loss now and then. `--no-compile` runs it eagerly."""

from __future__ import annotations

import math
from contextlib import nullcontext

import torch
from account import Account, options
from torch import nn
from torch.nn import functional

parser = options(__doc__)
parser.add_argument("--no-compile", action="store_true")
arguments = parser.parse_args()
account = Account(arguments)

block_size, batch_size, gradient_accumulation_steps = 16, 4, 2
n_embd, n_head, vocab_size = 16, 2, 32
learning_rate, min_lr, warmup_iters, lr_decay_iters = 1e-2, 1e-3, 5, 1000
eval_interval, eval_iters, grad_clip = 10, 2, 1.0
ctx = nullcontext()
data = torch.randint(0, vocab_size, (2000,), generator=torch.Generator().manual_seed(3))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = nn.MultiheadAttention(n_embd, n_head, batch_first=True)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 2 * n_embd), nn.GELU(), nn.Linear(2 * n_embd, n_embd))

    def forward(self, x):
        normed = self.ln_1(x)
        x = x + self.attn(normed, normed, normed, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.h = nn.ModuleList([Block()])
        self.lm_head = nn.Linear(n_embd, vocab_size)

    def forward(self, idx, targets):
        x = self.wte(idx)
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch():
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([data[i : i + block_size] for i in ix])
    return x, torch.stack([data[i + 1 : i + 1 + block_size] for i in ix])


@torch.no_grad()
def estimate_loss():
    model.eval()
    for _ in range(eval_iters):
        x, y = get_batch()
        model(x, y)
        account.evaluated += 1
    model.train()


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = min(1.0, (it - warmup_iters) / (lr_decay_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu", enabled=False)
iter_num, last = 0, arguments.steps
raw_model = model
if not arguments.no_compile:
    model = torch.compile(model)
if arguments.resume:
    import probe

    state = probe.load_checkpoint(arguments.resume, model=raw_model, optimizer=optimizer)
    iter_num = state.step
while iter_num < last:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr
    if iter_num % eval_interval == eval_interval - 1:
        estimate_loss()
    for _ in range(gradient_accumulation_steps):
        X, Y = get_batch()
        account.samples += len(X)
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    account.loss(loss.item() * gradient_accumulation_steps)
    account.rates.append(lr)
    iter_num += 1
    account.step()
account.finish(raw_model)
