"""The constant factors of a loss's terms are read from its graph, without the factor of the whole loss."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from probe.job.instruments.updates.term_weights import LEAST, MOST_NODES, term_weights
from probe.recording.layout import NULL_DOUBLE

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
READ: dict[str, tuple[Loss, float]] = {
    "a number before a term": (lambda a, b: a + 0.3 * b, 0.3),
    "a tensor before a term": (lambda a, b: a + torch.tensor(0.3) * b, 0.3),
    "a term divided": (lambda a, b: a + b / 4, 0.25),
    "a term subtracted": (lambda a, b: a - 0.1 * b, 0.1),
    "alpha": (lambda a, b: torch.add(a, b, alpha=0.2), 0.2),
    "a term that is off": (lambda a, b: a + 0.0 * b, LEAST),
    "the whole loss scaled": (lambda a, b: (a + 0.3 * b) * 1024 / 4, 0.3),
    "three terms": (lambda a, b: 0.5 * a + (b + 0.5 * (a * b)), 0.25),
    "the mean of a sum": (lambda a, b: (torch.stack([a, a]) + 0.5 * torch.stack([b, b])).mean(), 0.5),
}


def pair() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    return functional.mse_loss(x, torch.zeros(8)), x.abs().max()


@pytest.mark.parametrize("name", READ)
def test_the_factors_of_the_terms_are_read(name: str) -> None:
    loss, expected = READ[name]
    assert term_weights(loss(*pair())) == pytest.approx(expected)


def test_a_loss_of_one_term_or_of_too_many_has_none() -> None:
    a, b = pair()
    assert term_weights(a) == NULL_DOUBLE
    assert term_weights(a * 3) == NULL_DOUBLE
    assert term_weights(a.detach()) == NULL_DOUBLE
    for _ in range(MOST_NODES):
        a = a + b
    assert term_weights(a) == NULL_DOUBLE


def test_a_factor_that_a_hook_of_the_job_packed_is_left_alone() -> None:
    unpacked = []

    def unpack(one: torch.Tensor) -> torch.Tensor:
        unpacked.append(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpack):
        a, b = pair()
        loss = a + torch.tensor(0.3) * b
    assert term_weights(loss) == pytest.approx(1.0)  # the term ends at a factor that is not known
    assert not unpacked


class Sharded(torch.Tensor):
    """Stands in for a DTensor, whose value may take a collective."""

    def item(self) -> float:  # type: ignore[override]
        raise AssertionError("its value was read")


def test_a_factor_of_another_kind_of_tensor_is_left_alone() -> None:
    a, b = pair()
    factor = torch.tensor(0.3).as_subclass(Sharded)
    assert term_weights(a + factor * b) == pytest.approx(1.0)
