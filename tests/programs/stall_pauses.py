"""Clean training with a pause of the kind asked for every EVERY steps: nothing is wrong with any of them.
After the first one they are of the kind that `--then` says.

Each pause is as long as `--length` says, in seconds, many times the usual step. Says `PAUSE` when one
begins and `ON` when it is over.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from ledger import READY_AFTER_STEPS, Ledger, options

EVERY = 30
SAMPLES = torch.randn(256, 16)


def evaluate_with_loader(model: nn.Module, pause_s: float) -> None:
    """Batches of a loader through the model, over and over."""
    ends_s = time.monotonic() + pause_s
    loader = DataLoader(TensorDataset(SAMPLES), batch_size=8)
    with torch.no_grad():
        while time.monotonic() < ends_s:
            for (batch,) in loader:
                model(batch).sum()
                time.sleep(0.02)


def evaluate_plain(model: nn.Module, pause_s: float) -> None:
    """Slices of a tensor through the model, over and over."""
    ends_s = time.monotonic() + pause_s
    with torch.no_grad():
        while time.monotonic() < ends_s:
            for batch in SAMPLES.split(8):
                model(batch).sum()


def generate(model: nn.Module, pause_s: float) -> None:
    """One sample at a time, in plain Python between the calls."""
    ends_s = time.monotonic() + pause_s
    text = []
    with torch.no_grad():
        while time.monotonic() < ends_s:
            text.append(float(model(SAMPLES[len(text) % 256 : len(text) % 256 + 1]).sum()))
            sum(number * number for number in range(20_000))


def save(_model: nn.Module, pause_s: float) -> None:
    """A checkpoint into a pipe whose reader takes its time, as slow storage does."""
    reading, writing = os.pipe()

    def read_slowly() -> None:
        begun_s = time.monotonic()
        taken = 0
        while part := os.read(reading, 1 << 16):
            taken += len(part)
            late_s = begun_s + pause_s * taken / (4 << 20) - time.monotonic()
            time.sleep(max(0.0, late_s))
        os.close(reading)

    thread = threading.Thread(target=read_slowly, name="storage")
    thread.start()
    with os.fdopen(writing, "wb") as file:
        torch.save({"weights": torch.zeros(1 << 20)}, file)
    thread.join()


def wait_for_a_child(_model: nn.Module, pause_s: float) -> None:
    """An evaluation in a process of its own, which works."""
    child = os.fork()
    if child == 0:
        ends_s = time.monotonic() + pause_s
        while time.monotonic() < ends_s:
            pass
        os._exit(0)
    os.waitpid(child, 0)


def one_long_call(_model: nn.Module, pause_s: float) -> None:
    """One call into C that computes, with the GIL released, again and again from the same line."""
    ends_s = time.monotonic() + pause_s
    matrix = torch.randn(400, 400)
    while time.monotonic() < ends_s: torch.linalg.svd(matrix)  # noqa: E701


KINDS: dict[str, Callable[[nn.Module, float], None]] = {
    "evaluation with a loader": evaluate_with_loader,
    "evaluation": evaluate_plain,
    "generation": generate,
    "checkpoint": save,
    "child": wait_for_a_child,
    "svd": one_long_call,
}


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, ledger: Ledger, length_s: float) -> None:
    """One step of at least that length."""
    ends_s = time.monotonic() + length_s
    x = torch.full((4, 16), float(ledger.steps)).sin()
    optimizer.zero_grad()
    while True:
        loss = functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
        if time.monotonic() >= ends_s:
            break
    loss.backward()
    ledger.loss(loss)
    optimizer.step()
    ledger.step()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--kind", choices=[*KINDS, "lengths", "warm-up"], required=True)
    parser.add_argument("--then", choices=KINDS)
    parser.add_argument("--length", type=float, default=3.0)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while ledger.running:
        length_s = 0.005
        pauses = ledger.steps > READY_AFTER_STEPS and ledger.steps % EVERY == EVERY - 1
        if arguments.kind == "warm-up":
            pauses = ledger.steps in (0, 1)
        if pauses:
            print("PAUSE", flush=True)
            if arguments.kind in KINDS:
                KINDS[arguments.kind](model, arguments.length)
            else:
                length_s = arguments.length
            arguments.kind = arguments.then or arguments.kind
        train_step(model, optimizer, ledger, length_s)
        if pauses:
            print("ON", flush=True)
    ledger.finish(model)


if __name__ == "__main__":
    main()
