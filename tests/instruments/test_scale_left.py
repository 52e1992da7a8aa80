"""Whether a GradScaler's factor is in gradients that are clipped is measured, not concluded from calls."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probe.job.instruments.updates.update_rows import ELEMENTS, Entry, UpdateRows, watched
from probe.recording.tables import TABLES

SCALE = 65536.0
COLUMNS = [column.name for table in TABLES if table.name == "updates" for column in table.columns]


def written(clipped: float, undone: float = float("nan"), *, is_over: bool = False) -> tuple[Any, Any]:
    """What is said of gradients that were multiplied with `clipped` until they were clipped, and a row."""
    rows: list[tuple[Any, ...]] = []
    ring = SimpleNamespace(append=lambda *row: rows.append(row))
    recorder: Any = SimpleNamespace(rings={"python.updates": ring}, intern=lambda name: 1)
    parameter = torch.nn.Parameter(torch.randn(16, 16))
    entries = []
    for _ in range(3):
        entry = Entry(watched(parameter, 0, 0, 1, 0), parameter, (1,), 0, 0)
        entry.ended = torch.randn(ELEMENTS) * SCALE
        entry.clipped, entry.clip_is_in = entry.ended * clipped, is_over
        entry.scale, entry.clip_undone = torch.tensor([SCALE]), undone
        entries.append(entry)
    carried: list[Any] = []
    values = [one for entry in entries for one in entry.release(None, carried)]
    said = UpdateRows(recorder).write(7, 0, entries, torch.cat([*values, *carried]).double())
    return said, dict(zip(COLUMNS, rows[0], strict=True))


def test_gradients_that_nobody_divided_still_have_the_factor() -> None:
    said, row = written(1.0)
    assert said is True
    assert row["clip_scale"] == pytest.approx(SCALE) and row["loss_scale"] == SCALE


def test_gradients_that_the_job_divided_itself_do_not_have_it() -> None:
    said, row = written(1.0 / SCALE)
    assert said is False
    assert row["clip_scale"] == pytest.approx(1.0)


def test_what_a_clip_took_off_is_not_taken_for_the_factor() -> None:
    said, row = written(1e-5, undone=1e5, is_over=True)
    assert said is True
    assert row["clip_scale"] == pytest.approx(SCALE, rel=1e-3) and row["clip_ratio"] == pytest.approx(1e-5)


def test_a_gradient_that_is_neither_is_not_judged() -> None:
    assert written(1.0 / 300.0)[0] is None
