"""A training loop that runs as many steps as requested on stdin and answers with their times.

    python bench/steps_on_request.py [--width N]

One line `N` on stdin: N steps, then one line on stdout, a JSON list of their wall times in ns.
It does not depend on probe; `bench/detach.py` attaches to it.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64)
    width = parser.parse_args().width
    torch.set_num_threads(1)
    torch.manual_seed(0)
    layers = [part for _ in range(2) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batch = torch.randn(64, width)
    for line in sys.stdin:
        times = []
        for _ in range(int(line)):
            start = time.perf_counter_ns()
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
            times.append(time.perf_counter_ns() - start)
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()
