"""Training that works out its own gradient statistics in float64, right before and after each step.

`--kind`: plain (AdamW), clip (after `clip_grad_norm_`), accumulate (three micro steps), scaled (a
GradScaler), scaled_clip (clipping scaled gradients, as one should not), gan (two optimizers; the second one
leads), closure (LBFGS) or sparse (an embedding with sparse gradients). `reference` in the result has, for
each step and parameter, `[norm, mean, std, abs_max, zero_ratio, weight_norm, update_norm]` of what the
gradients were before clipping and without the scaler's factor, and `norms` the norm of them all. Under probe
every step is sampled.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ledger import Ledger, options

SCALE = 1024.0
NAMES_KNOWN, FACTOR_KNOWN = 3, 8
"""Steps after which to wait until probe knows the parameters' names, and whether clipped gradients still have
the scaler's factor, which it measures on two of the steps before."""


class Reference:
    """What the gradients of one model were, step after step."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.rows: dict[str, dict[str, list[float]]] = {}
        self.norms: dict[str, float] = {}

    def around(self, step: int, take: Callable[[], object], factor: float = 1.0, late: bool = False) -> None:
        """`take` a step; gradients are divided by `factor`. `late`: they are those that it leaves."""
        named = list(self.model.named_parameters())
        before = {name: one.detach().double().clone() for name, one in named}
        rows = {} if late else {name: figures(one.grad, factor) for name, one in named}
        take()
        rows = rows or {name: figures(one.grad, factor) for name, one in named}
        for name, one in named:
            changed = one.detach().double() - before[name]
            rows[name] += [float(before[name].norm()), float(changed.norm())]
        self.rows[str(step)] = rows
        self.norms[str(step)] = math.sqrt(sum(row[0] ** 2 for row in rows.values()))


def figures(gradient: Any, factor: float) -> list[float]:
    """norm, mean, std, abs_max, zero_ratio."""
    whole = gradient.detach().to_dense().double() / factor
    return [
        float(whole.norm()), float(whole.mean()), float(whole.std(correction=0)), float(whole.abs().max()),
        float((whole == 0).double().mean()),
    ]


def sample_each_step(parameters: list[Any], kind: str) -> Callable[[int], None]:
    """Have probe sample each step, when it is here. The answer is called with the steps made: it waits until
    the parameters' names are known, and whether clipped gradients have the scaler's factor."""
    lifecycle: Any = sys.modules.get("probe.job.agent.lifecycle")
    agent = lifecycle.agent_here() if lifecycle is not None else None
    if agent is None:
        return lambda steps: None
    gradients = agent.instruments.gradients
    gradients.fixed_interval = gradients.norm.fixed_interval = 1

    known = {NAMES_KNOWN: lambda: all(map(gradients.names.of, parameters))}
    if kind == "scaled_clip":
        known[FACTOR_KNOWN] = lambda: gradients.norm.scale_left is not None

    def wait(steps: int) -> None:
        deadline = time.monotonic() + 30
        while steps in known and not known[steps]() and time.monotonic() < deadline:
            time.sleep(0.01)

    return wait


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--kind", default="plain")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    kind = arguments.kind
    model: nn.Module = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    if kind == "sparse":
        model = nn.Sequential(nn.Embedding(50, 8, sparse=True), nn.Flatten(), nn.Linear(16, 3))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if kind == "closure":
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    elif kind in ("sparse", "clip"):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = nn.Linear(8, 1)
    critic = torch.optim.SGD(other.parameters(), lr=0.1)
    called = [model, other] if kind == "gan" else [model]
    wait = sample_each_step([parameter for one in called for parameter in one.parameters()], kind)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=kind.startswith("scaled"))
    reference = Reference(model)
    critics = Reference(other)

    def loss() -> torch.Tensor:
        inputs = torch.randint(0, 50, (4, 2)) if kind == "sparse" else torch.randn(4, 8)
        value = functional.cross_entropy(model(inputs), torch.randint(0, 3, (4,)))
        ledger.loss(value)
        return value

    while ledger.running:
        step = ledger.steps
        if kind == "gan":
            critic.zero_grad()
            other(torch.randn(4, 8)).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(other.parameters(), 1e9)
            critics.around(step, critic.step)
        optimizer.zero_grad()
        if kind == "closure":
            inputs, targets = torch.randn(4, 8), torch.randint(0, 3, (4,))

            def closure(inputs: Any = inputs, targets: Any = targets) -> torch.Tensor:
                optimizer.zero_grad()
                value = functional.cross_entropy(model(inputs), targets)
                value.backward()
                ledger.loss(value)
                return value

            reference.around(step, lambda closure=closure: optimizer.step(closure), late=True)  # type: ignore[misc]
        elif kind.startswith("scaled"):
            scaler.scale(loss()).backward()

            def scaled() -> None:
                if kind == "scaled_clip":
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5 * SCALE)
                scaler.step(optimizer)

            reference.around(step, scaled, factor=scaler.get_scale())
            scaler.update()
        else:
            for _ in range(3 if kind == "accumulate" else 1):
                loss().backward()

            def plain() -> None:
                if kind == "clip":
                    torch.nn.utils.clip_grad_norm_(iter(list(model.parameters())), 0.5)
                optimizer.step()

            reference.around(step, plain)
        ledger.step()
        wait(ledger.steps)
    ledger.extra = {"reference": reference.rows, "norms": reference.norms, "critics": critics.rows}
    ledger.finish(model, other)


if __name__ == "__main__":
    main()
