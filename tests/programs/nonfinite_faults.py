"""A small real training into which one NaN or infinity is planted, at a place and a step that are known.

--fault names it (`FAULTS`); the result's `planted` says where: module, parameter, direction, step, micro step
and the indices of the batch. With RANK in the environment it is a rank of a gloo job under DDP, and the fault
is rank 1's alone. With --protected a step whose gradients are not finite is skipped by the program itself.
With --behind it trains on the emulated device, which is so many kernels behind (`emulated_device`), and reads
nothing back until it has trained; `waits` is then all that waited for the device.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler

import emulated_device
from ledger import Ledger, options

FAULTS = (
    "none",
    "data",
    "log_of_zero",
    "division",
    "half_overflow",
    "masked_rows",
    "loss",
    "nothing_counted",
    "sqrt_at_zero",
    "own_function",
    "loss_sqrt",
    "eps_zero",
    "bad_weight",
    "lr_too_high",
    "lr_infinite",
)
IN_FORWARD = ("log_of_zero", "division", "half_overflow", "masked_rows")
IN_BACKWARD = ("sqrt_at_zero", "own_function")
SAMPLES, BATCH, WIDTH = 96, 4, 8


class Samples:
    """Rows of numbers; one of them is broken from the start with the fault `data`."""

    def __init__(self, seed: int, bad: int | None) -> None:
        self.x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(seed))
        if bad is not None:
            self.x[bad, 2] = float("nan")

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.x[index]
        return x, torch.nan_to_num(x).sum().tanh()


class BreaksBackward(torch.autograd.Function):
    """Right in forward; its gradient is NaN."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * float("nan")


class Fragile(nn.Module):
    """Where faults of the forward and of the backward happen, when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.fault = ""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.fault == "log_of_zero":
            return y + torch.log(functional.relu(y))
        if self.fault == "division":
            return y / (y - y)
        if self.fault == "half_overflow":
            return ((y * 1e4 + 1e4).half() * 100).float() - 1e6
        if self.fault == "masked_rows":
            nothing = torch.ones_like(y, dtype=torch.bool)
            return y * torch.softmax(y.masked_fill(nothing, float("-inf")), dim=1)
        if self.fault == "sqrt_at_zero":
            return y + torch.sqrt(torch.relu(y) * 0.0)
        if self.fault == "own_function":
            return BreaksBackward.apply(y)
        return y


class Net(nn.Module):
    """first → middle.0, middle.1 (fragile), middle.2 → last; with dropout, so that random numbers matter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.Sequential(nn.LayerNorm(WIDTH), Fragile(), nn.Dropout(0.1))
        self.last = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
        return self.last(self.middle(torch.tanh(self.first(x)) * scale)).squeeze(1)


class Training:
    """The loop's parts, and the fault."""

    def __init__(self, arguments: Any) -> None:
        self.arguments = arguments
        self.rank = int(os.environ.get("RANK", "0"))
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if self.ranks > 1:
            dist.init_process_group("gloo")
        torch.manual_seed(arguments.seed)
        self.mine = self.ranks == 1 or self.rank == 1
        self.fault = arguments.fault
        self.device = "cpu"
        if arguments.behind is not None:
            emulated_device.register().behind = arguments.behind
            self.device = emulated_device.NAME
            torch.manual_seed(arguments.seed)
        self.net = Net().to(self.device)
        self.model: nn.Module = nn.parallel.DistributedDataParallel(self.net) if self.ranks > 1 else self.net
        self.bad_sample: int | None = None
        rate = {"lr_too_high": 6.0}.get(self.fault, 0.01)
        if self.fault == "eps_zero":
            self.net.first.weight.register_hook(self._zero_gradient)
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.net.parameters(), lr=rate)
        else:
            self.optimizer = torch.optim.SGD(self.net.parameters(), lr=rate, momentum=0.9)
        self.step = self.micro = 0
        self.planted: dict[str, Any] = {}
        self._drawn: list[list[int]] = []

    def _zero_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * 0.0

    @property
    def now(self) -> bool:
        """Whether the fault is planted in this very micro step."""
        last = self.micro == self.arguments.accumulate - 1
        return self.mine and self.step == self.arguments.at and last

    def loader(self) -> DataLoader[Any]:
        """Its batches, and what they were made of, in order."""
        seed = self.arguments.seed
        if self.ranks > 1:
            order = list(DistributedSampler(range(SAMPLES), self.ranks, self.rank, seed=seed))  # type: ignore[arg-type]
        else:
            order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(seed)).tolist()
        if self.fault == "data" and self.mine:
            self.bad_sample = order[(self.arguments.seed * 7 + 26) % len(order)]
        self._drawn = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        workers = self.arguments.workers
        return DataLoader(
            Samples(self.arguments.seed, self.bad_sample),
            batch_sampler=self._drawn,
            num_workers=workers,
            persistent_workers=bool(workers),
        )

    def note(self, direction: str, number: int, **more: Any) -> None:
        """What was planted, where and when; the first time only."""
        if not self.planted:
            self.planted = {
                "direction": direction,
                "step": self.step,
                "micro_step": self.micro,
                "indices": self._drawn[number % len(self._drawn)],
                "bad_sample": self.bad_sample,
                **more,
            }

    def loss_of(self, x: torch.Tensor, y: torch.Tensor, number: int) -> torch.Tensor:
        """One micro step's forward."""
        fragile = self.net.middle[1]
        assert isinstance(fragile, Fragile)
        fragile.fault = self.fault if self.now and self.fault in (*IN_FORWARD, *IN_BACKWARD) else ""
        if fragile.fault:
            direction = "forward" if self.fault in IN_FORWARD else "backward"
            self.note(direction, number, module="middle.1")
        if self.bad_sample is not None and self.bad_sample in self._drawn[number % len(self._drawn)]:
            self.note("data", number)
        if self.now and self.fault == "bad_weight":
            self.note("parameter", number, param="last.weight")
            with torch.no_grad():
                self.net.last.weight[0, 3] = float("nan")
        predicted = self.model(x, scale=1.5)
        if self.now and self.fault == "loss":
            self.note("loss", number)
            return torch.log(functional.relu(-predicted.abs())).mean()
        if self.now and self.fault == "nothing_counted":
            self.note("loss", number)
            logits = torch.stack([predicted, -predicted], dim=1)
            ignored = torch.full((len(x),), -100).to(self.device)
            return functional.cross_entropy(logits, ignored, ignore_index=-100)
        if self.now and self.fault == "loss_sqrt":
            self.note("backward", number)
            return torch.sqrt(functional.mse_loss(predicted, predicted.detach()))
        return functional.mse_loss(predicted, y)

    def optimize(self, number: int) -> None:
        """The optimizer's step, and the faults that are its own."""
        if self.mine and self.step == self.arguments.at and self.fault in ("eps_zero", "lr_infinite"):
            self.note("optimizer", number, param="first.weight")
            name, value = ("eps", 0.0) if self.fault == "eps_zero" else ("lr", float("inf"))
            self.optimizer.param_groups[0][name] = value
        gradients = [one.grad for one in self.net.parameters() if one.grad is not None]
        if self.arguments.protected and not all(bool(torch.isfinite(one).all()) for one in gradients):
            return
        self.optimizer.step()


def hash_of(generator: torch.Generator) -> str:
    """Of its state."""
    return hashlib.sha256(bytes(generator.get_state().tolist())).hexdigest()


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--at", type=int, default=12, help="step in which it is planted")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--protected", action="store_true")
    parser.add_argument("--behind", type=int, help="kernels by which the emulated device is behind")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    late: list[torch.Tensor] = []
    training = Training(arguments)
    loader = training.loader()
    number = 0
    while ledger.running:
        for x, y in loader:
            last = training.micro == arguments.accumulate - 1
            alone = training.ranks > 1 and not last
            with training.model.no_sync() if alone else contextlib.nullcontext():  # type: ignore[operator]
                here = x.to(training.device), y.to(training.device)
                loss = training.loss_of(*here, number) / arguments.accumulate
                loss.backward()
            if arguments.behind is None:
                ledger.loss(loss)
            else:
                late.append(loss.detach())
            number += 1
            training.micro += 1
            if last:
                training.optimize(number - 1)
                training.optimizer.zero_grad()
                training.micro = 0
                training.step += 1
                ledger.step()
            if not ledger.running:
                break
    ledger.extra = {"planted": training.planted}
    if arguments.behind is not None:
        device = emulated_device.DEVICE
        ledger.extra["waits"] = [(one.what, one.thread, one.stack) for one in device.waits]
        ledger.losses = [float(loss).hex() for loss in late]
        ledger.extra["random"] = [hash_of(device.generator), hash_of(torch.default_generator)]
        training.net.cpu()
    ledger.finish(training.net)
    if training.ranks > 1:
        # gloo's thread needs the GIL to let go of the last all_reduce, and torch's destructor waits for
        # that thread with the GIL held.
        time.sleep(0.2)
        dist.destroy_process_group()
    sys.stdout.flush()


if __name__ == "__main__":
    main()
