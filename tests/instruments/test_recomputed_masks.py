"""Dropout inside activation checkpoints: the same mask again, or another one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from probe.job.instruments.modules.recomputed_masks import RecomputedMasks
from probe.recording.tables import BY_NAME

DRAWN = [column.name for column in BY_NAME["python.random_states"].columns].index("drawn")


@pytest.mark.parametrize("preserved", [True, False], ids=("restored", "not restored"))
def test_a_mask_that_is_drawn_anew_is_told_from_one_that_is_drawn_again(preserved: bool) -> None:
    rows: list[tuple[Any, ...]] = []
    append = SimpleNamespace(append=lambda *row: rows.append(row))
    recorder: Any = SimpleNamespace(step=1, rings={"python.random_states": append}, intern=lambda text: text)
    masks, inside = RecomputedMasks(recorder), [False]
    shared, layers = nn.Dropout(0.5), [nn.Linear(4, 4) for _ in range(3)]
    handle = shared.register_forward_pre_hook(
        lambda module, args: masks.called(module, 7, args[0], again=inside[0])
    )
    value = torch.ones(2, 4, requires_grad=True)
    for layer in layers:  # one dropout in three blocks, which are computed again in the other order
        block = nn.Sequential(layer, shared, nn.Tanh())
        value = checkpoint(block, value, use_reentrant=False, preserve_rng_state=preserved)
    inside[0] = True
    value.sum().backward()
    handle.remove()
    masks.over()
    (row,) = rows
    assert row[DRAWN] is not preserved
