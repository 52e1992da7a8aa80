"""What the rings of real jobs say about how training gets on."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.asking import query
from agent.nursery import Forked
from diagnose.hung import recorded_of, until
from harness import Place
from probe.base import clock
from probe.diagnose.process import progress
from probe.diagnose.process.progress import History, Progress
from probe.recording.reader import Tail

HOUR_NS = 3600 * 10**9


def read(history: History, now_ns: int | None = None) -> Progress:
    """How training gets on; the recording is there."""
    found = history.read(now_ns)
    assert found is not None
    return found


def test_progress_agrees_with_the_tables(place: Place, fork: Callable[..., Forked]) -> None:
    job = fork("accumulation_amp_schedule", "--steps", "40", "--hold")
    result = job.result()
    found = read(History(recorded_of(place, job.pid).meta))
    [[steps, step, usual_s, longest_s]] = query(
        place, job.pid,
        "SELECT count(*), max(step), (SELECT median(wall_s) FROM (SELECT wall_s FROM python.steps "
        "WHERE NOT sampled ORDER BY step DESC LIMIT 64)), max(wall_s) FILTER (step >= 3) FROM python.steps",
    )
    assert (found.steps, found.step) == (steps, step) and steps == result["steps"]
    assert found.usual_step_s == pytest.approx(usual_s)
    assert found.longest_pause_s == pytest.approx(longest_s)
    assert found.pending_s is None and found.phase in ("other", None)  # not every step is timed


def test_before_three_steps_there_is_no_usual_step(place: Place, fork: Callable[..., Forked]) -> None:
    job = fork("stall_pauses", "--kind", "warm-up", "--length", "1", "--steps", "5", "--hold")
    history = History(until(lambda: _recorded(place, job.pid), "a recording").meta)
    job.wait_for("PAUSE")
    found = read(history)
    assert found.usual_step_s is None and found.longest_pause_s is None and found.steps < 3
    job.wait_for("RESULT")
    assert read(history).usual_step_s is not None


def test_a_batch_that_does_not_come_is_pending(place: Place, fork: Callable[..., Forked]) -> None:
    job = fork("stall_workers", "--way", "fifo")
    job.wait_for("HANGING")
    history = History(recorded_of(place, job.pid).meta)
    found = until(
        lambda: (now := read(history)).pending_s is not None and now.quiet_s == now.pending_s and now,
        "a pending batch, and nothing since",
    )
    assert found
    assert (found.phase, found.pending_loader) == ("data", "Samples#0")


def test_a_batch_whose_loader_has_no_name_yet_is_named_once_its_string_is_there(
    place: Place, fork: Callable[..., Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row may be read before the strings that it names: no row comes after it to have it read again."""
    job = fork("stall_workers", "--way", "fifo")
    job.wait_for("HANGING")
    meta = recorded_of(place, job.pid).meta
    until(lambda: read(History(meta)).pending_loader, "a pending batch")
    history = History(meta)
    with monkeypatch.context() as before:
        before.setattr(progress, "read_strings", lambda *given: [None])
        assert read(history).pending_loader is None
    assert read(history).pending_loader == "Samples#0"


@pytest.mark.parametrize("apart_ns", [HOUR_NS, -HOUR_NS])
def test_ages_are_right_when_the_clock_was_set_between_two_starts(
    place: Place, fork: Callable[..., Forked], apart_ns: int
) -> None:
    """Our clock is an hour ahead of the job's, or behind: known after one more reading with new rows."""
    job = fork("stall_hangs", "--way", "none")
    job.wait_for("READY")
    history = History(recorded_of(place, job.pid).meta)

    def now() -> Progress:
        return read(history, clock.wall_ns() + apart_ns)

    first = until(lambda: (found := now()).steps > 0 and found, "a reading with rows")
    until(lambda: now().steps > first.steps, "more steps")
    until(lambda: (now().last_step_s or HOUR_NS) < 60.0, "the age of the last step")
    job.signal(signal.SIGSTOP)
    stopped = now().last_step_s
    assert stopped is not None
    until(lambda: (now().last_step_s or 0.0) > stopped + 0.5, "the age of a step that is the last")


def test_time_in_which_the_reader_had_no_core_is_no_quiet_of_the_job(
    place: Place, fork: Callable[..., Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fork("stall_hangs", "--way", "none")
    job.wait_for("READY")
    history = History(recorded_of(place, job.pid).meta)
    job.signal(signal.SIGSTOP)  # no row comes any more
    now_ns, read_rows = clock.wall_ns(), Tail.read
    times = {"now": now_ns}

    def late(tail: Tail) -> bool:
        different = read_rows(tail)
        times["now"] = now_ns + 30 * 10**9  # after the rows were read, before the next look at the clock
        return different

    monkeypatch.setattr(clock, "wall_ns", lambda: times["now"])
    monkeypatch.setattr(Tail, "read", late)
    found = read(history)
    assert found.quiet_s is not None and found.quiet_s < 30.0


def test_a_recording_that_is_damaged_or_gone_says_nothing(place: Place, fork: Callable[..., Forked]) -> None:
    job = fork("stall_hangs", "--way", "none")
    job.wait_for("READY")
    history = History(recorded_of(place, job.pid).meta)
    read(history)
    rings = Path(history.meta.rings)
    (rings / "python.pulse.ring").write_bytes(b"PROBRING")
    assert history.read() is None
    (rings / "python.steps.ring").unlink()
    assert history.read() is None


def _recorded(place: Place, pid: int) -> object:
    try:
        return recorded_of(place, pid)
    except StopIteration:
        return None
