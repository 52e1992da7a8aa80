"""When a training ends, as its loops or its schedule say: known where they count evenly, else unknown."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset, TensorDataset

from probe.job.instruments.facts import planned_end
from probe.job.instruments.facts.planned_end import PlannedEnd
from probe.job.introspection import enclosing_loops, python_frames
from probe.recording.layout import NULL_INTEGER, NULL_STRING

LEFT_EARLY = " (a break or return may end it earlier)"


class Watched:
    """A training of this thread: `step` ends one of its steps, `micro` does not; both are looked at."""

    def __init__(self, said: int = 0) -> None:
        self.rows: list[tuple[int | None, Any]] = []
        self.schedulers: list[Any] = []
        self.passes: dict[int, list[int | None]] = {}
        rings = {"python.plan": SimpleNamespace(append=self.append)}
        self.recorder: Any = SimpleNamespace(
            step=0, rings=rings, intern=lambda text: text, thread=threading.get_ident()
        )
        optimizers: Any = SimpleNamespace(schedulers=lambda: self.schedulers)
        data: Any = SimpleNamespace(pass_of=lambda loader: self.passes.get(id(loader)))
        self.plan = PlannedEnd(self.recorder, optimizers, data, said)

    def append(self, _step: int, _t_ns: int, total: int, source: str) -> None:
        self.rows.append((None if total == NULL_INTEGER else total, source))

    def step(self) -> None:
        self.micro()
        self.recorder.step += 1

    def micro(self) -> None:
        self.plan._next_s = 0.0
        self.plan.collect()

    def over(self, loader: Any, known: int | None) -> Iterator[Any]:
        """The batches of a loader, counted as the instrument of loaders counts them."""
        place = self.passes[id(loader)] = [0, known]
        for batch in range(6):
            place[0] = batch + 1
            yield batch


@pytest.fixture(autouse=True)
def here_is_the_jobs_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_frames, "is_user_code", lambda file: file == __file__)
    enclosing_loops._headers.cache_clear()


def test_a_loop_over_a_range_says_when_it_ends_however_it_is_written() -> None:
    watched, config = Watched(), SimpleNamespace(steps=40, epochs=5)
    for _step in range(3, config.steps * 2):
        watched.step()
    [(total, source)] = watched.rows
    assert total == 77
    assert source.startswith("for _step in range(3, config.steps * 2), test_planned_end.py:")

    def tqdm(things: Any, **_given: Any) -> Any:
        return things

    watched = Watched()
    for _place, _ in enumerate(tqdm(range(30), desc="training")):
        for _micro in range(4):
            watched.micro()
        watched.step()
    assert [total for total, _ in watched.rows] == [30]

    watched = Watched()
    count, last = 100, 150
    while count < last:
        watched.step()
        count += 1
    assert watched.rows[-1][0] == 50, "begun in the middle: steps of this recording"

    watched = Watched()
    for _epoch in range(config.epochs):
        for _batch in range(
            8
        ):
            watched.step()
    assert watched.rows == [], "a header on several lines is not understood"

    watched = Watched()
    for _epoch in range(config.epochs):
        for _batch in range(8):
            watched.step()
    [(total, source)] = watched.rows
    assert total == 40 and "_epoch" in source and "_batch" in source


def test_epochs_over_a_loader_are_steps_once_its_length_is_known_and_accumulation_is_seen() -> None:
    watched = Watched()
    loader = DataLoader(TensorDataset(torch.zeros(11, 1)), batch_size=2)
    watched.passes[id(loader)] = [0, None]
    place = watched.passes[id(loader)]
    for _epoch in range(20):
        place[0] = 0
        for _batch in loader:
            assert place[0] is not None
            place[0] += 1
            if place[0] % 2:
                watched.micro()
            else:
                watched.step()
    assert {total for total, _ in watched.rows} == {60}

    class Own(Dataset[int]):
        def __len__(self) -> int:
            raise AssertionError("code of the job was called")

    assert planned_end.batches_in(DataLoader.__new__(DataLoader)) is None
    own = object.__new__(DataLoader)
    own.__dict__.update(batch_sampler=SimpleNamespace(), dataset=Own())
    assert planned_end.batches_in(own) is None
    assert planned_end.batches_in(loader) == 6


def test_nothing_is_said_where_the_end_is_not_certain() -> None:
    watched = Watched()
    for _rate in (0.1, 0.01, 0.001):  # several trainings: the end of one is not the end
        for _step in range(20):
            watched.step()
    assert watched.rows == []

    watched = Watched()
    for step in range(1000):
        if step % 3 != 1 or step % 7:
            watched.micro()
        if step in (2, 3, 5, 8, 13, 21, 34, 55):  # not a step an iteration
            watched.step()
        if step > 60:
            break
    assert watched.rows == []

    watched = Watched()
    while True:
        watched.step()
        if watched.recorder.step > 20:
            break
    assert watched.rows == []


def test_a_loop_that_may_be_left_early_says_so_and_what_was_said_is_withdrawn() -> None:
    watched = Watched()
    for step in range(1000):
        watched.step()
        if step > 50:
            break
    [(total, source)] = watched.rows
    assert total == 1000 and source.endswith(LEFT_EARLY)
    for _ in itertools.repeat(None):
        watched.step()
        if watched.recorder.step > 100:
            break
    assert watched.rows[1:] == [(None, NULL_STRING)]


def test_a_schedule_with_a_declared_length_and_what_the_user_said_are_taken() -> None:
    watched = Watched()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    watched.schedulers = [lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=90)]
    while True:
        optimizer.step()
        watched.step()
        watched.schedulers[0].step()
        if watched.recorder.step == 30:
            break
    assert watched.rows == [(90, "total_steps = 90 of OneCycleLR")]
    watched = Watched()
    watched.schedulers = [lr_scheduler.CosineAnnealingLR(optimizer, T_max=90)]
    while watched.recorder.step is not None:
        watched.step()
        watched.schedulers[0].step()
        if watched.recorder.step == 30:
            break
    assert watched.rows == [], "a cosine may start again"

    watched = Watched(said=500)
    for _step in range(20):
        watched.step()
    assert watched.rows == [(500, "PROBE_TOTAL_STEPS")]
