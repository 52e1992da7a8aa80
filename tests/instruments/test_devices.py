"""Devices: what is recorded of a training on an accelerator is true, and the training never waits for it.

The same tests run on a real accelerator where torch finds one; here on the one of
`tests/programs/emulated_device.py`, once with what CUDA has and once with less.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from agent.asking import ask, evaluate, query, tell, without_times
from agent.nursery import Forked
from harness import PATIENCE_S, ROOT, Place
from probe.base import accelerator
from probe.base.accelerator import Accelerator
from probe.checkpoint.random_states import device_states, random_states, restore_random_states
from probe.job.instruments.loop.optimizers import Optimizers

STEPS = 16
HELD_FROM, HELD_TO = 6, 10
REAL = torch.accelerator.is_available()
Fork = Callable[..., Forked]

needs_a_device = pytest.mark.skipif(
    not REAL and not hasattr(torch._C, "_acc"),
    reason="this torch has no hooks for a device written in Python",
)


def act(place: Place, job: Forked, action: str, **arguments: Any) -> dict[str, Any]:
    body = {"action": action, "arguments": arguments}
    found: dict[str, Any] = ask(place, job.pid, "POST", "/v1/act", body)
    return found


def until(place: Place, job: Forked, sql: str, reached: Callable[[list[list[Any]]], bool]) -> list[list[Any]]:
    """The rows, once they are as wanted."""
    deadline = time.monotonic() + PATIENCE_S
    while not reached(rows := query(place, job.pid, sql)):
        assert time.monotonic() < deadline, f"{sql}\n{rows}"
        time.sleep(0.05)
    return rows


def trained(job: Forked) -> dict[str, Any]:
    """Its result; through the wait in the middle, where the device is emulated."""
    if not REAL:
        job.wait_for("HELD")
        tell(job)
    return without_times(job.result())


ONLY_EMULATED = pytest.mark.skipif(REAL, reason="there is a real accelerator")


@needs_a_device
@pytest.mark.parametrize("lean", [False, pytest.param(True, marks=ONLY_EMULATED)])
def test_a_training_on_a_device_is_recorded_without_being_waited_for_or_changed(
    fork: Fork, place: Place, tmp_path: Path, lean: bool
) -> None:
    command = ("trains_on_a_device", "--steps", str(STEPS), *(["--lean"] if lean else []))
    plain = fork(*command, watched=False)
    job = fork(*command, PROBE_MODULES_INTERVAL="1")
    if not REAL:
        nothing_arrives_from_a_device_that_finishes_nothing(place, job, 0 if lean else 1)
        tell(job)
    result = without_times(job.result())
    waits = result.pop("waits")
    wanted = trained(plain)
    assert wanted.pop("waits") == [] and result == wanted, "trained another way"
    late = [(what, thread) for what, thread, _ in waits]
    assert set(late) <= ({("a copy to the host", "probe-agent")} if lean else set()), waits[0]
    losses_and_times_are_the_devices(place, job, result)
    if lean:
        assert query(place, job.pid, "SELECT * FROM python.gradients") == [], "the host computed them"
    else:
        gradients_are_the_devices(place, job, result)
    memory_is_the_devices(place, job, result)
    tell(job, "go")
    what_is_asked_of_a_job_works_on_a_device(place, job, result, tmp_path, lean)
    tell(job, "nan")
    of_nan = "SELECT seen_by, kind, evidence FROM python.nonfinite"
    [[seen_by, kind, evidence]] = until(place, job, of_nan, bool)
    assert (seen_by, kind) == ("loss", "nan")
    assert "examined in the training process" in evidence or "behind, and the optimizer" in evidence, evidence
    tell(job, "out")
    assert job.wait() == 1
    [[error, message]] = query(place, job.pid, "SELECT type, message FROM python.exceptions WHERE training")
    assert "OutOfMemoryError" in error and "out of memory" in message


def nothing_arrives_from_a_device_that_finishes_nothing(place: Place, job: Forked, norms: int) -> None:
    """And the training goes on: only what the device has delivered has values. `norms`: 1 where it delivers
    them."""
    of_steps = "SELECT step, loss, grad_norm FROM python.steps ORDER BY step"
    last = HELD_FROM - 1

    def delivered(rows: list[list[Any]]) -> bool:
        return len(rows) > last and None not in rows[last][: 2 + norms]

    job.wait_for("FREE")
    until(place, job, of_steps, delivered)
    tell(job, "hold")
    job.wait_for("HELD")
    rows = until(place, job, of_steps, lambda rows: len(rows) >= HELD_TO and delivered(rows))
    assert [step for step, *_ in rows] == list(range(HELD_TO))
    assert [row[1:] for row in rows[HELD_FROM:]] == [[None, None]] * (HELD_TO - HELD_FROM)
    [[arrived]] = query(place, job.pid, "SELECT max(step) FROM python.losses")
    assert arrived == HELD_FROM - 1
    assert query(place, job.pid, f"SELECT * FROM python.gradients WHERE step >= {HELD_FROM}") == []
    timed = f"SELECT * FROM python.torch_trace WHERE stage <> 'step' AND step >= {HELD_FROM}"
    assert query(place, job.pid, timed) == []


def losses_and_times_are_the_devices(place: Place, job: Forked, result: dict[str, Any]) -> None:
    of_losses = "SELECT step, loss FROM python.losses ORDER BY step"
    rows = until(place, job, of_losses, lambda rows: len(rows) == STEPS)
    assert rows == [[step, float.fromhex(loss)] for step, loss in enumerate(result["losses"])]
    of_modules = (
        "SELECT module, stage, count(*), count(duration), min(duration) FROM python.torch_trace"
        " WHERE stage <> 'step' GROUP BY module, stage"
    )
    modules = until(place, job, of_modules, lambda rows: len(rows) == 14)
    assert {module for module, *_ in modules} >= {"body.0", "body.1", "head"}
    assert all(count == timed and least > 0 for *_, count, timed, least in modules)


def gradients_are_the_devices(place: Place, job: Forked, result: dict[str, Any]) -> None:
    of_steps = "SELECT step, loss, grad_norm FROM python.steps WHERE step < 16 ORDER BY step"
    rows = until(place, job, of_steps, lambda rows: rows[-1][1] is not None and rows[-1][2] is not None)
    assert [loss for _, loss, _ in rows] == [float.fromhex(loss) for loss in result["losses"]]
    known = [(step, norm) for step, _, norm in rows if norm is not None]
    assert len(known) >= STEPS - 1
    for step, norm in known:
        assert norm == pytest.approx(result["norms"][step], rel=1e-5)
    of_gradients = (
        "SELECT step, sqrt(sum(norm * norm)), bool_and(update_kind = 'measured' AND update_norm > 0)"
        " FROM python.gradients GROUP BY step ORDER BY step"
    )
    sampled = until(place, job, of_gradients, lambda rows: len(rows) >= STEPS // 2)
    for step, norm, measured in sampled:
        assert norm == pytest.approx(result["norms"][step], rel=1e-5) and measured


def memory_is_the_devices(place: Place, job: Forked, result: dict[str, Any]) -> None:
    own = torch.get_device_module(result["kind"]) if REAL else None
    total = 1 << 30 if own is None else own.get_device_properties(0).total_memory
    figures = "max(allocated_bytes), max(peak_allocated_bytes), min(device_total_bytes)"
    of_memory = f"SELECT {figures} FROM process.memory"
    [[allocated, peak, found]] = until(place, job, of_memory, lambda rows: (rows[0][0] or 0) > 4096)
    assert allocated <= peak < found == total
    figures = "min(allocated), max(cached), bool_and(allocated <= max_allocated)"
    of_calls = f"SELECT {figures} FROM python.torch_trace"
    [[least, cached, ordered]] = query(place, job.pid, of_calls)
    assert 0 < least < 64 and cached > 0 and ordered, "not of the device: the process has hundreds of MB"
    of_device = "SELECT name, value FROM probe.facts WHERE kind = 'hardware' AND name LIKE 'device%'"
    facts = dict(until(place, job, of_device, bool))
    assert facts["device_type"] == result["kind"] and facts["device_memory_bytes"] == str(total)


def what_is_asked_of_a_job_works_on_a_device(
    place: Place, job: Forked, result: dict[str, Any], folder: Path, lean: bool
) -> None:
    kind = result["kind"]
    answer = evaluate(place, job.pid, f"import torch\nn = torch.rand(3, device='{kind}')\nprint(n.shape)")
    assert answer["error"] is None and "the random state of device 0" in json.dumps(answer), answer
    path = folder / "a.pt"
    act(place, job, "checkpoint", path=str(path))
    content = torch.load(path, weights_only=True)
    assert {one.device.type for one in content["model"].values()} == {"cpu"}
    [state, *_] = content["probe"]["rng"]["devices"][kind]
    answer = act(place, job, "memory_snapshot", path=str(folder / "memory.pickle"))
    assert answer["details"]["device"] == (REAL or lean)
    assert (f"no snapshot of this device's allocator ({kind})" in str(answer["notes"])) != (REAL or lean)
    trace = act(place, job, "profile", steps=1, path=str(folder / "trace.json"))
    assert trace["details"]["steps"] == 1
    tell(job, f"load {path}")
    assert job.wait_for("LOADED") == f"LOADED {state.tolist()}"


# The code --------------------------------------------------------------------------

MAY_NAME_THEM = {
    "probe/base/accelerator.py": "asks torch",
    "probe/job/snippets/guard/rules.py": "names of functions that snippets call: nothing is called there",
    "probe/diagnose/code/effect_rules.py": "names of methods that a program calls: nothing is called there",
}


def test_no_module_but_one_asks_torch_about_a_device() -> None:
    modules = r"torch\.(?:cuda|xpu|mps|npu|accelerator)\b|get_device_module"
    asked = re.compile(rf"\bis_(?:cuda|xpu|mps)\b|\.cuda\(|{modules}")
    found = {
        str(path.relative_to(ROOT)): asked.findall(path.read_text())
        for folder in ("probe", "cli") for path in sorted((ROOT / folder).rglob("*.py"))
    }
    assert {file for file, places in found.items() if places} == set(MAY_NAME_THEM)


def test_on_a_host_with_several_devices_the_jobs_own_is_asked_about() -> None:
    """A thread of ours begins with the first device as its current one."""

    class Parameter(NamedTuple):
        device: Any

    def index(*devices: str) -> int | None:
        groups = [{"params": [Parameter(torch.device(one)) for one in devices]}]
        seen: Any = SimpleNamespace(expected_leader=lambda: SimpleNamespace(param_groups=groups))
        return Optimizers.device_index(seen)

    assert (index("cuda:3", "cuda:3"), index("xpu:1"), index("cpu"), index()) == (3, 1, None, None)
    asked: list[Any] = []
    module = SimpleNamespace(
        is_available=lambda: True, current_device=lambda: 0,
        memory_stats=lambda *index: asked.append(index) or {},
        get_device_properties=lambda index: SimpleNamespace(total_memory=index * 1000),
    )
    device = Accelerator(torch, "cuda", module)
    assert (device.memory(3), device.memory(), device.total_bytes(3), asked) == (None, None, 3000, [(3,), ()])


def test_a_torch_that_raises_without_an_accelerator_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch 2.6 does."""

    def none() -> Any:
        raise RuntimeError("Cannot access accelerator device when none is available.")

    monkeypatch.setattr(accelerator, "_found", [])
    monkeypatch.setattr(accelerator, "_asks", [])
    monkeypatch.setattr(torch.accelerator, "current_accelerator", none)
    monkeypatch.setattr(torch._C, "_get_accelerator", lambda: torch.device("cpu"))
    assert [accelerator.current(), accelerator.current()] == [None, None]
    assert accelerator.kinds() == ("cpu",) and not accelerator.capturing()


def test_states_of_devices_are_restored_where_they_are_from_and_nowhere_else() -> None:
    old, new = {"cuda": ["a"]}, {"devices": {"xpu": ["b"]}}
    assert (device_states(old), device_states(new), device_states({})) == (old, {"xpu": ["b"]}, {"cuda": []})
    before = random_states()
    restore_random_states({**before, "devices": {"elsewhere": [torch.zeros(8, dtype=torch.uint8)]}})
    assert random_states()["torch"].equal(before["torch"])
