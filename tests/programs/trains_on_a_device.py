"""Trains on the accelerator that torch finds, else on the emulated one, and reads nothing back.

`--lean`: the emulated one (`emulated_device`) has less than CUDA has. It does not finish anything from step
`HELD_FROM` on, which begins with a line after FREE if probe is here, until a line comes, after HELD. After
`--steps` steps comes the result: what the training was, and all that waited for the device until then. Then a
line on stdin says what comes next: `go` trains on until the next line, `nan` trains on with values that are
not finite, `load PATH` loads a checkpoint and says what the random states are, `out` asks for more memory
than there is, `end` ends it.
"""

from __future__ import annotations

import select
import sys
import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import emulated_device
from ledger import Ledger, digest, options
from measured_gradients import NAMES_KNOWN, sample_each_step

HELD_FROM, HELD_TO = 6, 10
WIDTH = 16


class Net(nn.Module):
    """Draws random numbers on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Dropout(0.2), nn.ReLU())
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--lean", action="store_true")
    arguments = parser.parse_args()
    emulated = None
    if not torch.accelerator.is_available():
        emulated = emulated_device.register(lean=arguments.lean)
        emulated.kernel_s = 5e-6
    accelerator = torch.accelerator.current_accelerator()
    assert accelerator is not None
    kind = accelerator.type
    device: Any = torch.get_device_module(kind)
    ledger = Ledger(arguments)
    data = torch.randn(8, 32, WIDTH)
    model = Net().to(kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    wait = sample_each_step(list(model.parameters()), "plain")
    losses: list[torch.Tensor] = []
    norms: list[torch.Tensor] = []
    batch = [one.to(kind) for one in data]
    labels = torch.arange(32).to(kind) % 4

    def step(factor: float = 1.0) -> None:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(batch[ledger.steps % 8] * factor), labels)
        loss.backward()
        losses.append(loss.detach())
        norms.append(torch.stack([one.grad.double().norm() for one in model.parameters()]).norm())
        optimizer.step()
        ledger.step()

    if hasattr(device, "set_sync_debug_mode"):
        device.set_sync_debug_mode("error")  # CUDA then raises where the host would wait
    while ledger.running:
        if emulated is not None and ledger.steps == HELD_FROM:
            if "probe.job.agent.lifecycle" in sys.modules:  # first it records what was delivered
                print("FREE", flush=True)
                sys.stdin.readline()
            emulated.hold()
        elif emulated is not None and ledger.steps == HELD_TO:
            print("HELD", flush=True)
            sys.stdin.readline()
            emulated.release()
        step()
        if ledger.steps == 3:
            wait(NAMES_KNOWN)
    waits = [] if emulated is None else [*emulated.waits]
    if hasattr(device, "set_sync_debug_mode"):
        device.set_sync_debug_mode("default")
    device.synchronize()
    ledger.losses = [float(one).hex() for one in losses]
    ledger.extra = {
        "kind": kind, "emulated": emulated is not None, "waits": waits,
        "norms": [float(one) for one in norms],
        "random": device.get_rng_state().sum().item(), "parameters": digest(model.cpu()),
    }
    model.to(kind)
    ledger.finish()
    for line in sys.stdin:
        if line == "end\n":
            break
        if line == "out\n":
            torch.empty(1 << 50, dtype=torch.uint8, device=kind)
        elif line.startswith("load "):
            import probe

            probe.load_checkpoint(line[5:-1], model=model, optimizer=optimizer)
            print("LOADED", device.get_rng_state().tolist(), flush=True)
            continue
        while not select.select([sys.stdin], [], [], 0)[0]:
            step(float("inf") if line == "nan\n" else 1.0)
            time.sleep(ledger.rest_s)


if __name__ == "__main__":
    main()
