"""Solves Poisson's equation with a network whose residual is the loss: Adam first, then LBFGS."""

import math

import torch
from progress import Progress, options
from torch import nn

args = options(__doc__)
progress = Progress(args)
network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
points = torch.rand(256, 2)
edge = torch.rand(64, 2)
edge[torch.arange(64), torch.randint(2, (64,))] = torch.randint(2, (64,)).float()
check = torch.rand(512, 2)


def exact(x):
    return (math.pi * x[:, :1]).sin() * (math.pi * x[:, 1:]).sin()


def residual():
    x = points.clone().requires_grad_(True)
    u = network(x)
    (first,) = torch.autograd.grad(u.sum(), x, create_graph=True)
    second = sum(
        torch.autograd.grad(first[:, i].sum(), x, create_graph=True)[0][:, i : i + 1] for i in range(2)
    )
    inside = ((second + 2 * math.pi**2 * exact(x)) ** 2).mean()
    return inside + 100 * (network(edge) ** 2).mean()


adam = torch.optim.Adam(network.parameters(), lr=2e-3)
for _ in range(3000):
    loss = residual()
    adam.zero_grad()
    loss.backward()
    adam.step()
    progress.step(loss.item())
lbfgs = torch.optim.LBFGS(
    network.parameters(), lr=1.0, max_iter=10, history_size=50, line_search_fn="strong_wolfe"
)


def closure():
    lbfgs.zero_grad()
    loss = residual()
    loss.backward()
    return loss


for round in range(args.steps or 1500):
    loss = lbfgs.step(closure)
    progress.step(loss.item())
    if round % 100 == 99:
        with torch.no_grad():
            print(f"error {(network(check) - exact(check)).abs().max():.4f}", flush=True)
