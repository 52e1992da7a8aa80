"""Trainings that differ in what becomes of a gradient, each with probe looking at every second step or so.

`--kind`: ordinary ways to train, in which nothing is lost: gan (two optimizers in turns), sam (two backwards,
the weights moved in between and back), lookahead (every fifth step half of the way is taken back), released
(each parameter is stepped inside backward), swapped (an average takes the model's place while it is
evaluated), tied (one weight in two layers), frozen (the first layer, on purpose), accumulate, clamped (the
weights, after each step), closure (LBFGS), unused (an embedding, most of whose rows never occur), normalized
(a bias that a normalization takes off again), copied (the optimizer holds copies that are written back),
penalized (a gradient penalty on inputs that are made in each step), between (one loss is clipped before the
backward of another one, and both are stepped then), reseeded (a seed for each evaluation, the
state restored), or one that goes wrong: cleared, cleared_between, kept_back, made_anew, listed, elsewhere,
tensor (a plain tensor instead of a parameter), constructed (a layer in each forward), growing (a state that
is never detached), bounded (the weights are clamped to a part of their range), seeded (in each step), linear
(no activation between the layers), noisy (noise is added to the gradients after backward), leftovers (a
critic that is cleared only after its step, so that the generator's loss fills its gradients).
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ledger import Ledger, options

OUTSIDE = ("gan", "between", "leftovers", "sam", "closure", "released")


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.hidden = [nn.Linear(16, 16)]
        self.last = nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.hidden[0](torch.relu(self.first(inputs)))))


class Shifted(nn.Module):
    """A plain tensor that requires a gradient, or a layer that is made in each forward."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.shift = torch.zeros(16, requires_grad=kind == "tensor")
        self.first = nn.Linear(8, 16)
        self.last = nn.Linear(16, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(inputs)) + self.shift
        return self.last(hidden if self.kind == "tensor" else torch.relu(nn.Linear(16, 16)(hidden)))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(200, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(self.embedding((inputs[:, 0] > 0).long()))


def made(kind: str) -> nn.Module:
    if kind == "listed":
        return Listed()
    if kind in ("tensor", "constructed"):
        return Shifted(kind)
    if kind == "unused":
        return Words()
    if kind == "normalized":
        return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
    if kind == "linear":
        return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 16), nn.Dropout(0.1), nn.Linear(16, 3))
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    if kind == "tied":
        model[2].weight = nn.Linear(16, 16).weight
        model.append(nn.Linear(3, 3))
        model.insert(3, nn.Linear(16, 16))
        model[3].weight = model[2].weight
    if kind == "frozen":
        model[0].requires_grad_(False)
    return model


def sample_often() -> Callable[[], None]:
    """Have probe look as often as it can, when it is here; the answer waits until it is ready to."""
    lifecycle: Any = sys.modules.get("probe.job.agent.lifecycle")
    agent = lifecycle.agent_here() if lifecycle is not None else None
    if agent is None:
        return lambda: None
    updates = agent.instruments.learning[0]
    updates.pace.fixed_interval = 1

    def wait() -> None:
        deadline = time.monotonic() + 10
        while updates.due > 1 << 40 and time.monotonic() < deadline:
            time.sleep(0.01)

    return wait


class Training:
    """One kind; `step` makes one step."""

    def __init__(self, kind: str, ledger: Ledger) -> None:
        self.kind, self.ledger = kind, ledger
        self.model = made(kind)
        self.optimizer: Any = torch.optim.SGD(
            [one for one in self.model.parameters() if one.requires_grad], lr=0.05, momentum=0.9
        )
        self.other = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
        self.critic = torch.optim.Adam(self.other.parameters(), lr=1e-3)
        if kind == "closure":
            self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=2)
        if kind == "elsewhere":
            self.model = made(kind)
        if kind == "copied":
            self.copies = [nn.Parameter(one.detach().clone()) for one in self.model.parameters()]
            self.optimizer = torch.optim.SGD(self.copies, lr=0.05)
        if kind == "released":
            self.release()
        self.slow = copy.deepcopy(self.model).requires_grad_(False)

    def release(self) -> None:
        each = {one: torch.optim.SGD([one], lr=0.05) for one in self.model.parameters()}
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)

        def stepped(parameter: torch.Tensor) -> None:
            each[parameter].step()  # type: ignore[index]
            each[parameter].zero_grad()  # type: ignore[index]

        for one in self.model.parameters():
            one.register_post_accumulate_grad_hook(stepped)

    def loss(self) -> torch.Tensor:
        inputs = torch.randn(16, 8)
        value = functional.cross_entropy(self.model(inputs), (inputs[:, 0] > 0).long())
        self.ledger.loss(value)
        return value

    def step(self) -> None:
        special = getattr(self, self.kind, None)
        if special is not None:
            special()
            return
        self.optimizer.zero_grad()
        for _ in range(3 if self.kind in ("accumulate", "cleared_between") else 1):
            if self.kind == "cleared_between":
                self.optimizer.zero_grad()
            value = self.loss()
            if self.kind == "made_anew":
                value = torch.tensor(value.item(), requires_grad=True)
            value.backward()
        if self.kind == "cleared":
            self.optimizer.zero_grad()
        if self.kind == "noisy":
            for one in self.model.parameters():
                one.grad += torch.randn_like(one)  # type: ignore[operator]
        self.optimizer.step()
        with torch.no_grad():
            self.afterwards()

    def afterwards(self) -> None:
        slow, own = list(self.slow.parameters()), list(self.model.parameters())
        if self.kind in ("swapped", "kept_back"):
            for average, one in zip(slow, own, strict=True):
                average.mul_(0.99).add_(one, alpha=0.01)
        if self.kind == "swapped" and self.ledger.steps % 4 == 3:
            kept = [one.clone() for one in own]
            for average, one in zip(slow, own, strict=True):
                one.copy_(average)
            self.model(torch.randn(4, 8))
            for one, before in zip(own, kept, strict=True):
                one.copy_(before)
        elif self.kind == "kept_back":
            for average, one in zip(slow, own, strict=True):
                one.copy_(average)
        elif self.kind == "lookahead" and self.ledger.steps % 5 == 4:
            for average, one in zip(slow, own, strict=True):
                average.add_(one - average, alpha=0.5)
                one.copy_(average)
        elif self.kind in ("clamped", "bounded"):
            limit = 0.9 if self.kind == "clamped" else 0.1
            for one in own:
                one.clamp_(-limit, limit)
        elif self.kind == "reseeded":
            kept = torch.get_rng_state()
            torch.manual_seed(7)
            self.model(torch.randn(4, 8))
            torch.set_rng_state(kept)
        elif self.kind == "seeded":
            torch.manual_seed(7)
        elif self.kind == "reset" and self.ledger.steps % 3 == 2:
            for layer in self.model:  # type: ignore[union-attr]
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()

    def sam(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        with torch.no_grad():
            moved = [0.05 * one.grad for one in self.model.parameters()]  # type: ignore[operator]
            for one, by in zip(self.model.parameters(), moved, strict=True):
                one.add_(by)
        self.optimizer.zero_grad()
        self.loss().backward()
        with torch.no_grad():
            for one, by in zip(self.model.parameters(), moved, strict=True):
                one.sub_(by)
        self.optimizer.step()

    def between(self) -> None:
        self.optimizer.zero_grad()
        made_up = self.model(torch.randn(16, 8))
        value = (made_up - 3).square().mean()
        self.ledger.loss(value)
        value.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.05)
        self.critic.zero_grad()
        self.other(made_up.detach()).square().mean().backward()
        self.optimizer.step()
        self.critic.step()

    def leftovers(self) -> None:
        self.gan()

    def gan(self) -> None:
        noise = torch.randn(16, 8)
        self.optimizer.zero_grad()
        made_up = self.model(noise)
        value = -self.other(made_up).mean()
        self.ledger.loss(value)
        value.backward()
        self.optimizer.step()
        if self.kind == "gan":
            self.critic.zero_grad()
        value = self.other(made_up.detach()).mean() - self.other(torch.randn(16, 3)).mean()
        value.backward()
        self.critic.step()
        self.critic.zero_grad()

    def penalized(self) -> None:
        self.optimizer.zero_grad()
        inputs = torch.randn(16, 8, requires_grad=True)
        value = functional.cross_entropy(self.model(inputs), (inputs[:, 0] > 0).long())
        self.ledger.loss(value)
        (slope,) = torch.autograd.grad(value, inputs, create_graph=True)
        (value + slope.square().sum()).backward()
        self.optimizer.step()

    def growing(self) -> None:
        self.optimizer.zero_grad()
        self.state = getattr(self, "state", torch.zeros(()))
        for one in self.model.parameters():
            self.state = self.state + (one.sum() - one.sum())
        (self.loss() + self.state).backward()
        self.optimizer.step()

    def copied(self) -> None:
        self.loss().backward()
        for one, held in zip(self.model.parameters(), self.copies, strict=True):
            held.grad, one.grad = one.grad, None
        self.optimizer.step()
        with torch.no_grad():
            for one, held in zip(self.model.parameters(), self.copies, strict=True):
                one.copy_(held)

    def released(self) -> None:
        self.loss().backward()
        self.optimizer.step()

    def closure(self) -> None:
        inputs = torch.randn(16, 8)

        def again() -> torch.Tensor:
            self.optimizer.zero_grad()
            value = functional.cross_entropy(self.model(inputs), (inputs[:, 0] > 0).long())
            value.backward()
            self.ledger.loss(value)
            return value

        self.optimizer.step(again)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--kind", default="accumulate")
    arguments = parser.parse_args()
    ledger = Ledger(arguments)
    training = Training(arguments.kind, ledger)
    wait = sample_often()
    while ledger.running:
        training.step()
        ledger.step()
        if ledger.steps > 2:
            wait()
    ledger.finish(training.model, training.other)


if __name__ == "__main__":
    main()
