"""Settings that no step reads, contents of data sets, and graphs that gradients keep."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from probe.job.instruments.facts.data_contents import checksum
from probe.job.instruments.facts.unread_settings import UnreadSettings
from probe.job.instruments.updates.reached_parameters import kept_for

WEIGHTS = torch.nn.Parameter(torch.ones(3))


def sgd(**group: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [WEIGHTS], **group}], lr=0.1)


def test_what_is_written_beside_the_groups_is_found_with_the_setting_that_is_meant() -> None:
    misspelt = sgd(learning_rate=1.0, weigth_decay=0.5, momentun=0.9, lr_scale=0.3, name="head")
    misspelt.lr = 3.0  # type: ignore[attr-defined]
    assert list(UnreadSettings().of(misspelt)) == [
        ("lr", "attribute", "lr", 3.0), ("lr", "key", "learning_rate", 1.0),
        ("weight_decay", "key", "weigth_decay", 0.5), ("momentum", "key", "momentun", 0.9),
    ]


def test_defaults_count_once_they_have_changed() -> None:
    unread, optimizer = UnreadSettings(), sgd(lr=0.5)
    assert list(unread.of(optimizer)) == []
    optimizer.defaults["lr"] = 0.01
    assert list(unread.of(optimizer)) == [("lr", "defaults", "lr", 0.01)]


@pytest.mark.parametrize("kind", ["Adam", "SGD", "RMSprop", "Adagrad", "LBFGS", "NAdam", "ASGD"])
def test_neither_optimizers_nor_schedulers_of_torch_write_what_nothing_reads(kind: str) -> None:
    optimizer, unread = getattr(torch.optim, kind)([WEIGHTS], lr=0.1), UnreadSettings()
    list(unread.of(optimizer))
    torch.optim.lr_scheduler.CyclicLR(optimizer, 0.1, 1.0, cycle_momentum=False)
    torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    assert list(unread.of(optimizer)) == []


def test_an_optimizer_of_the_jobs_own_may_read_its_attributes() -> None:
    class Own(torch.optim.SGD):
        """May read what it likes."""

    optimizer = Own([WEIGHTS], lr=0.1)
    optimizer.lr = 3.0  # type: ignore[attr-defined]
    assert list(UnreadSettings().of(optimizer)) == []


def test_equal_data_sets_have_equal_checksums_and_parts_of_one_have_others() -> None:
    rows, labels = torch.arange(200.0).reshape(100, 2), torch.arange(100)
    whole = TensorDataset(rows, labels)
    assert checksum(whole) == checksum(TensorDataset(rows.clone(), labels.clone()))
    parts = [TensorDataset(rows[rank::2], labels[rank::2]) for rank in range(2)]
    subsets = [Subset(whole, range(rank, 100, 2)) for rank in range(2)]
    lists = [[(row, 1, "text") for row in rows[rank::2]] for rank in range(2)]
    for left, right in (parts, subsets, lists):
        assert None not in (checksum(left), checksum(right)) and checksum(left) != checksum(right)


def test_a_data_set_that_makes_its_samples_is_not_asked_for_them() -> None:
    class Made:
        """Its cache is another one on each rank."""

        def __init__(self) -> None:
            self.cache = [1.0, 2.0]

        def __getitem__(self, place: int) -> float:
            raise AssertionError("the job's code ran")

    assert checksum(Made()) is None


def test_a_gradient_keeps_a_graph_until_something_goes_through_it() -> None:
    layer = torch.nn.Linear(4, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer(torch.ones(2, 4)).pow(2).mean().backward(create_graph=True)
    gradient = layer.weight.grad
    assert gradient is not None
    if not hasattr(torch.ones(1, requires_grad=True).pow(2).grad_fn._raw_saved_self, "unpack_hook"):
        pytest.skip("this version of torch cannot tell hooks")
    assert kept_for(gradient) > 0
    torch.autograd.grad(gradient.sum(), layer.weight)
    assert kept_for(gradient) == 0
    assert kept_for(gradient.detach()) == 0
