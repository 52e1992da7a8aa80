"""A loss that is the difference of what a network gives for two inputs is told from others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from probe.job.instruments.updates.contrasts import MOST_NODES, contrasts

Loss = Callable[[nn.Module, nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]


def free_energy(net: nn.Module, v: torch.Tensor) -> torch.Tensor:
    first, last = net.get_submodule("0"), net.get_parameter("2.weight")
    return -v @ last[0, :4] - F.softplus(first(v)).sum(1)


def parts(net: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    energies = net(torch.cat([x, y])).squeeze(-1)
    return energies[: len(x)].mean() - energies[len(x) :].mean()


CONTRASTS: dict[str, Loss] = {
    "data and samples": lambda f, g, x, y: f(x).mean() - f(y).mean(),
    "a small penalty beside it": lambda f, g, x, y: (
        f(x).mean() - f(y).mean() + 0.01 * (f(x) ** 2 + f(y) ** 2).mean()
    ),
    "another term, and a factor": lambda f, g, x, y: (
        0.5 * (f(x).squeeze() - f(y).squeeze()).mean() + g(x).pow(2).mean()
    ),
    "free energies": lambda f, g, x, y: free_energy(f, x).mean() - free_energy(f, y).mean(),
    "two parts of one call": lambda f, g, x, y: parts(f, x, y),
    "a loss that is lowered and one that is raised": lambda f, g, x, y: (
        F.mse_loss(f(x), y[:, :1]) - F.mse_loss(f(y), x[:, :1])
    ),
}
OTHERS: dict[str, Loss] = {
    "a term without another": lambda f, g, x, y: -f(x).mean(),
    "both are added": lambda f, g, x, y: F.softplus(f(x)).mean() + F.softplus(f(y)).mean(),
    "two networks": lambda f, g, x, y: f(x).mean() - g(y).mean(),
    "a bound of an information": lambda f, g, x, y: f(y).exp().mean().log() - f(x).mean(),
    "within a bounded function": lambda f, g, x, y: F.relu(1 + f(x) - f(y)).mean(),
    "an error of differences": lambda f, g, x, y: (f(x) - f(y) - x[:, :1]).pow(2).mean(),
    "cross-entropy written out": lambda f, g, x, y: (
        (f(x).logsumexp(1) - f(x)[torch.arange(len(x)), 0]).mean()
    ),
    "a bonus for entropy": lambda f, g, x, y: (
        F.mse_loss(f(x), y[:, :1]) - 0.5 * (f(x).sigmoid() * f(x).sigmoid().log()).mean()
    ),
    "a small contrast": lambda f, g, x, y: (
        F.mse_loss(f(x), y[:, :1]) + 0.01 * (f(x).mean() - f(y).mean())
    ),
    "errors of an ensemble less its spread": lambda f, g, x, y: (
        (f(x) - y).abs().mean() - 0.5 * (f(x) - f(y)).abs().mean()
    ),
}


def nets() -> tuple[nn.Module, nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    f, g = (nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1)) for _ in range(2))
    return f, g, torch.randn(6, 4), torch.randn(6, 4)


@pytest.mark.parametrize("name", CONTRASTS)
def test_a_difference_of_what_a_network_gives_is_seen(name: str) -> None:
    assert contrasts(CONTRASTS[name](*nets()))


@pytest.mark.parametrize("name", OTHERS)
def test_another_loss_is_none(name: str) -> None:
    assert not contrasts(OTHERS[name](*nets()))


def test_a_loss_without_a_graph_or_of_too_many_terms_is_none() -> None:
    f, _, x, y = nets()
    loss = f(x).mean() - f(y).mean()
    assert not contrasts(loss.detach())
    for _ in range(MOST_NODES):
        loss = loss + f(x).square().mean()
    assert not contrasts(loss)


def test_a_loss_with_too_much_to_compare_is_unknown() -> None:
    deep = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(200)))
    assert contrasts(deep(torch.randn(3, 4)).mean() - deep(torch.randn(3, 4)).mean()) is None
