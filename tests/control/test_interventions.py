"""What stands between gradients and a step, on every optimizer of torch."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from control.bench import LIKE_ADAM, OPTIMIZERS, Bench, everything, give, trained
from probe.base.errors import ActionRefused
from probe.job.actions.interventions.clip import Clip
from probe.job.actions.interventions.skip_nonfinite import SkipNonfinite
from probe.job.actions.interventions.spike_guard import SpikeGuard
from probe.job.actions.rates.learning_rate import Lr
from probe.job.actions.rates.loss_scale import LossScale

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
            "steps": 1, "clipped": int(norm > 1.3), "first_norm": float(norm), "last_norm": float(norm),
            "largest_norm": float(norm),
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
    with pytest.raises(ActionRefused, match="only rank 0 of 4"):
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
