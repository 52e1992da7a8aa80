"""Progress of a training: its options, a line every fifty steps, and its end after `--steps`.

Prints `READY` after three steps, and `FAULT NS STEP` at the step `--mark` (for 0: right after READY, with the
time of the first step). The marked step is the only thing that a training is told about itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque

import torch

READY_AFTER_STEPS = 3


def options(description: str | None) -> argparse.Namespace:
    """What every script takes; seeds torch."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0, help="0: until it is stopped")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mark", type=int, default=-1, help="step to announce")
    parser.add_argument("--out", default="", help="folder of the checkpoint")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    return arguments


class Progress:
    """Counts steps and keeps their losses."""

    def __init__(self, arguments: argparse.Namespace, every: int = 50) -> None:
        self.steps = 0
        self.losses: deque[float] = deque(maxlen=10000)
        self._every, self._last, self._mark = every, arguments.steps, arguments.mark
        self._first_ns = 0

    def step(self, loss: float) -> None:
        """A step ended with this loss."""
        if self.steps == 0:
            self._first_ns = time.time_ns()
        if self._mark > 0 and self.steps == self._mark:
            print(f"FAULT {time.time_ns()} {self.steps}", flush=True)
        self.losses.append(loss)
        self.steps += 1
        if self.steps == READY_AFTER_STEPS:
            print("READY", flush=True)
            if self._mark == 0:
                print(f"FAULT {self._first_ns} 0", flush=True)
        if self.steps % self._every == 0:
            recent = list(self.losses)[-self._every :]
            print(f"step {self.steps} loss {sum(recent) / len(recent):.4f}", flush=True)
        if self.steps == self._last:
            print("RESULT " + json.dumps({"steps": self.steps, "losses": list(self.losses)}), flush=True)
            sys.exit(0)
