"""Rank RANK of a gloo job of WORLD_SIZE in which one rank does something wrong at one step, or nobody does.

`--fault NAME --rank R --at STEP` plants it; the rank says `FAULT <ns>` (wall clock) as it begins. `ddp`:
gradients are averaged within backward; `reduce`: by one all_reduce of the program's own. Each step takes
`--pace-ms` in the forward of a module. Faults that go on (slow ones, and the clean ones, which are none)
last to the end; `--until` ends them at a step. `--length` is for how long one holds up its rank, in seconds.
"""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from ledger import Ledger, options

EVERY = 12
"""Steps from one evaluation, checkpoint or periodic delay to the next."""


class Plan:
    """What is planted, as this rank sees it."""

    def __init__(self, arguments: Any) -> None:
        self.rank, self.world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.fault: str = arguments.fault
        self.at: int = arguments.at
        self.until: int = arguments.until
        self.length_s: float = arguments.length
        self.mine = self.rank == arguments.rank
        self.step = 0
        self.said = False

    def now(self, *faults: str) -> bool:
        """Whether one of these is this rank's in this step; says so when it begins."""
        here = self.mine and self.fault in faults and self.at <= self.step < self.until
        if here:
            self.say()
        return here

    def say(self) -> None:
        """The fault begins."""
        if not self.said:
            self.said = True
            print(f"FAULT {time.time_ns()}", flush=True)

    def once(self, *faults: str) -> bool:
        """The same, of what is done in one step only."""
        return self.step == self.at and self.now(*faults)


class Tokens(Dataset[torch.Tensor]):
    """Sequences of tokens; sometimes slow, or never there."""

    def __init__(self, plan: Plan, uneven: bool) -> None:
        self.plan = plan
        self.uneven = uneven

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        plan = self.plan
        if plan.mine and plan.fault == "worker" and index // 2 >= plan.at:
            read_shard()
        if plan.mine and plan.fault == "input" and plan.at <= index // 2 < plan.until and index % 2 == 0:
            time.sleep(plan.length_s)
        length = 32
        if self.uneven:  # the same for all sequences of a batch, another one for each rank and step
            length = random.Random(index // 2 * plan.world_size + plan.rank).choice((16, 32, 64, 128))
        return torch.arange(length)


def read_shard() -> None:
    """What a data worker does on storage that never answers."""
    reading, _writing = os.pipe()
    os.read(reading, 1)


class _SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(_context: Any, x: torch.Tensor, plan: Plan) -> torch.Tensor:
        _context.plan = plan
        return x.clone()

    @staticmethod
    def backward(_context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        if _context.plan.now("backward"):
            compute(_context.plan.length_s)
        return gradient, None


class Paced(nn.Module):
    """A small model whose forward takes as long as it has tokens."""

    def __init__(self, plan: Plan, pace_ms: float) -> None:
        super().__init__()
        self.plan = [plan]
        self.pace_ms = pace_ms
        self.embedding = nn.Embedding(256, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        [plan] = self.plan
        time.sleep(self.pace_ms / 1e3 * tokens.shape[1] / 32)
        if plan.now("compute") or (plan.step % EVERY == 0 and plan.now("periodic")):
            compute(plan.length_s)
        if plan.once("one-off"):
            compute(plan.length_s)
        features = self.embedding(tokens % 256).mean(dim=1)
        found: torch.Tensor = self.head(_SlowBackward.apply(features, plan))
        return found


def compute(seconds: float) -> None:
    """Work that takes so long."""
    ends_s = time.monotonic() + seconds
    matrix = torch.randn(64, 64)
    while time.monotonic() < ends_s:
        matrix = matrix @ matrix / 64


def never_join(plan: Plan) -> None:
    """The rank does not come to its collective."""
    time.sleep(plan.length_s or 3600)


def end(plan: Plan) -> None:
    """The rank ends in the middle of a step."""
    if plan.once("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    if plan.once("segv"):
        ctypes.string_at(0)
    if plan.once("exit"):
        os._exit(7)
    if plan.once("exception"):
        raise ValueError("a sample that cannot be read")
    if plan.once("stop"):
        os.kill(os.getpid(), signal.SIGSTOP)
    if plan.once("gil"):
        ctypes.PyDLL(None).sleep(int(plan.length_s) or 3600)


def reduce_loss(plan: Plan, loss: torch.Tensor) -> None:
    """The mean loss of all ranks."""
    total = loss.detach().clone().reshape(1)
    if plan.once("shape"):
        total = total.repeat(3)
    if plan.once("dtype"):
        total = total.double()
    if plan.once("op"):
        dist.broadcast(total, 0)
    else:
        dist.all_reduce(total)


def count_samples(_plan: Plan) -> None:
    """The number of samples of all ranks: another call, of another size."""
    dist.all_reduce(torch.ones(2, dtype=torch.int64))


def both(plan: Plan, loss: torch.Tensor, groups: list[Any]) -> None:
    """Two collectives in a row; the other way round for who has them in the wrong order."""
    if plan.once("order"):
        count_samples(plan)
        reduce_loss(plan, loss)
    else:
        reduce_loss(plan, loss)
        count_samples(plan)
    first, second = groups
    if plan.once("groups"):
        first, second = second, first
    for group in (first, second):
        sum_in(group)


def sum_in(group: Any) -> None:
    """One small all_reduce in a group."""
    if group is not None:
        dist.all_reduce(torch.ones(1), group=group)


def pass_on(plan: Plan) -> None:
    """Each rank sends to the next one, and the last to nobody."""
    if plan.rank > 0:
        dist.recv(torch.zeros(4), plan.rank - 1)
    if plan.rank < plan.world_size - 1 and not plan.once("no send"):
        dist.send(torch.ones(4), plan.rank + 1)


def evaluate(plan: Plan, model: nn.Module) -> None:
    """Rank 0 evaluates while the others go on to their next collective."""
    ends_s = time.monotonic() + plan.length_s
    with torch.no_grad():
        for batch in DataLoader(torch.arange(32).repeat(100_000, 1), batch_size=2):
            model(batch)
            if time.monotonic() > ends_s:
                return


def save(plan: Plan, model: nn.Module) -> None:
    """Rank 0 writes a checkpoint into a pipe whose reader takes its time, as slow storage does."""
    reading, writing = os.pipe()

    def read_slowly() -> None:
        begun_s, taken = time.monotonic(), 0
        while part := os.read(reading, 1 << 16):
            taken += len(part)
            time.sleep(max(0.0, begun_s + plan.length_s * taken / (4 << 20) - time.monotonic()))
        os.close(reading)

    thread = threading.Thread(target=read_slowly, name="storage")
    thread.start()
    with os.fdopen(writing, "wb") as file:
        torch.save({"weights": torch.zeros(1 << 20), "model": model.state_dict()}, file)
    thread.join()


BESIDE: dict[str, Callable[[Plan, nn.Module], None]] = {"evaluation": evaluate, "checkpoint": save}
FAULTS = (
    "none", "sleep", "sleep in group", "leaves", "op", "shape", "dtype", "order", "groups", "kill", "segv",
    "exit", "exception", "stop", "worker", "gil", "no send", "compute", "backward", "input", "periodic",
    "one-off", "evaluation", "checkpoint", "lengths", "warm-up",
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--fault", choices=FAULTS, default="none")
    parser.add_argument("--way", choices=("ddp", "reduce"), default="reduce")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--at", type=int, default=20)
    parser.add_argument("--until", type=int, default=1 << 60)
    parser.add_argument("--length", type=float, default=0.0)
    parser.add_argument("--pace-ms", type=float, default=10.0)
    parser.add_argument("--timeout-s", type=float, default=600.0)
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    plan = Plan(arguments)
    dist.init_process_group("gloo", timeout=timedelta(seconds=arguments.timeout_s))
    everybody = list(range(plan.world_size))
    groups = [dist.new_group(everybody), dist.new_group(everybody)]
    evens = dist.new_group(everybody[::2]) if plan.world_size > 2 else None
    inner = Paced(plan, arguments.pace_ms)
    model: nn.Module = nn.parallel.DistributedDataParallel(inner) if arguments.way == "ddp" else inner
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        Tokens(plan, arguments.fault == "lengths"), batch_size=2,
        num_workers=1 if arguments.fault == "worker" else 0,
    )
    for tokens in loader:
        plan.step = ledger.steps
        if plan.fault == "worker" and plan.mine and plan.step == plan.at - 1:
            plan.say()  # the batch after this one never comes
        plan.now("input")
        train_step(plan, model, optimizer, ledger, tokens, groups, evens, arguments)
        if not ledger.running or _told(plan, arguments):
            break
        if plan.rank == 0 and plan.fault in BESIDE and plan.step % EVERY == EVERY - 1:
            BESIDE[plan.fault](plan, inner)
        if plan.once("leaves"):
            break
    ledger.finish(inner)


def _told(plan: Plan, arguments: Any) -> bool:
    """Whether somebody ended the run, with a line on rank 0's stdin; all ranks learn it at the same step."""
    if not arguments.forever or plan.fault not in ("none", *BESIDE, "lengths", "warm-up"):
        return False
    told = plan.rank == 0 and bool(select.select([sys.stdin], [], [], 0)[0])
    flag = torch.tensor([float(told)])
    dist.broadcast(flag, 0)
    return bool(flag)


def train_step(
    plan: Plan, model: nn.Module, optimizer: torch.optim.Optimizer, ledger: Ledger, tokens: torch.Tensor,
    groups: list[Any], evens: Any, arguments: Any,
) -> None:
    """One step, with whatever is planted in it."""
    if plan.fault == "warm-up" and plan.step < 3:
        compute(plan.length_s * (1 + plan.rank))
    optimizer.zero_grad()
    loss = functional.mse_loss(model(tokens), torch.ones(len(tokens), 1))
    end(plan)
    if plan.once("sleep"):
        never_join(plan)
    loss.backward()
    ledger.loss(loss)
    if arguments.way == "reduce":
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
    both(plan, loss, groups)
    if evens is not None and plan.rank % 2 == 0:
        if plan.once("sleep in group"):
            never_join(plan)
        sum_in(evens)
    if plan.fault == "no send":
        pass_on(plan)
    optimizer.step()
    ledger.step()


if __name__ == "__main__":
    main()
