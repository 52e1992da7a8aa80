"""Samples are known again by their bits: in another batch, another epoch, an evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from probe.job.instruments.tensors.known_samples import MOST_KNOWN, KnownSamples, Recognised, sample_numbers
from probe.job.instruments.tensors.model_inputs import _repetition
from probe.job.instruments.tensors.table_columns import TableColumns

GENERATOR = torch.Generator().manual_seed(0)
IMAGES = torch.randn(48, 3, 8, 8, generator=GENERATOR)
TOKENS = torch.randint(0, 5, (48, 12), generator=GENERATOR)


@pytest.mark.parametrize("batch", [IMAGES, IMAGES.half(), IMAGES.double(), TOKENS, TOKENS.int()])
def test_a_sample_has_the_same_number_whatever_else_is_in_its_batch(batch: Any) -> None:
    numbers = sample_numbers(batch)
    assert numbers is not None and len(set(numbers)) == 48
    order = torch.randperm(48, generator=GENERATOR)
    assert sample_numbers(batch[order][:7]) == [numbers[place] for place in order[:7]]
    across = batch.transpose(0, 1).contiguous().transpose(0, 1)
    assert sample_numbers(across) == numbers, "the layout in memory does not count"


@pytest.mark.parametrize("batch", [
    torch.arange(8.0), torch.zeros(1, 64), torch.zeros(8, 4), torch.zeros(8, 16, dtype=torch.complex64),
    torch.zeros(8, 16).to_sparse(), [1, 2],
])
def test_what_would_be_equal_by_chance_or_cannot_be_read_is_not_compared(batch: Any) -> None:
    assert sample_numbers(batch) is None
    assert KnownSamples().trained(batch, None) is None and KnownSamples().evaluated(batch) is None


def test_another_label_for_the_same_sample_is_counted() -> None:
    known, labels = KnownSamples(), torch.arange(48) % 10
    assert known.trained(IMAGES, labels) == Recognised(48, 0, 0, 0)
    assert known.trained(IMAGES.flip(0)[:20], labels.flip(0)[:20]) == Recognised(20, 20, 0, 0)
    assert known.trained(IMAGES[:20], labels[:20] + 1) == Recognised(20, 20, 20, 0)
    assert known.trained(IMAGES[:20], labels[:20]) == Recognised(20, 20, 0, 0), "the first label stays"
    assert known.trained(IMAGES[:20], None) == Recognised(20, 20, None, None)


def test_another_sample_with_the_same_bits_is_not_taken_for_the_first_one_relabelled() -> None:
    known, labels, places = KnownSamples(), torch.arange(48) % 10, [*range(48)]
    black = torch.zeros_like(IMAGES[:20])
    assert known.trained(black, labels[:20], places[:20]) == Recognised(20, 0, 0, 0)
    assert known.trained(black, labels[:20] + 1, places[:20]) == Recognised(20, 20, 1, 19)
    assert known.trained(black, labels[:20] + 1, None) == Recognised(20, 20, 20, 0), "no index: not known"


def test_a_label_that_is_missing_contradicts_none() -> None:
    known, labels = KnownSamples(), torch.arange(48.0)
    missing = torch.where(labels < 10, torch.nan, labels)
    assert known.trained(IMAGES, missing) == Recognised(48, 0, 0, 0)
    assert known.trained(IMAGES, missing.unsqueeze(1)) == Recognised(48, 48, 0, 0)
    assert known.trained(IMAGES, labels) == Recognised(48, 48, 0, 0), "what was missing is known later"
    assert known.trained(IMAGES, missing + 1) == Recognised(48, 48, 38, 0)


def test_an_evaluation_is_compared_with_the_training_and_not_remembered() -> None:
    known = KnownSamples()
    known.trained(IMAGES[:10], None)
    assert known.evaluated(IMAGES[:30]) == Recognised(30, 10, None, None)
    assert known.evaluated(IMAGES[:30]) == Recognised(30, 10, None, None)


def test_no_more_samples_are_remembered_than_there_is_room_for() -> None:
    known = KnownSamples()
    for start in range(0, MOST_KNOWN + 640, 64):
        known.trained(torch.arange(start, start + 64).unsqueeze(1) * torch.ones(8, dtype=torch.int64), None)
    assert len(known._labels) == MOST_KNOWN


@pytest.mark.parametrize(("batch", "alike", "middle", "share", "ends", "high"), [
    (IMAGES[:1].expand(8, -1, -1, -1), 1.0, None, None, 2 / 192, 1 / 192),
    (IMAGES[:8], 0.0, None, None, 2 / 1536, 1 / 1536),
    (torch.tensor([[1.0, 0.0], [0.0, 0.0]]).half(), 0.0, None, None, 1.0, 0.25),
    (torch.tensor([[1, 1, 1, 2], [1, 1, 1, 3]]), 0.0, 1.0, 0.75, 0.875, 0.125),
    (torch.ones(4, 1), None, None, None, 1.0, 1.0),
    (torch.ones(4, 3, dtype=torch.bool), 1.0, None, None, 1.0, 1.0),
])
def test_repetition_is_told_from_difference(
    batch: Any, alike: float | None, middle: float | None, share: float | None, ends: float, high: float
) -> None:
    found = [None if one != one else one for one in _repetition(torch, batch, batch.reshape(-1)).tolist()]
    assert found == [alike, middle, share, pytest.approx(ends), pytest.approx(high)]


def columns_of(batches: list[Any]) -> list[float]:
    """Rows so far, still columns, the first of them and its value; the value apart: ratio, share, column."""
    looking, like = TableColumns(), torch.zeros((), dtype=torch.float64)
    found = [looking.figures(torch, (1, 2), one, like).tolist() for one in batches]
    return list(found[-1])


def test_a_column_that_never_changes_is_told_from_one_that_rarely_does() -> None:
    table = torch.randn(128, 5, generator=torch.Generator().manual_seed(0))
    table[:, 1] = 0.5
    table[:, 3] = 0.0
    other = table.clone()
    other[7, 3] = 1.0
    rows, still, first, value = columns_of([table, table])[:4]
    assert (rows, still, first, value) == (256, 2, 1, 0.5)
    assert columns_of([other, table])[1] == 1


def test_a_number_that_stands_for_what_is_missing_is_told_from_outliers_and_zeros() -> None:
    table = torch.randn(128, 5, generator=torch.Generator().manual_seed(0))
    assert columns_of([table])[4] < 1
    outlier = table.clone()
    outlier[3, 2] = 1e4
    assert columns_of([outlier])[4] < 1, "one sample is an outlier"
    nothing = table.abs()
    nothing[::3, 2] = 0.0
    assert columns_of([nothing])[4] < 1
    missing = table.clone()
    missing[::16, 2] = -9999.0
    ratio, share, column = columns_of([missing])[4:]
    assert ratio > 1000 and share == 8 / 128 and column == 2
    assert columns_of([-missing])[4:] == [ratio, share, column]


@pytest.mark.parametrize("tensor", [
    None, torch.zeros(128, 784), torch.zeros(4, 5), torch.zeros(128, 5, dtype=torch.long),
    torch.zeros(128, 5, 5),
], ids=("none", "pictures", "few samples", "whole numbers", "more dimensions"))
def test_what_is_no_table_has_no_columns(tensor: Any) -> None:
    assert all(one != one for one in columns_of([tensor]))
