"""What the graph of a loss tells of where it became NaN, when the call of the model was not kept."""

from __future__ import annotations

import math

import torch
from torch import nn

from probe.job.instruments.nan import loss_graph

INPUT = torch.ones(4, 3)


def layers() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU()), nn.Linear(5, 2)


def test_what_a_layer_was_given_is_told_from_what_an_operation_made() -> None:
    first, last = layers()
    bad = INPUT.clone()
    bad[2, 1] = math.nan
    found = loss_graph.first_bad_operation(last(first(bad)).mean())
    assert found is not None and found["given"] and found["op"].startswith("Addmm")


def test_an_operation_behind_the_model_is_told_from_one_inside() -> None:
    first, last = layers()
    behind = loss_graph.first_bad_operation((last(first(INPUT)) * 0).log().mean())
    assert behind is not None and behind["after_model"] and behind["cause"] == "log of zero"
    inside = loss_graph.first_bad_operation(last((first(INPUT) * 0).log()).mean())
    assert inside is not None and not inside["after_model"] and inside["op"].startswith("Log")


def test_a_finite_loss_has_no_such_operation() -> None:
    first, last = layers()
    assert loss_graph.first_bad_operation(last(first(INPUT)).mean()) is None
