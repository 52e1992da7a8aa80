"""Signals are the job's: handlers stay, every one arrives, and none of ours interrupts a call of the job."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from agent.asking import evaluate, query, without_times
from agent.nursery import Forked
from harness import NO_SERVER, PATIENCE_S, PROGRAMS, ROOT, Place
from probe.base.isolation import Isolation


def test_the_signal_handlers_of_the_job_are_untouched(fork: Callable[..., Forked], place: Place) -> None:
    command = ("handles_signals", "--steps", "40", "--hold")
    plain, watched = fork(*command, watched=False), fork(*command)
    result = watched.result()
    assert without_times(result) == without_times(plain.result())
    assert result["caught"] == dict.fromkeys(("SIGALRM", "SIGPROF", "SIGTERM", "SIGUSR1", "SIGUSR2"), 8)
    evaluate(place, watched.pid, "print('asked')")
    seen = evaluate(place, watched.pid, "import json\nprint(json.dumps(table()))", when="now")
    assert json.loads(seen["output"]).items() <= result["handlers"][2].items(), "asking changed something"
    assert (watched.let_go(), watched.errors()) == (0, "")


def test_starting_the_server_interrupts_no_system_call_of_the_job(place: Place) -> None:
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / "writes_to_a_slow_reader.py"), str(place.directory)],
        env=place.environ(PYTHONPATH=str(ROOT), **NO_SERVER),
        capture_output=True, text=True, timeout=PATIENCE_S, check=True,
    )
    whole, cut = map(int, done.stdout.split())
    assert (whole > 0, cut) == (True, 0)


def test_what_a_signals_handler_raises_inside_a_hook_reaches_the_training(
    fork: Callable[..., Forked], place: Place
) -> None:
    job = fork("raises_from_signals", "--hold")
    result = job.result()
    assert result["caught"] == result["raised"] >= 1000
    [[steps, losses, norms]] = query(
        place, job.pid,
        "SELECT count(*), count(loss), count(grad_norm) FROM "
        "(SELECT * FROM python.steps ORDER BY step DESC LIMIT 40)",
    )
    assert (steps, losses, norms) == (40, 40, 40), "a hook stands still since"
    assert job.errors() == ""
    assert job.let_go() == 0


def test_a_handler_is_recognized_without_being_asked_for_anything() -> None:
    class Handler:
        def __getattribute__(self, name: str) -> Any:
            raise ConnectionError(name)

        def __call__(self, number: int, frame: object) -> None:
            raise TimeoutError

    def hook() -> None:
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, Handler())
    try:
        for traced in (True, False):
            isolation = Isolation()
            with pytest.raises(TimeoutError):
                isolation.guard("hook", hook, traced=traced)()
            assert isolation.failures == {}
    finally:
        signal.signal(signal.SIGUSR1, before)
