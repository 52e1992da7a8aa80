"""The part of a whole loss, from its graph, without running the job's hooks."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy

from probe.job.instruments.core.loss_share import LossShare, parts_of
from probe.recording.layout import NULL_DOUBLE


def test_the_share_is_read_from_divisions_products_and_sums() -> None:
    share = LossShare(torch)
    out, labels = torch.randn(6, 3, requires_grad=True), torch.tensor([0, 1, 2, 0, 1, -100])
    loss, total = cross_entropy(out, labels), cross_entropy(out, labels, reduction="sum")
    weight = torch.ones((), requires_grad=True)
    found = {
        "whole": (share.of(loss), 1.0), "by four": (share.of(loss / 4), 0.25),
        "twice": (share.of(loss / 2 / 2), 0.25), "times": (share.of(0.25 * loss), 0.25),
        "cast": (share.of(loss.double() / 4), 0.25), "items": (share.of(total / torch.tensor(20)), 0.25),
        "own items": (share.of(total / 5), 1.0), "a sum": (share.of(total), NULL_DOUBLE),
        "by what is trained": (share.of(loss / weight), 1.0), "negative": (share.of(-1 * loss), NULL_DOUBLE),
    }
    for name, (value, expected) in found.items():
        assert value == pytest.approx(expected), name


def test_a_loss_scale_that_the_job_multiplies_is_told_from_weights_and_is_no_part_of_the_share() -> None:
    share = LossShare(torch)
    loss = cross_entropy(torch.randn(6, 3, requires_grad=True), torch.zeros(6).long())
    weight = torch.full((), 4096.0, requires_grad=True)
    found = {
        "scaled": (loss * 2.0**16, 65536.0), "of a part": (loss.double() / 4 * 4096.0, 4096.0),
        "part of it": (loss * torch.tensor(4096.0) / 4, 4096.0), "small": (loss * 16.0, 1.0),
        "a weight": (loss * 1000.0, 1.0), "one term": (loss * 4096.0 + loss, 1.0),
        "trained": (loss * weight, 1.0),
    }
    for name, (whole, expected) in found.items():
        assert share.scale(whole) == expected, name
    assert share.scale(loss * 16.0, 2.0) == 16.0
    assert share.of(loss / 4 * 4096.0, 4096.0) == 0.25


def test_a_tensor_that_a_hook_of_the_job_packed_is_not_unpacked() -> None:
    share, unpacked = LossShare(torch), []
    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpacked.append):
        loss = cross_entropy(torch.randn(6, 3, requires_grad=True), torch.zeros(6).long(), reduction="sum")
        loss = loss / torch.tensor(24)
    assert share.of(loss) == NULL_DOUBLE and unpacked == []


@pytest.mark.parametrize(("share", "count", "known", "expected"), [
    (1.0, 4, 0.0, 4.0), (0.98, 2, 0.0, 2.0), (4.0, 4, 0.0, 0.0), (1.1, 2, 0.0, 0.0),
    (NULL_DOUBLE, 4, 4.0, 0.0),
    (0.75, 3, 4.0, 4.0), (0.25, 1, 4.0, 4.0), (3.0, 3, 4.0, 0.0), (0.75, 3, 0.0, 0.0), (1.3, 4, 4.0, 4.0),
])
def test_parts_make_a_whole_and_whole_losses_do_not(
    share: float, count: int, known: float, expected: float
) -> None:
    assert parts_of(share, count, known) == expected
