"""When half of the evidence is enough, so that nobody waits for the rest: values of real runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diagnose.test_state import MAIN, PID, evidence, progress, thread, working
from probe.diagnose.process.evidence import Evidence, Frame, Thread, Worker
from probe.diagnose.process.kernel_waits import Rested
from probe.diagnose.process.settled import settled
from probe.outside.processes.tasks import Task

LOCK = Frame("run", "/home/u/train.py", 9, True, "with lock:")
OTHER = Thread(
    PID + 1, "loader", frames=(MAIN,), state="sleeping", call="futex", cpu_ratio=0.0, run_delay_ratio=0.0,
    switches_per_s=0.0, changed=False, held_gil=False,
)


def seen(training: Thread, still_s: float = 0.0, **changes: object) -> Evidence:
    """Evidence of the first fifth of a second."""
    facts = {"samples": 2, "window_s": 0.2, "still_s": still_s, "watched_s": max(0.2, still_s), **changes}
    return evidence(training, **facts)


@pytest.mark.parametrize(("changes", "enough"), [
    ({}, True),
    ({"progress": progress(30.0)}, False),
    ({"progress": progress(0.05, usual_step_s=None)}, False),
    ({"state": "stopped"}, False),
    ({"throttled_ratio": 0.3}, False),
    ({"progress": None}, False),
])
def test_where_steps_end_as_usual_the_stacks_say_nothing_more(
    changes: dict[str, object], enough: bool
) -> None:
    assert settled(seen(working(), **{"progress": progress(0.05), **changes})) is enough


def test_where_a_core_is_lacking_the_whole_window_says_how_much() -> None:
    hungry = replace(working(), run_delay_ratio=0.3)
    assert not settled(seen(hungry, progress=progress(0.05)))


def test_who_has_slept_for_as_long_as_the_window_sleeps_on() -> None:
    assert settled(seen(thread(), still_s=9.2)) and not settled(seen(thread(), still_s=0.2))
    assert not settled(seen(replace(thread(), switches_per_s=5.0), still_s=9.2))
    assert not settled(seen(thread(), still_s=9.2, samples=1)), "one stack cannot tell whether it moves"


@pytest.mark.parametrize(("other", "enough"), [
    (OTHER, True),
    (replace(OTHER, changed=True), False),
    (replace(OTHER, held_gil=True), False),
    (replace(OTHER, frames=(LOCK,)), False),
])
def test_another_thread_that_may_be_the_cause_is_watched_for_longer(other: Thread, enough: bool) -> None:
    assert settled(seen(thread(), still_s=9.2, threads=(thread(), other))) is enough


@pytest.mark.parametrize("changes", [
    {"cpu_ratio": 0.5}, {"workers": (Worker(PID + 2, state="sleeping", cpu_ratio=0.0),)},
])
def test_work_and_workers_are_watched_for_longer(changes: dict[str, object]) -> None:
    assert not settled(seen(thread(), still_s=9.2, **changes))


def test_who_waits_for_input_is_no_stall_and_needs_no_past() -> None:
    reads = thread(call="read", waits_on="standard input")
    assert settled(seen(reads, still_s=0.2))


def test_a_thread_that_has_run_since_the_last_look_has_not_slept_since_then() -> None:
    now = Task(PID, PID, "python", "sleeping", None, None, 0, 0, 40, 2, 0, 0)
    known = Rested(9.0, 10.0, 0.5, 42)
    assert known.as_of(now) == known
    for changed in (now._replace(voluntary=41), None):
        assert known.as_of(changed) == known._replace(still_s=0.0)
    assert known._replace(switches=None).as_of(now).still_s == 0.0, "it ran at the last look"
