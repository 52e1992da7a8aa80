"""A function that reverses a gradient on purpose is told apart from other functions of a job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd import Function

from agent.asking import query
from agent.nursery import Forked, Nursery
from harness import PATIENCE_S, Place
from probe.job.instruments.updates.reached_parameters import reached
from probe.job.instruments.updates.reversed_gradients import reverses

JOB = """
import time
import torch
from torch import nn
from torch.nn import functional as F

class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -ctx.scale * grad, None

body, label, domain = nn.Linear(8, 16), nn.Linear(16, 3), nn.Linear(16, 2)
opt = torch.optim.SGD([*body.parameters(), *label.parameters(), *domain.parameters()], lr=0.01)
x, y, d = torch.randn(64, 8), torch.randint(0, 3, (64,)), torch.randint(0, 2, (64,))
while True:
    h = torch.relu(body(x))
    loss = F.cross_entropy(label(h), y) + F.cross_entropy(domain(Reverse.apply(h, 0.5)), d)
    opt.zero_grad()
    loss.backward()
    opt.step()
    time.sleep(0.005)
"""


class Turned(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].neg() * 0.3


class ByMinusOne(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * -1.0


class Rounded(Function):
    """A straight-through estimator."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


class Reciprocal(Function):
    """Its derivative is negative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = 1 / x
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (y,) = ctx.saved_tensors
        return -grads[0] * y * y


class Shrunk(Function):
    """It passes its input on, and less of the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * 0.1


@pytest.mark.parametrize(
    ("function", "turned"),
    [(Turned, True), (ByMinusOne, True), (Rounded, False), (Reciprocal, False), (Shrunk, False)],
)
def test_a_function_reverses_if_it_passes_its_input_on_and_negates_the_gradient(
    function: Any, turned: bool
) -> None:
    loss = function.apply(torch.ones(3, requires_grad=True) * 2).sum()
    graph = reached(loss, 10**9)
    assert graph is not None
    assert [reverses(one) for one in graph.functions] == [turned]


def test_functions_of_torch_are_none_of_the_jobs_own() -> None:
    graph = reached((torch.ones(3, requires_grad=True) * 2).exp().sum(), 10**9)
    assert graph is not None and graph.functions == ()


def test_a_reversed_gradient_in_the_loss_of_a_running_job_is_recorded_by_its_name(
    nursery: Nursery, place: Place, tmp_path: Path
) -> None:
    (tmp_path / "domains.py").write_text(JOB)
    environ = place.watched(PROBE_NAME="domains")
    job = Forked(nursery, str(tmp_path / "domains"), environ=environ, folder=place.directory)
    try:
        place.start_server()
        deadline_s = time.monotonic() + PATIENCE_S
        while query(place, job.pid, "SELECT DISTINCT reversing FROM python.graphs") != [["Reverse"]]:
            assert time.monotonic() < deadline_s
            time.sleep(1)  # queries beyond a tenth of a core get low priority
    finally:
        job.kill()
