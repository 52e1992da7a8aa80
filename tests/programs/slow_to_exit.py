"""Trains, says READY, and after a line on stdin ends: something of its own waits for another line at exit."""

from __future__ import annotations

import atexit
import sys

atexit.register(sys.stdin.readline)  # before probe's own is registered, so that it runs after it

import torch  # noqa: E402

torch.set_num_threads(1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _step in range(60):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
print("READY", flush=True)
sys.stdin.readline()
