"""The shape of a loss's graph: what is one linear map, what is normalized and what weighs the loss are told
from what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from probe.job.instruments.updates.graph_shape import Shape, shape_of

LIMIT_NS = 60_000_000_000


def shape(loss: Any) -> Shape:
    found = shape_of(loss, LIMIT_NS)
    assert found is not None
    return found


class OwnRelu(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x > 0)


class Transformer(nn.Module):
    """A linear layer makes the embedding, which the first layer's residual takes too."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(4, 32)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.encoder(self.embedding(x[:, None]))


class Gates(nn.Module):
    """A linear layer in front of what is added to the state of a recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.gate, self.state = nn.Linear(4, 64), nn.Linear(64, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(len(x), 8)
        for _ in range(3):
            state = torch.tanh(self.gate(self.given(x)) + self.state(state))
        return state


class Heads(nn.Module):
    """Attention without a residual, and a head behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.given, self.head = nn.Linear(4, 32), nn.Linear(32, 3)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.given(x[:, None])
        return self.head(self.attention(x, x, x)[0].mean(1))


class Variational(nn.Module):
    """An autoencoder of distributions, with an activation in neither half."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.mean, self.width = nn.Linear(4, 64), nn.Linear(64, 2), nn.Linear(64, 2)
        self.fc3, self.fc4 = nn.Linear(2, 64), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.fc1(x)
        mean, width = self.mean(hidden), self.width(hidden)
        made = torch.sigmoid(self.fc4(self.fc3(mean + torch.randn_like(mean) * torch.exp(width / 2))))
        return made.sum(1) - (1 + width - mean.pow(2) - width.exp()).sum(1)


def rows(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers)


@pytest.mark.parametrize(("model", "direct"), [
    (rows(nn.Linear(4, 64), nn.Linear(64, 64), nn.Linear(64, 3)), [("0", "1"), ("1", "2")]),
    (rows(nn.Linear(4, 64), nn.Dropout(0.1), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)), [("0", "2")]),
    (rows(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 3)), []),
    (rows(nn.Linear(4, 64), OwnRelu(), nn.Linear(64, 3)), []),
    (rows(nn.Linear(4, 64), nn.LayerNorm(64), nn.Linear(64, 3)), []),
    (rows(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 8), nn.Linear(8, 64)), []),  # a bottleneck
    (Variational(), [("fc1", "mean"), ("fc1", "width"), ("fc3", "fc4")]),
    (Transformer(), []), (Gates(), []), (Heads(), []),
])
def test_layers_in_a_row_are_told_from_bottlenecks_gates_attentions_and_residuals(
    model: nn.Module, direct: list[tuple[str, str]]
) -> None:
    torch.manual_seed(0)
    names = {id(one): name.removesuffix(".weight") for name, one in model.named_parameters()}
    found = shape(model(torch.randn(8, 4)).square().mean()).direct
    assert sorted((names[id(one)], names[id(two)]) for one, afters in found for two in afters) == direct


def test_layers_in_a_row_are_seen_under_autocast() -> None:
    model = rows(nn.Linear(4, 64), nn.Linear(64, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(torch.randn(2, 8, 4)).square().mean()
    assert len(shape(loss).direct) == 1


LAYERS = nn.ModuleDict({name: nn.Linear(16, 4 if name == "few" else 16) for name in ("q", "k", "v", "few")})
TOKENS = torch.randn(2, 10, 16, generator=torch.Generator().manual_seed(0))


def attention(dimension: int, how: str) -> torch.Tensor:
    q, k, v = (LAYERS[name](TOKENS).view(2, 10, 4, 4).transpose(1, 2) for name in "qkv")
    scores = (q @ k.transpose(-2, -1) / 2).masked_fill(torch.ones(10, 10).tril() == 0, -1e9)
    weights = functional.dropout(scores.softmax(dimension), 0.1)
    if how == "einsum":
        return torch.einsum("bhij,bhjd->bhid", weights, v)
    if how == "turned":
        return (v.transpose(-2, -1) @ weights.transpose(-2, -1)).transpose(-2, -1)
    return weights @ v


@pytest.mark.parametrize("how", ["product", "einsum", "turned"])
@pytest.mark.parametrize("dimension", [-1, 3, -2, 2, 1, 0])
def test_a_softmax_over_another_dimension_than_the_keys_is_seen_however_it_is_written(
    dimension: int, how: str
) -> None:
    found = shape(attention(dimension, how).mean())
    assert (found.attentions, found.unnormalized) == (1, 0 if dimension in (-1, 3) else 1)


@pytest.mark.parametrize("positions", [1, 7])
@pytest.mark.parametrize("how", ["weights", "fused", "written out", "with dropout"])
def test_the_positions_that_an_attention_runs_over_are_counted_fused_or_not(positions: int, how: str) -> None:
    x = LAYERS["q"](torch.randn(3, positions, 16))
    if how == "with dropout":
        made = nn.TransformerEncoderLayer(16, 4, 32, 0.1, batch_first=True)(x)
    else:
        made = nn.MultiheadAttention(16, 4, batch_first=True)(x, x, x, need_weights=how == "weights")[0]
    if how == "written out":
        made = (x @ x.mT).softmax(-1) @ x
    assert shape(made.mean()).attended == [positions]


def slots() -> torch.Tensor:
    weights = (LAYERS["q"](TOKENS) @ LAYERS["k"](TOKENS).transpose(1, 2)).softmax(1)
    return (weights / weights.sum(-1, keepdim=True)) @ LAYERS["v"](TOKENS)


@pytest.mark.parametrize("made", [
    lambda: LAYERS["few"](TOKENS).softmax(-1).transpose(1, 2) @ LAYERS["v"](TOKENS),  # clusters
    lambda: LAYERS["q"](TOKENS).softmax(-1) @ (LAYERS["k"](TOKENS).softmax(1).mT @ LAYERS["v"](TOKENS)),
    slots,
], ids=("clusters", "linear attention", "slots"))
def test_assignments_linear_attention_and_slots_are_no_attention_that_is_not_normalized(
    made: Callable[[], torch.Tensor]
) -> None:
    assert shape(made().mean()).unnormalized == 0


WEIGHTS = nn.Parameter(torch.ones(2))
OUTPUT = nn.Linear(4, 2)(torch.ones(3, 4))
FIRST, SECOND = OUTPUT.square().mean(), OUTPUT.abs().mean()


@pytest.mark.parametrize(("loss", "weighs", "positive"), [
    (lambda: WEIGHTS[0] * FIRST + WEIGHTS[1] * SECOND, True, False),
    (lambda: (WEIGHTS * torch.stack([FIRST, SECOND]) / 8).sum(), True, False),
    (lambda: torch.exp(-WEIGHTS[0]) * FIRST + torch.exp(-WEIGHTS[1]) * SECOND, True, True),
    (lambda: torch.exp(-WEIGHTS[0]) * FIRST + WEIGHTS[0], False, False),
    (lambda: FIRST / (2 * WEIGHTS[0] ** 2) + torch.log(WEIGHTS[0]), False, False),
    (lambda: (WEIGHTS.softmax(0) * torch.stack([FIRST, SECOND])).sum(), False, False),
    (lambda: WEIGHTS[0] * FIRST + 0.1 * (WEIGHTS - 1).norm(), False, False),
    (lambda: -(WEIGHTS[0] * FIRST.detach()), False, False),
    (lambda: functional.cross_entropy(WEIGHTS[0].exp() * OUTPUT, torch.zeros(3).long()), False, False),
], ids=("sum", "stack", "exp", "exp and its term", "log", "softmax", "penalty", "temperature", "scale"))
def test_weights_of_a_loss_that_no_term_holds_are_told_from_those_that_one_does(
    loss: Callable[[], torch.Tensor], weighs: bool, positive: bool
) -> None:
    found = shape(loss())
    assert [one is WEIGHTS for one in found.loss_weights] == [True] * weighs
    assert found.positive == positive


def test_a_graph_that_is_too_large_is_not_looked_at() -> None:
    value = torch.ones((), requires_grad=True)
    for _ in range(5000):
        value = value + 1
    assert shape_of(value, LIMIT_NS) is None
