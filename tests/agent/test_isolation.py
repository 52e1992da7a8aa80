"""A bug of ours is ours: the instrument is switched off with one line on stderr, and the training goes on."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest

from agent.asking import ask, query, recorded, tell, wait_for_names, without_times
from agent.nursery import Forked, Nursery, forked
from harness import NO_SERVER, PATIENCE_S, Place
from probe.base.isolation import PATIENCE

STEPS = 100


class Bug(NamedTuple):
    """A method that always raises, the name it fails under, and whether steps and losses are still right."""

    path: str
    name: str
    steps: bool = True
    losses: bool = True
    also: tuple[str, ...] = ()
    """Instruments that use the broken one."""


BUGS = (
    Bug("loop.optimizers.Optimizers._before", "optimizers"),
    Bug("loop.optimizers.Optimizers._after", "optimizers", steps=False, losses=False),
    Bug("loop.losses.Losses._end", "losses", losses=False),
    Bug("loop.data.Data._arrived", "data"),
    Bug("loop.forward.Forward._first_call", "forward"),
    Bug("modules.module_times.Modules._before_call", "modules"),
    Bug("modules.module_times.Modules._after_backward", "modules"),
    Bug("modules.module_names.ModuleNames.of", "modules", also=("model inputs",)),
    Bug("governor.Governor.adjust", "governor"),
    Bug("facts.memory.Memory.sample", "memory"),
    Bug("loop.optimizers.Optimizers.install", "optimizers", steps=False, losses=False),
)
RARELY = (
    Bug("loop.losses.Losses._begin", "losses", losses=False),
    Bug("loop.data.Data._begin", "data"),
    Bug("loop.data.Data._started", "data"),
    Bug("modules.module_times.Modules._after_call", "modules"),
    Bug("modules.module_times.Modules._start", "modules"),
    Bug("modules.module_names.ModuleNames.collect", "names"),
    Bug("modules.module_times.Modules.install", "modules"),
)
"""In the campaign: methods that are called as one above is."""


@pytest.mark.parametrize(
    "bugs", [BUGS, pytest.param(RARELY, marks=pytest.mark.campaign)], ids=("most", "others")
)
def test_a_bug_in_an_instrument_costs_that_instrument_only(
    nursery: Nursery, place: Place, bugs: tuple[Bug, ...]
) -> None:
    command = ("broken_instrument", "--steps", str(STEPS))
    quick = {**NO_SERVER, "PROBE_MODULES_INTERVAL": "4", "PROBE_MEMORY_INTERVAL_S": "0.02"}
    with forked(nursery, place, command, watched=False) as [plain]:
        tell(plain)
        expected = without_times(plain.result())
    pids = []
    for bug in bugs:
        broken = (*command, "--break", f"probe.job.instruments.{bug.path}", "--hold")
        with forked(nursery, place, broken, watched=False, **quick) as [job]:
            job.wait_for("READY")
            if bug.name == "modules":
                wait_for_names(place, job.pid)
            tell(job)
            assert (bug.path, without_times(job.result())) == (bug.path, expected)
            check_what_was_said(place, bug, job)
            pids.append(job.pid)
    everything = place.directory / "recordings"
    steps = dict(query(place, everything, "SELECT pid, count(*) FROM python.steps GROUP BY pid"))
    losses = dict(query(place, everything, "SELECT pid, count(*) FROM python.losses GROUP BY pid"))
    for bug, pid in zip(bugs, pids, strict=True):
        assert (bug.path, steps.get(pid)) == (bug.path, STEPS) or not bug.steps
        assert (bug.path, losses.get(pid)) == (bug.path, STEPS) or not bug.losses
    assert len(place.failures()) >= len(bugs), "so every other test notices a hook that fails"
    place.failures_expected = True


def check_what_was_said(place: Place, bug: Bug, job: Forked) -> None:
    """The failures of the instrument alone, and one line once it is switched off."""
    deadline = time.monotonic() + PATIENCE_S
    while not (failures := ask(place, job.pid, "GET", "/v1/health")["failures"]):
        assert time.monotonic() < deadline, bug.path
        time.sleep(0.01)
    assert (bug.path, set(failures) - {*bug.also}) == (bug.path, {bug.name})
    assert (bug.path, job.let_go()) == (bug.path, 0)
    others = tuple(f"probe: {name} failed" for name in bug.also)
    said = [line for line in job.errors().splitlines() if not line.startswith(others)]
    if failures[bug.name] >= PATIENCE:
        assert (bug.path, len(said)) == (bug.path, 1)
    for line in said:
        assert line.startswith(f"probe: {bug.name} failed {PATIENCE} times and ") and line.endswith("of ours")


def test_a_bug_in_the_start_is_a_line_and_no_recording(nursery: Nursery, place: Place) -> None:
    broken = "probe.job.instruments.core.recorder.Recorder.expect_forward"
    command = ("broken_instrument", "--steps", str(STEPS))
    with forked(nursery, place, command, (*command, "--break", broken), watched=False) as [plain, job]:
        for one in (plain, job):
            tell(one)
        assert without_times(job.result()) == without_times(plain.result())
        assert job.wait() == 0
        assert job.errors() == "probe: not recording: ValueError: a bug in expect_forward of ours\n"
    assert recorded(place) == [] and place.ring_files() == []
