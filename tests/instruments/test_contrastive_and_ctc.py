"""What the scores of a contrastive loss, and the targets of a CTC loss, say of the data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from probe.job.instruments.tensors import ctc_targets, in_batch_negatives
from probe.job.instruments.tensors.loss_functions import functions_in

ROWS = torch.arange(40)
ITEMS = torch.arange(40) % 25
"""Item of each row: the first 15 stand twice in a batch."""


def scores(views: str, masked: float | None = None) -> tuple[Any, Any]:
    """Scores and targets of a batch of pairs: `pairs`, `copies` (of some items) or `one view`; of two towers,
    or with `masked` of one, where the score of each row with itself is masked by this."""
    first = F.normalize(torch.randn(40, 16, requires_grad=True), dim=1)
    second = F.normalize(torch.randn(40, 16), dim=1)
    if views == "copies":
        first, second = first[ITEMS], second[ITEMS]
    elif views == "one view":
        second = first
    if masked is None:
        return first @ second.T / 0.1, ROWS
    both = torch.cat([first, second])
    own = torch.eye(80, dtype=torch.bool)
    return (both @ both.T / 0.1).masked_fill(own, masked), torch.cat([ROWS + 40, ROWS])


def negatives(scored: Any, target: Any, *inputs: Any) -> list[float] | None:
    """Shares of copies, of inputs that are alike, and of one view, rounded; -1 for a missing one."""
    loss = F.cross_entropy(scored, target)
    found = in_batch_negatives.figures(torch, functions_in(loss.grad_fn)[0].node, list(inputs))
    return None if found is None else [-1.0 if one != one else round(one, 2) for one in found.tolist()]


@pytest.mark.parametrize("masked", [None, float("-inf"), -1e9])
def test_copies_of_a_positive_and_pairs_of_one_view_show_in_the_scores(masked: float | None) -> None:
    assert negatives(*scores("pairs", masked)) == [0.0, -1.0, 0.0]
    assert negatives(*scores("copies", masked)) == [1.0, -1.0, 0.0]  # the first rows' items stand twice
    assert negatives(*scores("one view", masked)) == [0.0, -1.0, 1.0]


def test_copies_that_are_masked_and_classes_are_no_copies_among_the_negatives() -> None:
    scored, target = scores("copies")
    alike = (ITEMS[:, None] == ITEMS) & ~torch.eye(40, dtype=torch.bool)
    text = torch.randint(2, 50, (40, 6))[ITEMS]
    found = negatives(scored.masked_fill(alike, float("-inf")), target, text)
    assert found is not None and found[:2] == [0.0, -1.0]
    assert negatives(scored, torch.arange(40) % 10) is None
    assert negatives(scored[:, :25], ITEMS) is None
    assert negatives(scored * 0, target) == [-1.0] * 3


def test_samples_that_are_alike_show_in_the_inputs_where_dropout_parts_their_scores() -> None:
    text, mask = torch.randint(2, 50, (40, 6)), torch.ones(40, 6, dtype=torch.long)
    assert negatives(*scores("pairs"), text, mask) == [0.0, 0.0, 0.0]
    assert negatives(*scores("pairs"), text[ITEMS], mask) == [0.0, 0.75, 0.0]
    assert negatives(*scores("pairs"), text, torch.arange(6).expand(40, 6)) == [0.0, 0.0, 0.0]


def test_samples_that_are_mostly_zeros_or_begin_alike_are_not_the_same() -> None:
    words = torch.zeros(40, 600).scatter_add_(1, torch.randint(0, 600, (40, 15)), torch.ones(40, 15))
    assert negatives(*scores("pairs"), F.normalize(words.sqrt(), dim=1)) == [0.0, 0.0, 0.0]
    asked = torch.cat([torch.full((40, 200), 7), torch.randint(2, 50, (40, 56))], 1)
    assert negatives(*scores("pairs"), asked) == [0.0, 0.0, 0.0]
    assert negatives(*scores("pairs"), asked[ITEMS]) == [0.0, 0.75, 0.0]


@pytest.mark.parametrize("joined", [False, True])
def test_the_blank_among_targets_of_ctc_and_sequences_too_short_for_theirs_are_counted(joined: bool) -> None:
    scored = torch.randn(5, 3, 8, requires_grad=True).log_softmax(-1)
    targets, lengths = torch.tensor([[1, 2, 3, 0], [4, 7, 0, 0], [5, 6, 7, 5]]), (3, 2, 4)
    joined_up = torch.cat([row[:n] for row, n in zip(targets, lengths, strict=True)])

    def found(blank: int, steps: tuple[int, ...]) -> list[float]:
        given = joined_up if joined else targets
        loss = F.ctc_loss(scored, given, steps, lengths, blank=blank, zero_infinity=True)
        assert functions_in(loss.grad_fn)[0].function == "ctc_loss"
        figures = ctc_targets.figures(torch, functions_in(loss.grad_fn)[0].node)
        return [round(one, 2) for one in figures.tolist()]

    assert found(0, (5, 5, 5)) == [0.0, 0.0]  # the padding is not counted
    assert found(7, (5, 5, 3)) == [0.22, 0.33]
    other = F.mse_loss(scored.exp(), torch.zeros(5, 3, 8))
    assert ctc_targets.figures(torch, functions_in(other.grad_fn)[0].node) is None
