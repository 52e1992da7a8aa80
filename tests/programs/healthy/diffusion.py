"""A denoising diffusion model of small images: U-shaped, an average of its weights, samples now and then."""

import copy

import torch
from progress import Progress, options
from synthetic import digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

STEPS = 100
beta = torch.linspace(1e-4, 0.05, STEPS)
kept = torch.cumprod(1 - beta, 0)


class Residual(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)
        self.conv1, self.conv2 = nn.Conv2d(inputs, outputs, 3, 1, 1), nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.time = nn.Linear(32, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x, t):
        hidden = self.conv1(F.silu(self.norm1(x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.conv2(F.silu(self.norm2(hidden)))


class UNet(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.first = nn.Conv2d(1, width, 3, 1, 1)
        self.down1, self.down2 = Residual(width, width), Residual(width, 2 * width)
        self.middle = Residual(2 * width, 2 * width)
        self.up2, self.up1 = Residual(4 * width, width), Residual(2 * width, width)
        self.norm, self.last = nn.GroupNorm(4, width), nn.Conv2d(width, 1, 3, 1, 1)

    def forward(self, x, t):
        angles = t[:, None].float() * torch.exp(-torch.arange(8) * 0.9)
        t = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        a = self.down1(self.first(x), t)
        b = self.down2(F.avg_pool2d(a, 2), t)
        c = self.middle(b, t)
        d = self.up2(torch.cat([c, b], 1), t)
        e = self.up1(torch.cat([F.interpolate(d, scale_factor=2), a], 1), t)
        return self.last(F.silu(self.norm(e)))


@torch.no_grad()
def sample(model, count):
    x = torch.randn(count, 1, 16, 16)
    for step in reversed(range(STEPS)):
        noise = model(x, torch.full((count,), step))
        x = (x - beta[step] / (1 - kept[step]).sqrt() * noise) / (1 - beta[step]).sqrt()
        if step:
            x = x + beta[step].sqrt() * torch.randn_like(x)
    return x


args = options(__doc__)
progress = Progress(args)
total = args.steps or 12000
images = F.interpolate(digits(6400, seed=args.seed)[0].float()[:, None] / 127.5 - 1, size=16, mode="area")
loader = DataLoader(TensorDataset(images), batch_size=32, shuffle=True, drop_last=True)
model = UNet()
ema = copy.deepcopy(model).eval().requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=total, pct_start=0.05)
while progress.steps < total:
    for (x,) in loader:
        t = torch.randint(STEPS, (len(x),))
        noise = torch.randn_like(x)
        a = kept[t].view(-1, 1, 1, 1)
        loss = F.mse_loss(model(a.sqrt() * x + (1 - a).sqrt() * noise, t), noise)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            for averaged, current in zip(ema.parameters(), model.parameters(), strict=False):
                averaged.lerp_(current, 0.005)
        if progress.steps % 2000 == 1999:
            print(f"samples: {sample(ema, 8).std():.3f}", flush=True)
        progress.step(loss.item())
        if progress.steps >= total:
            break
