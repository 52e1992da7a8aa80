"""Rescaling a schedule where it is kept: every scheduler of torch, against the untouched one."""

from __future__ import annotations

import copy
import gc
import inspect
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler, swa_utils

from probe.job.actions.rates.schedules import (
    KNOWN,
    Change,
    is_known,
    left_alone,
    obstacle,
    places_of_groups,
    places_of_schedule,
)

FACTOR = 0.37
AFTER = 40
RATES = (0.1, 0.02)
"""Of the two groups."""

Make = Callable[[Any], list[Any]]

SCHEDULES: dict[str, Make] = {
    "LambdaLR": lambda o: [lr_scheduler.LambdaLR(o, [lambda n: 0.95**n, lambda n: 1 / (1 + n)])],
    "MultiplicativeLR": lambda o: [lr_scheduler.MultiplicativeLR(o, lambda n: 0.9 if n % 3 else 1.2)],
    "StepLR": lambda o: [lr_scheduler.StepLR(o, 7, 0.5)],
    "MultiStepLR": lambda o: [lr_scheduler.MultiStepLR(o, [4, 11, 11, 30], 0.5)],
    "ConstantLR": lambda o: [lr_scheduler.ConstantLR(o, 0.25, 12)],
    "LinearLR": lambda o: [lr_scheduler.LinearLR(o, 0.1, 0.8, 15)],
    "ExponentialLR": lambda o: [lr_scheduler.ExponentialLR(o, 0.93)],
    "PolynomialLR": lambda o: [lr_scheduler.PolynomialLR(o, 25, 2.0)],
    "CosineAnnealingLR": lambda o: [lr_scheduler.CosineAnnealingLR(o, 13, eta_min=1e-3)],
    "CosineAnnealingWarmRestarts": lambda o: [lr_scheduler.CosineAnnealingWarmRestarts(o, 5, 2, 1e-3)],
    "CyclicLR": lambda o: [lr_scheduler.CyclicLR(o, [0.01, 0.002], [0.1, 0.02], 6, mode="triangular2")],
    "OneCycleLR": lambda o: [lr_scheduler.OneCycleLR(o, [0.1, 0.02], 70, three_phase=True)],
    "ReduceLROnPlateau": lambda o: [lr_scheduler.ReduceLROnPlateau(o, factor=0.6, patience=1, min_lr=2e-3)],
    "SWALR": lambda o: [swa_utils.SWALR(o, swa_lr=[0.05, 0.01], anneal_epochs=20)],
    "SequentialLR": lambda o: [
        lr_scheduler.SequentialLR(
            o,
            [
                lr_scheduler.LinearLR(o, 0.1, 1.0, 6),
                lr_scheduler.CosineAnnealingLR(o, 9, eta_min=1e-4),
                lr_scheduler.ExponentialLR(o, 0.9),
            ],
            [6, 18],
        )
    ],
    "ChainedScheduler": lambda o: [
        lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(o, 0.1, 4), lr_scheduler.ExponentialLR(o, 0.9)]
        )
    ],
    "two of them": lambda o: [lr_scheduler.LinearLR(o, 0.2, 1.0, 9), lr_scheduler.StepLR(o, 8, 0.5)],
    "none": lambda o: [],
}
CLOSED = [
    name for name in SCHEDULES
    if hasattr(getattr(lr_scheduler, name, None), "_get_closed_form_lr")
] + ["CosineAnnealingWarmRestarts", "LambdaLR"]


class Run:
    """An optimizer of two groups and its schedule, stepped without training."""

    def __init__(self, name: str, *, tensor: bool = False) -> None:
        rates = [torch.tensor(rate, dtype=torch.float64) if tensor else rate for rate in RATES]
        weights = [torch.nn.Parameter(torch.zeros(2)) for _ in rates]
        groups = [{"params": [weight], "lr": rate} for weight, rate in zip(weights, rates, strict=True)]
        self.optimizer = torch.optim.SGD(groups, lr=0.5, momentum=0.9)
        self.schedulers = SCHEDULES[name](self.optimizer)
        self.steps = 0

    def rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def step(self, *, closed: bool = False) -> list[float]:
        """The rates after one more step of every scheduler."""
        self.steps += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for scheduler in self.schedulers:
                if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                    scheduler.step(1.0)
                elif closed:
                    scheduler.step(self.steps)
                else:
                    scheduler.step()
        return self.rates()

    def change(self, factor: float = FACTOR, groups: tuple[int, ...] = (0, 1)) -> Change:
        assert obstacle(self.optimizer, self.schedulers, groups) is None
        change = Change.scale(places_of_schedule(self.optimizer, self.schedulers, groups), factor)
        change.apply()
        return change

    def state(self) -> Any:
        return copy.deepcopy([self.optimizer.state_dict(), *(one.state_dict() for one in self.schedulers)])


@pytest.fixture(autouse=True)
def quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of schedulers stepped without their optimizer
        yield


def near(rates: list[float], wanted: list[float]) -> bool:
    return all(
        math.isclose(rate, want, rel_tol=1e-6, abs_tol=1e-14)
        for rate, want in zip(rates, wanted, strict=True)
    )


def test_every_scheduler_of_torch_is_known_and_tried() -> None:
    found = {
        name for module in (lr_scheduler, swa_utils) for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, lr_scheduler.LRScheduler)
        and name not in ("LRScheduler", "_LRScheduler")
    }
    assert found == set(KNOWN)
    assert found <= set(SCHEDULES)


@pytest.mark.parametrize("tensor", [False, True], ids=["float", "tensor"])
@pytest.mark.parametrize("at", [0, 1, 6, 13, 17])
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_later_rate_is_the_untouched_one_times_the_factor(name: str, at: int, tensor: bool) -> None:
    untouched, run = Run(name, tensor=tensor), Run(name, tensor=tensor)
    before = run.optimizer.param_groups[0]["lr"]
    for _ in range(at):
        untouched.step()
        run.step()
    run.change()
    assert near(run.rates(), [rate * FACTOR for rate in untouched.rates()])
    for number in range(AFTER):
        wanted = [rate * FACTOR for rate in untouched.step()]
        assert near(run.step(), wanted), f"{number} steps after"
    if tensor:
        assert run.optimizer.param_groups[0]["lr"] is before, "a graph that holds the tensor would not see it"


@pytest.mark.parametrize("name", CLOSED)
def test_the_closed_form_gives_the_untouched_rate_times_the_factor(name: str) -> None:
    untouched, run = Run(name), Run(name)
    for _ in range(3):
        untouched.step(closed=True)
        run.step(closed=True)
    run.change()
    for _ in range(AFTER):
        wanted = [rate * FACTOR for rate in untouched.step(closed=True)]
        assert near(run.step(closed=True), wanted)


@pytest.mark.parametrize("name", SCHEDULES)
def test_undoing_at_once_leaves_no_trace(name: str) -> None:
    for tensor in (False, True):
        run = Run(name, tensor=tensor)
        for _ in range(5):
            run.step()
        before = run.state()
        change = run.change()
        if name != "none":
            assert str(run.state()) != str(before)
        assert change.undo() == []
        assert str(run.state()) == str(before)


@pytest.mark.parametrize("name", SCHEDULES)
def test_undoing_later_returns_to_the_untouched_schedule(name: str) -> None:
    untouched, run = Run(name), Run(name)
    for _ in range(4):
        untouched.step()
        run.step()
    change = run.change()
    for _ in range(11):
        untouched.step()
        run.step()
    change.undo()
    for _ in range(AFTER):
        assert near(run.step(), untouched.step())


@pytest.mark.parametrize("name", sorted(set(SCHEDULES) - {"SequentialLR"}))
def test_one_group_is_rescaled_and_the_other_is_not_touched(name: str) -> None:
    untouched, run = Run(name), Run(name)
    for one in (untouched, run):
        for scheduler in one.schedulers:
            if getattr(scheduler, "eta_min", 0):
                scheduler.eta_min = 0.0
            if getattr(scheduler, "eps", 0):
                scheduler.eps = 0.0
        for _ in range(4):
            one.step()
    run.change(groups=(1,))
    for _ in range(AFTER):
        one, other = untouched.step()
        assert run.step() == pytest.approx([one, other * FACTOR], rel=1e-6, abs=1e-14)


def test_a_floor_that_groups_share_is_an_obstacle_for_one_of_them() -> None:
    run = Run("CosineAnnealingLR")
    assert obstacle(run.optimizer, run.schedulers, (0, 1)) is None
    assert "eta_min" in str(obstacle(run.optimizer, run.schedulers, (0,)))
    inside = Run("SequentialLR")
    assert "eta_min" in str(obstacle(inside.optimizer, inside.schedulers, (0,)))
    plateau = Run("ReduceLROnPlateau")
    assert obstacle(plateau.optimizer, plateau.schedulers, (0,)) is None
    assert "ReduceLROnPlateau.eps" in left_alone(plateau.optimizer, plateau.schedulers, (0,))
    assert left_alone(plateau.optimizer, plateau.schedulers, (0, 1)) == []


def test_what_the_job_made_of_a_scheduler_is_not_known() -> None:
    class Own(lr_scheduler.StepLR):
        pass

    run = Run("StepLR")
    assert is_known(run.schedulers[0])
    own = Own(run.optimizer, 3)
    assert "Own" in str(obstacle(run.optimizer, [own], (0, 1)))
    run.schedulers[0].get_lr = lambda: [1.0, 1.0]
    assert obstacle(run.optimizer, run.schedulers, (0, 1)) is not None
    inside = lr_scheduler.SequentialLR(run.optimizer, [own], [])
    assert "Own" in str(obstacle(run.optimizer, [inside], (0, 1)))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_changes_are_undone_in_any_order(order: tuple[int, int]) -> None:
    untouched, run = Run("OneCycleLR"), Run("OneCycleLR")
    before = run.state()
    changes = [run.change(0.5), run.change(0.25)]
    for which in order:
        changes[which].undo()
    if order == (1, 0):
        assert str(run.state()) == str(before)
    for _ in range(AFTER):
        assert near(run.step(), untouched.step())


def test_a_change_follows_a_job_that_loads_a_checkpoint() -> None:
    untouched, run = Run("CosineAnnealingLR"), Run("CosineAnnealingLR")
    change = run.change()
    run.optimizer.load_state_dict(copy.deepcopy(run.optimizer.state_dict()))
    run.schedulers[0].load_state_dict(copy.deepcopy(run.schedulers[0].state_dict()))
    change.undo()
    for _ in range(AFTER):
        assert near(run.step(), untouched.step())


def test_a_rescaled_schedule_is_in_the_jobs_own_state() -> None:
    untouched, run = Run("OneCycleLR"), Run("OneCycleLR")
    run.change()
    resumed = Run("OneCycleLR")
    resumed.optimizer.load_state_dict(run.optimizer.state_dict())
    resumed.schedulers[0].load_state_dict(run.schedulers[0].state_dict())
    for _ in range(AFTER):
        assert near(resumed.step(), [rate * FACTOR for rate in untouched.step()])


def test_a_rate_that_would_vanish_is_seen_before_anything_is_written() -> None:
    run = Run("StepLR")
    places = places_of_schedule(run.optimizer, run.schedulers, (0, 1))
    assert Change.scale(places, 1e-320).vanishing()
    assert Change.scale(places, 1e320).vanishing()
    assert not Change.scale(places, 1e-9).vanishing()
    assert run.rates() == list(RATES)


def test_a_rate_that_was_set_is_put_back_unless_the_job_wrote_another() -> None:
    run = Run("none")
    change = Change.set(places_of_groups(run.optimizer, (0, 1), ("lr", "initial_lr")), 0.7)
    change.apply()
    assert run.rates() == [0.7, 0.7]
    run.optimizer.param_groups[1]["lr"] = 0.3
    assert change.undo() == ["lr"]
    assert run.rates() == [RATES[0], 0.3]


def test_a_change_keeps_no_optimizer_alive() -> None:
    run = Run("SequentialLR")
    change = run.change()
    del run
    gc.collect()
    assert change.undo() == []
