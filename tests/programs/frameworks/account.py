"""What a program of this folder tells about itself: losses, steps, a digest of its parameters.

Prints `READY` after three steps and, at the end, one line `RESULT {…}`; of several ranks the first does, with
the losses of all. The programs are ordinary scripts of
their framework, tiny, on random data, without a network; none of them imports probe unless it loads a
checkpoint of it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import sys
from typing import Any

import torch
from torch import nn

READY_AFTER_STEPS = 3
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every program takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--hold", action="store_true", help="after the result wait for a line on stdin")
    parser.add_argument("--out", default="", help="folder for what the framework writes")
    parser.add_argument("--resume", default="", help="continue from that checkpoint")
    return parser


class Account:
    """Counts of one run. Makes torch deterministic."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.steps = 0
        self.samples = 0
        self.losses: list[str] = []
        self.rates: list[float] = []
        self.most = arguments.steps
        self.evaluated = 0
        """Batches of evaluations."""
        self._arguments = arguments
        self._leads = os.environ.get("RANK", "0") == "0"
        self._rest_s = float(os.environ.get("REST_S", "0"))
        torch.set_num_threads(1)
        torch.manual_seed(0)

    def loss(self, loss: Any) -> None:
        """A loss, as the program's own log has it."""
        self.losses.append(float(loss).hex())

    def step(self) -> None:
        """A step ended; says READY after the third. Rests, if told to, until a line comes on stdin."""
        self.steps += 1
        if self.steps == READY_AFTER_STEPS and self._leads:
            print("READY", flush=True)
        if self._rest_s and self._leads and select.select([sys.stdin], [], [], self._rest_s)[0]:
            sys.stdin.readline()
            self._rest_s = 0.0

    def finish(self, *modules: nn.Module) -> None:
        """Print the result, and wait with --hold."""
        of_ranks = self._of_all_ranks()
        if not self._leads:
            return
        if self.steps < READY_AFTER_STEPS:
            print("READY", flush=True)
        result = {
            "steps": self.steps, "samples": self.samples, "losses": self.losses, "rates": self.rates,
            "evaluated": self.evaluated, "parameters_sha256": digest(*modules),
            "modules": sorted({name for one in modules for name, _ in one.named_modules()}),
            "roots": [type(one).__name__ for one in modules], "losses_of_ranks": of_ranks,
        }
        print("RESULT " + json.dumps(result), flush=True)
        if self._arguments.hold:
            sys.stdin.readline()


    def _of_all_ranks(self) -> list[Any]:
        if not torch.distributed.is_initialized():
            return [self.losses]
        found: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(found, self.losses)
        return found


def digest(*modules: nn.Module) -> str:
    """sha256 of all parameters, in order."""
    found = hashlib.sha256()
    for module in modules:
        for name, parameter in module.named_parameters():
            found.update(name.encode())
            whole: Any = parameter.detach()
            own = whole.to_local() if hasattr(whole, "to_local") else whole  # of a sharded one the own part
            found.update(own.contiguous().float().numpy().tobytes())
    return found.hexdigest()
