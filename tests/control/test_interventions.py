"""What stands between gradients and a step, on optimizers of this process; rules and watching of rates."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from probe.control.action import Action
from probe.control.actions.clip import Clip
from probe.control.actions.loss_scale import LossScale
from probe.control.actions.lr import Lr
from probe.control.actions.skip_nonfinite import SkipNonfinite
from probe.control.actions.spike_guard import SpikeGuard
from probe.errors import ActionRefused, BadRequest

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, foreach=True),
    "SGD fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.1),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
}
LIKE_ADAM = [name for name in OPTIMIZERS if "Ad" in name and name != "Adagrad"]


class Bench:
    """Optimizers of this process as an action's site shows them; `step` is a step with the hooks called."""

    def __init__(self, *optimizers: Any, schedulers: tuple[Any, ...] = (), scaler: Any = None) -> None:
        self._optimizers, self._schedulers, self._scaler = list(optimizers), list(schedulers), scaler
        self.recorder = SimpleNamespace(counted_step=0, recent=deque([(1_000_000, False, False, 0)]))
        self.several_ranks, self.rank, self.world_size = False, 0, None
        self.actions: list[Action] = []

    def optimizers(self) -> list[Any]:
        return self._optimizers

    def schedulers(self, optimizer: Any) -> list[Any]:
        return [one for one in self._schedulers if one.optimizer is optimizer]

    def scalers(self) -> list[Any]:
        return [] if self._scaler is None else [self._scaler]

    def names(self, *wanted: str) -> dict[str, Any]:
        return {}

    def name_of(self, thing: Any, default: str) -> str:
        return default

    def do(self, kind: type[Action], **arguments: Any) -> Any:
        action = kind(arguments, self)  # type: ignore[arg-type]
        action.begin()
        self.actions.append(action)
        return action

    def step(self, optimizer: Any = None, then: Any = None) -> None:
        """What `acting` does around an optimizer's step."""
        optimizer = optimizer or self._optimizers[0]
        for action in self.actions:
            if action.standing:
                action.before_step(optimizer)
        if then is None:
            optimizer.step()
        else:
            then(optimizer)
        for action in reversed(self.actions):
            if action.standing:
                action.after_step(optimizer)
        self.recorder.counted_step += 1


def trained(make: Callable[[Any], Any], steps: int = 3) -> tuple[list[nn.Parameter], Any]:
    """Parameters with gradients, and an optimizer that has stepped."""
    torch.manual_seed(1)
    parameters = [nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(2))]
    optimizer = make(parameters)
    for _ in range(steps):
        give(parameters)
        optimizer.step()
    return parameters, optimizer


def give(parameters: list[nn.Parameter], factor: float = 1.0) -> None:
    """A gradient each, but for the last."""
    for parameter in parameters[:-1]:
        parameter.grad = torch.randn_like(parameter) * factor


def everything(parameters: list[nn.Parameter], optimizer: Any) -> str:
    return repr((parameters, optimizer.state_dict()))


# Skipping ---------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_skipped_step_leaves_parameters_moments_and_counts(name: str, bad: float) -> None:
    parameters, optimizer = trained(OPTIMIZERS[name])
    bench = Bench(optimizer)
    skip = bench.do(SkipNonfinite)
    give(parameters)
    parameters[1].grad[2] = bad
    gradients = [parameter.grad for parameter in parameters]
    before = everything(parameters, optimizer)
    bench.step()
    assert everything(parameters, optimizer) == before
    assert all(parameter.grad is gradient for parameter, gradient in zip(parameters, gradients, strict=True))
    assert skip.so_far() == {"steps": 1, "skipped": 1, "skipped_steps": [0]}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_is_changed_where_nothing_is_to_be(name: str) -> None:
    alone, optimizer_alone = trained(OPTIMIZERS[name])
    parameters, optimizer = trained(OPTIMIZERS[name])
    bench = Bench(optimizer)
    bench.do(Clip, max_norm=1e6)
    bench.do(SkipNonfinite)
    if name in LIKE_ADAM:
        bench.do(SpikeGuard)
    for number in range(30):
        torch.manual_seed(number)
        give(alone)
        optimizer_alone.step()
        torch.manual_seed(number)
        give(parameters)
        bench.step()
    assert everything(parameters, optimizer) == everything(alone, optimizer_alone)


def test_large_finite_gradients_are_not_skipped() -> None:
    parameters, optimizer = trained(OPTIMIZERS["SGD"])
    bench = Bench(optimizer)
    skip = bench.do(SkipNonfinite)
    give(parameters, 1e30)  # their squares overflow
    bench.step()
    assert skip.so_far()["skipped"] == 0


def test_a_step_that_raises_leaves_no_gradients_of_before() -> None:
    parameters, optimizer = trained(OPTIMIZERS["SGD"])
    bench = Bench(optimizer)
    bench.do(SkipNonfinite)
    give(parameters)
    parameters[0].grad.fill_(math.nan)
    with pytest.raises(ZeroDivisionError):
        bench.step(then=lambda _: 1 / 0)
    give(parameters)
    parameters[1].grad = None
    fresh = [parameter.grad for parameter in parameters]
    bench.step()
    assert all(parameter.grad is gradient for parameter, gradient in zip(parameters, fresh, strict=True))


def test_what_a_gradient_scaler_skips_is_left_to_it() -> None:
    parameters, optimizer = trained(OPTIMIZERS["Adam fused"])
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    bench = Bench(optimizer)
    skip = bench.do(SkipNonfinite)
    scaler.scale(torch.zeros(()))
    give(parameters)
    parameters[0].grad[0] = math.inf
    before = everything(parameters, optimizer)
    optimizer.step = lambda *_: bench.step(then=type(optimizer).step)
    scaler.step(optimizer)
    assert skip.so_far()["skipped"] == 0
    del optimizer.step
    assert everything(parameters, optimizer) == before


# Clipping ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", [1.0, 2.0, "inf"])
def test_clipping_gives_the_bits_of_torch(kind: Any) -> None:
    for factor in (0.01, 1.0, 100.0):
        alone, _ = trained(OPTIMIZERS["SGD"])
        parameters, optimizer = trained(OPTIMIZERS["SGD"])
        torch.manual_seed(5)
        give(alone, factor)
        torch.manual_seed(5)
        give(parameters, factor)
        norm = nn.utils.clip_grad_norm_(alone, 1.3, norm_type=float(kind))
        bench = Bench(optimizer)
        clip = bench.do(Clip, max_norm=1.3, norm_type=kind)
        bench.step()
        assert repr([one.grad for one in parameters]) == repr([one.grad for one in alone])
        assert clip.so_far() == {
            "steps": 1, "clipped": int(norm > 1.3), "last_norm": float(norm), "largest_norm": float(norm),
        }


def test_gradients_of_several_types_and_none_at_all_are_clipped() -> None:
    both = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.float64)),
            nn.Parameter(torch.empty(0))]
    optimizer = torch.optim.SGD(both, lr=0.0)
    bench = Bench(optimizer)
    clip = bench.do(Clip, max_norm=1.0)
    bench.step()
    assert clip.so_far()["last_norm"] is None
    for parameter in both:
        parameter.grad = torch.full_like(parameter, 2.0)
    bench.step()
    total = sum(float(parameter.grad.square().sum()) for parameter in both)
    assert math.isclose(total, 1.0, rel_tol=1e-5)


def test_a_norm_that_half_precision_cannot_hold_is_clipped() -> None:
    parameter = nn.Parameter(torch.zeros(16, dtype=torch.float16))
    parameter.grad = torch.full_like(parameter, 30_000.0)
    bench = Bench(torch.optim.SGD([parameter], lr=0.1))
    clip = bench.do(Clip, max_norm=4.0)
    bench.step()
    assert clip.so_far()["last_norm"] == pytest.approx(120_000.0)
    assert parameter.grad.tolist() == pytest.approx([1.0] * 16, rel=1e-3)


def test_sparse_gradients_are_clipped_by_the_norm_of_their_sums() -> None:
    dense, sparse = nn.Embedding(5, 3), nn.Embedding(5, 3, sparse=True)
    sparse.load_state_dict(dense.state_dict())
    rows = torch.tensor([1, 1, 4, 1])
    for table in (dense, sparse):
        (table(rows).sum() * 3).backward()
    nn.utils.clip_grad_norm_(dense.parameters(), 0.7)
    bench = Bench(torch.optim.SparseAdam(sparse.parameters(), lr=0.1))
    clip = bench.do(Clip, max_norm=0.7)
    bench.do(SkipNonfinite)
    bench.do(SpikeGuard)
    bench.step()
    torch.testing.assert_close(sparse.weight.grad.to_dense(), dense.weight.grad)
    assert clip.so_far()["clipped"] == 1


def test_the_norm_is_taken_without_the_factor_that_a_fused_step_divides_by() -> None:
    alone, plain = trained(OPTIMIZERS["Adam foreach"])
    parameters, optimizer = trained(OPTIMIZERS["Adam fused"])
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    scaler.scale(torch.zeros(()))
    bench = Bench(optimizer)
    clip = bench.do(Clip, max_norm=0.5)
    optimizer.step = lambda *_: bench.step(then=type(optimizer).step)
    torch.manual_seed(6)
    give(parameters, 256.0)
    torch.manual_seed(6)
    give(alone)
    norm = nn.utils.clip_grad_norm_(alone, 0.5)
    plain.step()
    scaler.step(optimizer)
    assert clip.so_far()["last_norm"] == pytest.approx(float(norm))
    for one, other in zip(parameters, alone, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_that_are_spread_over_devices_are_clipped(tmp_path: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        parameter = nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)]))
        parameter.grad = distribute_tensor(torch.full((4,), 3.0), mesh, [Shard(0)])
        bench = Bench(torch.optim.AdamW([parameter], lr=0.0))
        clip = bench.do(Clip, max_norm=2.0)
        bench.do(SkipNonfinite)
        bench.do(SpikeGuard)
        bench.step()
        assert clip.so_far()["last_norm"] == 6.0
        torch.testing.assert_close(parameter.grad.full_tensor(), torch.ones(4))
    finally:
        dist.destroy_process_group()


# Spikes -----------------------------------------------------------------------


@pytest.mark.parametrize("name", LIKE_ADAM)
def test_after_a_spike_the_optimizer_steps_as_a_new_one(name: str) -> None:
    parameters, optimizer = trained(OPTIMIZERS[name])
    bench = Bench(optimizer)
    guard = bench.do(SpikeGuard, threshold=5.0)
    for _ in range(12):
        give(parameters)
        bench.step()
    new = copy.deepcopy(parameters)
    optimizer_of_new = OPTIMIZERS[name](new)
    give(parameters, 1000.0)
    spike = [None if one.grad is None else one.grad.clone() for one in parameters]
    bench.step()
    [event] = guard.so_far()["events"]
    assert event["step"] == 12
    assert 1.0 < event["usual_norm"] < 10.0 < event["norm"]
    for parameter, gradient in zip(new, spike, strict=True):
        parameter.grad = None if gradient is None else gradient * (event["usual_norm"] / event["norm"])
    optimizer_of_new.step()
    for one, other in zip(parameters, new, strict=True):
        torch.testing.assert_close(one, other)
    kept, fresh = optimizer.state_dict()["state"], optimizer_of_new.state_dict()["state"]
    torch.testing.assert_close(kept, fresh)


def test_gradients_that_grow_for_good_become_the_usual() -> None:
    parameters, optimizer = trained(OPTIMIZERS["Adam"])
    bench = Bench(optimizer)
    guard = bench.do(SpikeGuard, threshold=5.0, window=10)
    for number in range(60):
        give(parameters, 1.0 if number < 20 else 100.0)
        bench.step()
    assert 1 <= guard.so_far()["spikes"] <= 10


def test_a_guard_waits_until_it_knows_what_is_usual_and_leaves_nan_alone() -> None:
    parameters, optimizer = trained(OPTIMIZERS["Adam"])
    bench = Bench(optimizer)
    guard = bench.do(SpikeGuard)
    for factor in (1.0, 1000.0, 1.0, math.nan, *[1.0] * 20, math.nan, 1.0):
        give(parameters, factor)
        bench.step()
    assert guard.so_far()["spikes"] == 0


# Several ranks, loss scale ------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [(Clip, {"max_norm": 1.0}), (SkipNonfinite, {}), (SpikeGuard, {}), (LossScale, {"set": 8}),
     (Lr, {"scale": 0.1})],
)
def test_one_rank_of_several_is_not_changed_alone_unless_forced(kind: Any, arguments: Any) -> None:
    _, optimizer = trained(OPTIMIZERS["Adam"])
    bench = Bench(optimizer, scaler=torch.amp.GradScaler("cpu"))
    bench.several_ranks, bench.world_size = True, 4
    with pytest.raises(ActionRefused, match="rank 0 alone, of 4"):
        bench.do(kind, **arguments)
    bench.do(kind, **arguments, force=True)


def test_a_loss_scale_set_before_the_first_use_is_that_of_the_first_use() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    action = Bench(scaler=scaler).do(LossScale, set=64)
    assert "from its first use on" in action.report()["what"]
    assert float(scaler.scale(torch.ones(()))) == 64.0
    assert "4 again" in action.undo()
    assert float(scaler.scale(torch.ones(()))) == 4.0
    with pytest.raises(ActionRefused, match="not enabled"):
        Bench(scaler=torch.amp.GradScaler("cpu", enabled=False)).do(LossScale, set=64)


# Rates ------------------------------------------------------------------------


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
    assert "goes on from the new rate" in " ".join(action.report()["notes"])
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
    assert "this overrides what was asked" in " ".join(report["notes"])


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
        with pytest.raises(BadRequest, match="more than 10 times"):
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
