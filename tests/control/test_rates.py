"""Rates that are held, overwritten by the job, and undone in any order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from control.bench import Bench
from probe.base.errors import BadRequest
from probe.job.actions.rates.learning_rate import Lr


def rates_of(bench: Bench, scheduler: Any, steps: int) -> Iterator[list[float]]:
    """The rates that so many steps use, a scheduler stepping after each."""
    for _ in range(steps):
        used: list[float] = []

        def look(optimizer: Any, used: list[float] = used) -> None:
            optimizer.step()
            used += [float(group["lr"]) for group in optimizer.param_groups]

        bench.step(then=look)
        if scheduler is not None:
            scheduler.step()
        yield used


def scheduled(*, tensor: bool = False) -> tuple[Bench, Any, Any]:
    rate = torch.tensor(0.5, dtype=torch.float64) if tensor else 0.5
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=rate)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    optimizer.step()  # torch warns of a schedule that is ahead of it
    return Bench(optimizer, schedulers=(scheduler,)), optimizer, scheduler


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_rates_held_on_each_other_are_undone_in_any_order(order: tuple[int, int], tensor: bool) -> None:
    bench, optimizer, scheduler = scheduled(tensor=tensor)
    held = bench.optimizers()[0].param_groups[0]["lr"]
    holds = [bench.do(Lr, set=0.25), bench.do(Lr, scale=0.5)]
    assert list(rates_of(bench, scheduler, 3)) == [[0.125]] * 3
    holds[order[0]].undo()
    [[one]] = rates_of(bench, scheduler, 1)
    assert one == pytest.approx(0.25 if order == (1, 0) else 0.5 * 0.9**3 * 0.5)
    holds[order[1]].undo()
    assert [rate for [rate] in rates_of(bench, scheduler, 2)] == pytest.approx([0.5 * 0.9**4, 0.5 * 0.9**5])
    if tensor:
        assert optimizer.param_groups[0]["lr"] is held


def test_a_rate_is_given_back_when_probe_leaves_in_the_middle_of_a_step() -> None:
    bench, optimizer, _ = scheduled()
    hold = bench.do(Lr, set=0.25)
    bench.step(then=lambda _: hold.cancel())
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert hold.finished.is_set()


def test_a_step_that_raises_keeps_the_scheduled_rate() -> None:
    bench, optimizer, scheduler = scheduled()
    hold = bench.do(Lr, set=0.25)
    with pytest.raises(ZeroDivisionError):
        bench.step(then=lambda _: 1 / 0)
    assert list(rates_of(bench, scheduler, 2)) == [[0.25]] * 2
    hold.undo()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.9**2)


def test_a_schedule_that_goes_on_inside_the_step_is_not_put_back() -> None:
    bench, optimizer, scheduler = scheduled()
    hold = bench.do(Lr, set=0.25)
    bench.step(then=lambda one: one.param_groups[0].update(lr=0.4))  # as a post hook of the job would
    assert optimizer.param_groups[0]["lr"] == 0.4
    assert list(rates_of(bench, scheduler, 1)) == [[0.25]]
    hold.undo()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.36)


def test_code_of_the_job_that_goes_on_from_the_new_rate_is_not_taken_for_one_that_overrides_it() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5)
    bench = Bench(optimizer)
    action = bench.do(Lr, scale=0.1)
    for number in range(20):
        optimizer.param_groups[0]["lr"] *= 0.99
        [[used]] = rates_of(bench, None, 1)
        assert used == pytest.approx(0.05 * 0.99 ** (number + 1))
    assert "continues from the new rate" in " ".join(action.report()["notes"])
    action.undo()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.99**20)


def test_a_schedule_by_hand_that_gives_way_to_a_scheduler_is_scaled_in_both() -> None:
    bench, optimizer, scheduler = scheduled()
    optimizer.param_groups[0]["lr"] = 0.04
    action = bench.do(Lr, scale=0.1)
    for number in range(5, 11):
        optimizer.param_groups[0]["lr"] = 0.01 * number
        [[used]] = rates_of(bench, None, 1)
        assert used == pytest.approx(0.001 * number)
    assert [rate for [rate] in rates_of(bench, scheduler, 3)] == pytest.approx([0.01, 0.009, 0.0081])
    assert action.report()["kept_by"] == "rule"
    action.undo()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**3)


def test_a_rate_written_inside_the_step_is_told_to_override() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5)
    bench = Bench(optimizer)
    action = bench.do(Lr, set=0.1)
    bench.step(then=lambda one: one.param_groups[0].update(lr=0.7))
    report = action.report()
    assert report["written_inside_step"] == [{"step": 0, "group": 0, "rate": 0.7}]
    assert "this overrides the request" in " ".join(report["notes"])


def test_a_change_in_the_middle_of_the_watching_is_not_taken_for_the_jobs() -> None:
    bench, optimizer, scheduler = scheduled()
    first = bench.do(Lr, scale=0.1)
    list(rates_of(bench, scheduler, 2))
    bench.do(Lr, scale=0.5)
    list(rates_of(bench, scheduler, 2))
    assert first.finished.is_set()
    assert first.report()["overwritten"] == []
    assert first.report()["kept_by"] == "schedule"
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.05 * 0.9**4)


def test_a_rate_beyond_ten_times_the_present_one_is_forced_or_refused() -> None:
    bench, optimizer, _ = scheduled()
    for arguments in ({"scale": 10.5}, {"set": 5.5}):
        with pytest.raises(BadRequest, match="10 times"):
            bench.do(Lr, **arguments)
    for arguments in ({"scale": 0.0}, {"scale": math.inf}, {"set": math.nan}, {"set": True}, {"scale": "2"}):
        with pytest.raises(BadRequest):
            bench.do(Lr, **arguments)
    assert optimizer.param_groups[0]["lr"] == 0.5
    bench.do(Lr, scale=10.5, force=True)
    assert optimizer.param_groups[0]["lr"] == 5.25


def test_a_rate_of_zero_stops_lbfgs_too() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([weight], lr=0.5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    bench = Bench(optimizer)
    action = bench.do(Lr, set=0.0)
    before = weight.detach().clone()
    bench.step(then=lambda one: one.step(closure))
    assert torch.equal(weight, before)
    action.undo()
    bench.step(then=lambda one: one.step(closure))
    assert not torch.equal(weight, before)


def test_an_optimizer_that_only_wraps_another_is_not_chosen() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer: Any) -> None:
            self.optimizer = optimizer

        @property
        def param_groups(self) -> Any:
            return self.optimizer.param_groups

        def step(self, closure: Any = None) -> None:
            self.optimizer.step(closure)

    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.5)
    wrapper = Wrapper(optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(wrapper, 100)
    bench = Bench(wrapper, optimizer, schedulers=(scheduler,))
    action = bench.do(Lr, scale=0.5)
    bench.step(optimizer)
    assert action.report()["schedulers"] == ["StepLR"]
    assert action.report()["groups"] == [{"group": 0, "before": 0.5, "now": 0.25, "used": [0.25]}]
