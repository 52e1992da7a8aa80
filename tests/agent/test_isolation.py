"""A bug of ours is ours: the instrument is switched off with one line on stderr, and the training goes on."""

from __future__ import annotations

from typing import NamedTuple

from agent.asking import ask, query, recorded, states, without_times
from agent.nursery import Forked, Nursery, forked
from harness import Place
from probe.agent.isolation import PATIENCE

STEPS = 100


class Bug(NamedTuple):
    """A method that always raises, the name it fails under, and whether steps and losses are still right."""

    path: str
    name: str
    steps: bool = True
    losses: bool = True


BUGS = (
    Bug("optimizers.Optimizers._before", "optimizers"),
    Bug("optimizers.Optimizers._after", "optimizers", steps=False, losses=False),
    Bug("losses.Losses._begin", "losses", losses=False),
    Bug("losses.Losses._end", "losses", losses=False),
    Bug("data.Data._begin", "data"),
    Bug("data.Data._arrived", "data"),
    Bug("data.Data._started", "data"),
    Bug("forward.Forward._first_call", "forward"),
    Bug("modules.Modules._before_call", "modules"),
    Bug("modules.Modules._after_call", "modules"),
    Bug("modules.Modules._start", "modules"),
    Bug("modules.Modules._after_backward", "modules"),
    Bug("module_names.ModuleNames.collect", "names"),
    Bug("module_names.ModuleNames.of", "modules"),
    Bug("governor.Governor.look", "governor"),
    Bug("memory.Memory.sample", "memory"),
    Bug("optimizers.Optimizers.install", "optimizers", steps=False, losses=False),
    Bug("modules.Modules.install", "modules"),
)


def test_a_bug_in_an_instrument_costs_that_instrument_only(nursery: Nursery, place: Place) -> None:
    states(place)
    command = ("broken_instrument", "--steps", str(STEPS))
    commands = [(*command, "--break", f"probe.instruments.{bug.path}", "--hold") for bug in BUGS]
    quick = {"PROBE_MODULES_INTERVAL": "4", "PROBE_MEMORY_INTERVAL_S": "0.02"}
    with (
        forked(nursery, place, command, watched=False) as [plain],
        forked(nursery, place, *commands, watched=False, **quick) as started,
    ):
        expected = without_times(plain.result())
        for bug, job in zip(BUGS, started, strict=True):
            assert (bug.path, without_times(job.result())) == (bug.path, expected)
            check(place, bug, job)


def check(place: Place, bug: Bug, job: Forked) -> None:
    failures = ask(place, job.pid, "GET", "/v1/health")["failures"]
    assert (bug.path, list(failures)) == (bug.path, [bug.name])
    counts = "SELECT (SELECT count(*) FROM python.steps), (SELECT count(*) FROM python.losses)"
    [[steps, losses]] = query(place, job.pid, counts)
    assert (bug.path, steps) == (bug.path, STEPS) or not bug.steps
    assert (bug.path, losses) == (bug.path, STEPS) or not bug.losses
    assert (bug.path, job.let_go()) == (bug.path, 0)
    expected = [] if failures[bug.name] < PATIENCE else [f"probe: {bug.name} failed {PATIENCE} times and "]
    said = job.errors().splitlines()
    assert (bug.path, len(said)) == (bug.path, len(expected))
    for line, start in zip(said, expected, strict=True):
        assert line.startswith(start) and line.endswith("of ours")


def test_a_bug_in_the_start_is_a_line_and_no_recording(nursery: Nursery, place: Place) -> None:
    broken = "probe.instruments.recorder.Recorder.expect_forward"
    command = ("broken_instrument", "--steps", str(STEPS))
    with forked(nursery, place, command, (*command, "--break", broken), watched=False) as [plain, job]:
        assert without_times(job.result()) == without_times(plain.result())
        assert job.wait() == 0
        assert job.errors() == "probe: not recording: ValueError: a bug in expect_forward of ours\n"
    assert recorded(place) == [] and place.ring_files() == []
