"""What a program counts about itself: the truth that tests compare the tables with.

Every program prints `READY` after three steps (the handshake), and at its end one
line `RESULT {…}` (see `Ledger.finish`). It never imports probe.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import sys
import time
from array import array
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

READY_AFTER_STEPS = 3


def options(description: str | None) -> argparse.ArgumentParser:
    """A parser with what every program takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=20, help="steps to train")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch; 1: same bits every run")
    parser.add_argument("--hold", action="store_true", help="after the result wait for a line on stdin")
    parser.add_argument("--pause", action="store_true", help="after READY wait for a line on stdin")
    parser.add_argument(
        "--forever", action="store_true", help="train until killed, with a rest after each step"
    )
    return parser


class Ledger:
    """Counts of one run. Makes torch deterministic."""

    rest_s = float(os.environ.get("REST_S", "0"))
    """Sleep after each step of a training without an end: in tests, where others need the cores."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.steps = 0
        self.losses: list[str] = []
        self.batches: dict[str, int] = {}
        self.skipped_steps: list[int] = []
        self.extra: dict[str, Any] = {}
        self._arguments = arguments
        self._started_s = self._last_s = self._idle_since_s = time.perf_counter()
        self._step_wall_s = array("d")
        self._phases_s: dict[str, float] = {}
        self._step_phases_s: list[dict[str, float]] = []
        self._step_micro_steps = array("q")
        self._micro_steps = 0
        torch.set_num_threads(arguments.threads)
        torch.manual_seed(0)

    @property
    def running(self) -> bool:
        """Whether another step is due."""
        return self._arguments.forever or self.steps < self._arguments.steps

    def fetched(self, loader: str) -> None:
        """Right after a batch came: counts it, and the time since the last backward or step as `data`."""
        self.batches[loader] = self.batches.get(loader, 0) + 1
        self._add("data", time.perf_counter() - self._idle_since_s)

    def loss(self, loss: torch.Tensor) -> None:
        """A backward call was made on `loss` (without a scaler's factor)."""
        self._micro_steps += 1
        self.losses.append(float(loss.detach()).hex())
        self._idle_since_s = time.perf_counter()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the block's wall time to the phase `name`."""
        begun_s = time.perf_counter()
        yield
        self._add(name, time.perf_counter() - begun_s)

    def step(self, *, skipped: bool = False) -> None:
        """A step ended; says READY after the third."""
        now_s = time.perf_counter()
        if skipped:
            self.skipped_steps.append(self.steps)
        self._step_wall_s.append(now_s - self._last_s)
        self._step_micro_steps.append(self._micro_steps)
        self._micro_steps = 0
        self._step_phases_s.append({name: round(value, 7) for name, value in self._phases_s.items()})
        self._phases_s = {}
        self._last_s = self._idle_since_s = now_s
        self.steps += 1
        if self.steps == READY_AFTER_STEPS:
            print("READY", flush=True)
            if self._arguments.pause:
                sys.stdin.readline()
        elif self._arguments.forever:
            time.sleep(self.rest_s)

    def train(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """All steps of a training of which it matters only that it trains; `model` takes four numbers."""
        while self.running:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            self.loss(loss)
            optimizer.step()
            self.step()

    def finish(self, *modules: nn.Module) -> None:
        """Print the result (and wait, with --hold)."""
        if self.steps < READY_AFTER_STEPS:
            print("READY", flush=True)
        result = {
            "steps": self.steps,
            "micro_steps": sum(self._step_micro_steps),
            "micro_steps_by_step": list(self._step_micro_steps),
            "skipped_steps": self.skipped_steps,
            "losses": self.losses,
            "parameters_sha256": digest(*modules),
            "batches": self.batches,
            "step_phases_s": self._step_phases_s,
            "wall_s": time.perf_counter() - self._started_s,
            "step_wall_s": [round(value, 7) for value in self._step_wall_s],
            **self.extra,
        }
        print("RESULT " + json.dumps(result), flush=True)
        if self._arguments.hold:
            sys.stdin.readline()

    def _add(self, phase: str, seconds: float) -> None:
        self._phases_s[phase] = self._phases_s.get(phase, 0.0) + seconds


def digest(*modules: nn.Module) -> str:
    """sha256 of all parameters, in order."""
    found = hashlib.sha256()
    for module in modules:
        for name, parameter in module.named_parameters():
            found.update(name.encode())
            whole = parameter.detach()
            own = whole.to_local() if hasattr(whole, "to_local") else whole  # of a sharded one the own part
            kept = own.contiguous()  # read by address: torch may be there without numpy
            found.update(ctypes.string_at(kept.data_ptr(), kept.nbytes))
    return found.hexdigest()
