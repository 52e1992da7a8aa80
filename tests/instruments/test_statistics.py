"""Statistics agree with a straightforward float64 reference, to 1e-5 of the scale of the data."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from probe.job.instruments.core import statistics
from probe.job.instruments.tensors.activations import first_tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
SHAPES = ((), (1,), (7,), (3, 5), (20, 60))
LARGE = statistics.CHUNK_ELEMENTS + 5
"""More than one chunk, and more than percentiles are exact of."""
SCALES = {
    torch.float32: (1.0, 1e30, 1e-30), torch.bfloat16: (1.0, 1e30, 1e-30), torch.float16: (1.0, 6e4),
    torch.float64: (1.0, 1e30, 1e200, 1e-300),
}


def varied(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The tensor, and the same with zeros, NaNs, infinities, and nothing else."""
    found = [tensor, torch.full_like(tensor, 3.0), torch.full_like(tensor, math.nan)]
    if tensor.numel() > 2:
        some = tensor.clone().flatten()
        some[::3] = 0
        for value in (math.nan, math.inf, -math.inf):
            found.append(some.clone())
            some[1] = value
        some[0] = math.nan
        found.append(some)
    return found


def assert_near(found: float, wanted: float, scale: float) -> None:
    assert found == wanted or (found != found and wanted != wanted) or abs(found - wanted) <= 1e-5 * scale


def check_figures(tensor: torch.Tensor) -> None:
    found = statistics.measure(tensor)
    assert found is not None
    values = tensor.detach().to_dense().double().numpy().ravel()
    with np.errstate(all="ignore"):
        largest = float(np.abs(values).max())
        scale = largest if 0 < largest < math.inf else 1.0
        units = values / scale
        assert_near(found.norm, float(np.sqrt((units**2).sum()) * scale), abs(found.norm))
        assert_near(found.mean, float(units.mean() * scale), scale)
        assert_near(found.std, float(units.std() * scale), scale)
    assert_near(found.abs_max, largest, 0.0)
    assert_near(found.min, float(values.min()), 0.0)
    assert_near(found.max, float(values.max()), 0.0)
    assert (found.nan_count, found.inf_count) == (np.isnan(values).sum(), np.isinf(values).sum())
    assert found.zero_ratio == (values == 0).mean()


def check_distribution(tensor: torch.Tensor) -> None:
    values = tensor.double().numpy().ravel()
    stride = -(-values.size // statistics.EXACT_ELEMENTS)
    finite = values[::stride][np.isfinite(values[::stride])]
    known = statistics.values_of(tensor)
    assert known is not None
    found = statistics.described(statistics.distribution(known.flat).tolist())
    if not finite.size:
        assert found is None
        return
    assert found is not None
    assert (found.numel, found.min, found.max) == (finite.size, finite.min(), finite.max())
    scale = float(np.abs(finite).max())
    for percent, value in zip(statistics.PERCENTILES, found.percentiles, strict=True):
        assert_near(value, float(np.percentile(finite, percent)), scale)
    assert sum(found.counts) == finite.size
    assert len(found.edges) == len(found.counts) + 1 == statistics.BINS + 1
    if finite.min() == finite.max():
        assert found.skewness is found.kurtosis is None
        return
    counts, edges = np.histogram(finite, bins=statistics.BINS)
    assert np.abs(counts - found.counts).sum() <= 4  # of values that lie on an edge
    assert np.allclose(found.edges, edges, rtol=1e-9, atol=1e-9 * scale)
    units = finite / scale - (finite / scale).mean()
    units = units / units.std()
    assert found.skewness == pytest.approx((units**3).mean(), abs=1e-5)
    assert found.kurtosis == pytest.approx((units**4).mean(), rel=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_figures_and_distributions_agree_with_numpy(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for shape in SHAPES:
        for scale in SCALES[dtype]:
            bound = 6e4 if dtype == torch.float16 else math.inf
            tensor = (torch.randn(shape, dtype=torch.float64) * scale).clamp(-bound, bound).to(dtype)
            for one in varied(tensor):
                check_figures(one)
                check_distribution(one)
    large = torch.randn(LARGE, dtype=torch.float64).to(dtype)
    large[:10] = 0
    check_figures(large)
    check_distribution(large)
    large[-1] = math.nan
    check_figures(large)


def test_figures_of_sparse_whole_and_empty_tensors() -> None:
    places = torch.tensor([[0, 1, 1, 5]])
    with torch.sparse.check_sparse_tensor_invariants(enable=False):
        check_figures(torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0, 3.0, -4.0]), (10,)))
        check_figures(torch.sparse_coo_tensor(torch.zeros(1, 0).long(), torch.zeros(0), (10,)))
    check_figures(torch.arange(5))
    check_figures(torch.tensor([True, False, True]))
    check_figures(torch.randn(4, 5).t())
    empty = statistics.measure(torch.zeros(0))
    assert empty is not None
    assert (empty.numel, empty.norm, empty.nan_count) == (0, 0.0, 0)
    assert math.isnan(empty.mean)


def test_what_has_no_real_numbers_is_refused() -> None:
    for one in (torch.zeros(3, dtype=torch.complex64), torch.zeros(3, device="meta"), None, 1.0):
        assert statistics.measure(one) is None


@pytest.mark.parametrize("scale", [1.0, 1e30, 1e-30])
def test_the_norm_of_random_models_neither_overflows_nor_drifts(scale: float) -> None:
    chance = random.Random(1)
    for dtype in DTYPES:
        if dtype == torch.float16 and scale != 1.0:
            continue
        sizes = [chance.choice((1, 8, 1000, 20_000, 400_000)) for _ in range(6)]
        gradients = [(torch.randn(size, dtype=torch.float64) * scale).to(dtype) for size in [*sizes, 0]]
        wanted = scale * math.sqrt(sum(float((one.double() / scale).square().sum()) for one in gradients))
        assert statistics.total_norm(gradients) == pytest.approx(wanted, rel=1e-5)
        for one in gradients:
            exact = scale * float((one.double() / scale).norm())
            assert float(statistics.norm(one)) == pytest.approx(exact, rel=1e-5)
    halves = [torch.full((70_000,), 60_000.0, dtype=torch.float16)]
    assert statistics.total_norm(halves) == pytest.approx(6e4 * math.sqrt(70_000), rel=1e-3)
    assert statistics.total_norm([]) is None


def test_an_update_is_what_changed() -> None:
    before = torch.randn(70_000)
    after = before + 1e-4 * torch.randn(70_000)
    wanted = float((after.double() - before.double()).norm())
    assert float(statistics.difference_norm(before, after)) == pytest.approx(wanted, rel=1e-9)


def test_dead_and_saturated_units_are_counted() -> None:
    outputs = torch.rand(16, 10) + 0.5
    outputs[:, :3] = 0
    assert float(statistics.dead_ratio(outputs, -1)) == pytest.approx(0.3)
    images = torch.ones(4, 8, 5, 5)
    images[:, 1] = 0
    assert float(statistics.dead_ratio(images, 1)) == pytest.approx(1 / 8)
    assert float(statistics.saturated_ratio(torch.tensor([0.001, 0.5, 0.995, 0.2]), 0.0, 1.0)) == 0.5


def test_the_random_state_and_what_is_measured_stay_as_they_were() -> None:
    tensor = torch.randn(100)
    kept, state = tensor.clone(), torch.get_rng_state()
    statistics.measure(tensor)
    statistics.distribution(tensor)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(tensor, kept)


def test_the_first_tensor_of_an_output_is_found_in_containers() -> None:
    tensor = torch.ones(1)
    for value in (tensor, (None, tensor), {"a": [tensor]}, [(tensor, 1)]):
        found: Any = first_tensor(value, torch.Tensor)
        assert found is tensor
    assert first_tensor(("text", 3), torch.Tensor) is None
