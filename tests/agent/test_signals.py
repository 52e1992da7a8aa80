"""Signals are the job's: handlers stay, every one arrives, and none of ours interrupts a call of the job."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

from agent.asking import evaluate, without_times
from agent.nursery import Forked
from harness import NO_SERVER, PATIENCE_S, PROGRAMS, ROOT, Place


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
