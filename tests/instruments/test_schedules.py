"""What is recorded of a learning-rate scheduler: whose rate it sets, how far it has counted, its metric."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.optim import lr_scheduler

from probe.base.isolation import Isolation
from probe.job.instruments.loop import scheduler_states
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.loop.scheduler_states import Schedules, length_of
from probe.recording.layout import NULL_INTEGER
from probe.recording.tables import BY_NAME

COLUMNS = [column.name for column in BY_NAME["python.schedulers"].columns]


class Watched:
    """Two optimizers of one model; the rows of what is looked at."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        rings = {"python.schedulers": SimpleNamespace(append=self.append)}
        recorder: Any = SimpleNamespace(step=7, rings=rings, intern=lambda text: text)
        self.optimizers = Optimizers(recorder, Isolation(lambda *_: None))
        self.schedules = Schedules(recorder, Isolation(lambda *_: None), self.optimizers)
        self.model = torch.nn.Linear(3, 2)
        self.made = [torch.optim.SGD(self.model.parameters(), lr=0.1) for _ in range(2)]
        for one in self.made:
            self.optimizers._made(one)

    def append(self, *values: Any) -> None:
        self.rows.append(dict(zip(COLUMNS, values, strict=True)))

    def look(self, scheduler: Any) -> dict[str, Any]:
        self.optimizers._made_scheduler(scheduler)
        self.schedules._next_s = 0.0
        self.schedules.collect()
        return self.rows[-1]


@pytest.fixture
def watched() -> Iterator[Watched]:
    found = Watched()
    found.schedules.install()
    yield found
    found.schedules.uninstall()
    assert "probe" not in lr_scheduler.ReduceLROnPlateau.step.__code__.co_filename


def test_a_scheduler_of_the_optimizer_that_steps_is_told_from_one_of_another(watched: Watched) -> None:
    old, stepping = watched.made
    watched.optimizers._leader = cast(Any, lambda: stepping)
    scheduler = lr_scheduler.StepLR(old, step_size=2, gamma=0.5)
    for _ in range(2):
        old.step()
        scheduler.step()
    row = watched.look(scheduler)
    assert (row["scheduler"], row["optimizer"]) == ("StepLR", "SGD")
    assert (row["leads"], row["same_parameters"]) == (0, 1)
    assert (row["count"], row["calls"], row["lr"], row["base_lr"]) == (2, 3, 0.05, 0.1)
    assert (row["length"], row["last_step"]) == (2, NULL_INTEGER)
    watched.optimizers._leads(old)
    assert watched.look(scheduler)["last_step"] == 7
    sharing = torch.optim.SGD(stepping.param_groups, lr=0.1)  # as Horovod makes one
    assert watched.look(lr_scheduler.StepLR(sharing, step_size=2))["leads"] == 1
    assert watched.look(lr_scheduler.ConstantLR(stepping, total_iters=9))["leads"] == 1


def test_what_a_plateau_scheduler_is_given_is_recorded_with_its_name_in_the_source(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_states, "is_user_code", lambda _: True)
    scheduler = lr_scheduler.ReduceLROnPlateau(watched.made[0], mode="max")
    accuracy = torch.tensor(0.75)
    scheduler.step(accuracy)
    watched.schedules.collect()
    row = watched.rows[0]
    assert (row["mode"], row["metric"], row["argument"], row["step"]) == ("max", 0.75, "accuracy", 7)


@pytest.mark.parametrize(
    ("make", "length"),
    [
        (lambda one: lr_scheduler.CosineAnnealingLR(one, T_max=50), 50),
        (lambda one: lr_scheduler.OneCycleLR(one, max_lr=1.0, total_steps=90), 90),
        (lambda one: lr_scheduler.MultiStepLR(one, milestones=[30, 60]), 60),
        (lambda one: lr_scheduler.ExponentialLR(one, gamma=0.9), NULL_INTEGER),
    ],
    ids=("cosine", "one cycle", "milestones", "without an end"),
)
def test_the_length_of_a_schedule_is_read_where_it_has_one(make: Any, length: int, watched: Watched) -> None:
    assert length_of(make(watched.made[0])) == length
