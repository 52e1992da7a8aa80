"""Training in the memory group named by GROUP, which then takes memory until the kernel ends it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

Path(os.environ["GROUP"], "cgroup.procs").write_text(str(os.getpid()))

import torch  # noqa: E402
from torch import nn  # noqa: E402

STEPS = 4
CHUNK_BYTES = 16 << 20


def main() -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
    print("READY", flush=True)
    sys.stdin.readline()
    kept = []
    while True:
        kept.append(b"x" * CHUNK_BYTES)


if __name__ == "__main__":
    main()
