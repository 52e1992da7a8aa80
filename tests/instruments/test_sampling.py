"""Samples of gradients keep to their share, reach every parameter in turn, and say what was not measured."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from probe.base.isolation import Isolation
from probe.job.instruments.core import statistics
from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.core.past_steps import StepCost
from probe.job.instruments.modules.parameter_names import Known
from probe.job.instruments.tensors import gradients as module
from probe.job.instruments.tensors.gradient_norm import LONGEST_STEPS, interval_for
from probe.job.instruments.tensors.gradient_rows import StatisticsRequest
from probe.job.instruments.tensors.gradients import Gradients
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER, NULL_STRING
from probe.recording.tables import BY_NAME

COLUMNS = [column.name for column in BY_NAME["python.gradients"].columns]
MS = 1_000_000


class Rows:
    """Stands in for a ring."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def append(self, *fields: Any) -> int:
        self.rows.append(fields)
        return len(self.rows)


class Arrives(Delivery):
    """A device that has it at once."""

    def send(self, figures: Any, then: Any) -> None:
        then(figures.tolist())


class Training:
    """A recorder and an optimizer of four parameters, stepping in steps of `wall_ms`."""

    def __init__(self, wall_ms: float = 10.0, names: bool = True) -> None:
        self.texts: list[str] = [""]
        self.rings = {name: Rows() for name in ("python.gradients", "python.optimizers")}
        self.recorder: Any = SimpleNamespace(
            step=0, timing=True, cost_ns=0, grad_norm=NULL_DOUBLE, rings=self.rings, intern=self._intern,
            past=SimpleNamespace(costs=lambda _, most: [StepCost(int(wall_ms * MS), False, False, 0)] * most),
            owns_gradients=lambda: True,
        )
        torch.manual_seed(0)
        self.parameters = [torch.nn.Parameter(torch.randn(6, 5)) for _ in range(4)]
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.5)
        self.optimizers: Any = SimpleNamespace(
            sample=None, sample_from_step=0, finish_sample=None, made_count=1, seen=[1],
            expected_leader=lambda: self.optimizer, newest_scaler=lambda: None,
            alive=lambda: [self.optimizer], made_step=lambda _: 0,
        )
        known = {id(one): Known(self._intern(f"p{place}"), place, f"p{place}")
                 for place, one in enumerate(self.parameters)} if names else {}
        called: Any = SimpleNamespace(
            of=lambda one: known.get(id(one)), collect=lambda: None, ready=True,
        )
        self.gradients = Gradients(
            self.recorder, Isolation(), self.optimizers, called, 0.01, lambda: False, samples=True
        )
        self.gradients.install()

    def _intern(self, text: str) -> int:
        self.texts.append(text)
        return len(self.texts) - 1

    def step(self) -> None:
        """One step, as `Optimizers` goes around it."""
        for one in self.parameters:
            one.grad = torch.randn(6, 5)
        optimizers = self.optimizers
        if self.recorder.step >= optimizers.sample_from_step:
            optimizers.sample(self.optimizer, (self.optimizer,), {})
        self.optimizer.step()
        after, optimizers.finish_sample = optimizers.finish_sample, None
        if after is not None:
            after(self.optimizer, 0.5)
        self.recorder.step += 1

    def rows(self) -> list[dict[str, Any]]:
        """Of python.gradients."""
        return [dict(zip(COLUMNS, row, strict=True)) for row in self.rings["python.gradients"].rows]

    def end(self) -> None:
        """Wrappers out."""
        self.gradients.uninstall()


@pytest.fixture
def training() -> Any:
    """Long steps: the budget allows every sample, however slow the machine is."""
    made = Training(wall_ms=1000.0)
    yield made
    made.end()


def test_what_costs_more_comes_more_rarely() -> None:
    assert interval_for(50_000, 0.001 * 50 * MS) == 1
    assert interval_for(250_000, 0.001 * 1 * MS) == 250
    assert interval_for(1, 0.0) == LONGEST_STEPS


def test_a_portion_after_another_reaches_every_parameter(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SHORTEST_PORTION_NS", 0)
    monkeypatch.setattr(module, "PORTION", 0.0)
    monkeypatch.setattr(module, "interval_for", lambda *_: 1)
    for _ in range(100):
        training.step()
    found = [row["place"] for row in training.rows()]
    assert found[:4] == [0, 1, 2, 3]
    assert found[4:8] == [0, 1, 2, 3]


def test_an_update_is_estimated_where_there_was_no_room_for_a_copy(training: Training) -> None:
    training.gradients._copy_bytes = 2 * 30 * 4
    for _ in range(3):
        training.step()
    rows = training.rows()
    kinds = [training.texts[row["update_kind"]] for row in rows]
    assert kinds == ["measured", "measured", "estimated", "estimated"]
    for row in rows:  # of plain SGD the estimate is the update
        assert row["update_norm"] == pytest.approx(0.5 * row["norm"], rel=1e-5)
        assert row["update_ratio"] == pytest.approx(row["update_norm"] / row["weight_norm"])


def test_a_parameter_without_a_known_name_has_none_and_its_place_in_the_optimizer() -> None:
    training = Training(wall_ms=1000.0, names=False)  # all at once, however busy the machine is
    training.step()
    assert not training.rows(), "it does not wait for the name"
    training.recorder.step, training.gradients._since_ns = module.NAMES_WAIT_STEPS, 0
    for _ in range(3):
        training.step()
    assert [row["param"] for row in training.rows()] == [NULL_STRING] * 4
    assert [row["place"] for row in training.rows()] == [0, 1, 2, 3]
    training.end()


def test_a_parameter_without_a_gradient_has_no_figures_of_one(training: Training) -> None:
    training.parameters[1].requires_grad_(False)
    for _ in range(3):
        for one in training.parameters:
            one.grad = torch.ones(6, 5)
        training.parameters[1].grad = None
        if training.recorder.step >= training.optimizers.sample_from_step:
            training.optimizers.sample(training.optimizer, (), {})
        if training.optimizers.finish_sample is not None:
            training.optimizers.finish_sample(training.optimizer, 0.5)
        training.recorder.step += 1
    row = training.rows()[1]
    assert (row["norm"], row["nan_count"], row["zero_ratio"]) == (NULL_DOUBLE, NULL_INTEGER, NULL_DOUBLE)
    assert row["weight_norm"] > 0


def test_nothing_is_looked_at_on_shadow_steps_unless_it_is_asked_for(training: Training) -> None:
    training.recorder.timing = False
    for _ in range(5):
        training.step()
    assert not training.rows()
    asked = StatisticsRequest(updates=True)
    training.gradients.set_request(asked)
    training.step()
    training.gradients.set_request(None)
    training.step()
    assert {training.texts[row["reason"]] for row in training.rows()} == {"asked"}
    assert len(training.rows()) == asked.rows == 4


def test_what_a_device_works_out_is_what_the_host_does(training: Training) -> None:
    """The device's arithmetic and its way to the rows, on a CPU: there was no device to run it on."""
    for values in (torch.randn(1000), torch.tensor([1.0, 0.0, float("nan"), float("inf")]), torch.zeros(3)):
        here, there = statistics.moments(values), statistics.moments_there(values).tolist()
        assert [repr(value) for value in there] == [repr(float(value)) for value in here]
    training.gradients._due = 10**9
    training.gradients.set_request(StatisticsRequest())
    training.step()
    here_rows = training.rows()
    entries = training.gradients._entries(training.optimizer, False, StatisticsRequest(), time.monotonic_ns())
    for entry, parameter in zip(entries, training.parameters, strict=True):
        entry.moments = torch.tensor(entry.moments, dtype=torch.float64)
        entry.before = None
        assert entry.parameter is parameter
    sample = module.OpenSample(entries, False, None, None, 1.0, False)
    training.gradients._rows._send(
        0, 0, 0, sample, torch.device("cpu"), [(entry, 0.5) for entry in entries], Arrives()
    )
    for first, second in zip(here_rows, training.rows()[4:], strict=True):
        assert first["param"] == second["param"]
        assert second["norm"] == pytest.approx(first["norm"])
