"""What is concluded from what is known about an end: as much as that says, and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from probe.recording.crash import parse_crash, read_crash, user_frame
from probe.recording.journal import Journal
from probe.server.recordings import exit_report
from probe.server.recordings.exit_report import OwnReport, classify_exit

RAISED = {"type": "ValueError", "message": "bad\ncaused by KeyError: 'x'", "step": 7}
MAIN = {**RAISED, "main": True, "training": True, "thread_name": "MainThread"}
WORKER = {**RAISED, "main": False, "training": True, "thread_name": "trainer"}
BREAK = {"type": "KeyboardInterrupt", "message": "", "step": 7, "main": True}
EXIT, STOP, LEFT = {"event": "exit"}, {"event": "stop"}, {"event": "os._exit"}


@pytest.mark.parametrize(
    ("left", "exception", "status", "more", "expected"),
    [
        (EXIT, None, 0, {}, ("finished", "finished")),
        (EXIT, None, None, {}, ("finished", "finished, exit status not seen")),
        (STOP, None, None, {}, ("finished", "recording stopped")),
        (STOP, MAIN, -9, {}, ("finished", "recording stopped")),
        (EXIT, None, 3, {}, ("failed", "exit status 3")),
        (EXIT, MAIN, 1, {}, ("failed", "exception ValueError: bad")),
        (EXIT, MAIN, None, {}, ("failed", "exception ValueError: bad")),
        (EXIT, MAIN, 0, {}, ("finished", "finished")),  # a prompt that went on after it
        (EXIT, MAIN, 3, {}, ("failed", "exit status 3")),
        (EXIT, BREAK, -2, {}, ("failed", "interrupted")),
        (None, None, -2, {}, ("dead", "SIGINT")),
        (EXIT, MAIN, -6, {}, ("dead", "SIGABRT")),  # a library, after the script
        (None, None, -9, {}, ("dead", "SIGKILL")),
        (None, None, -9, {"out_of_memory": True}, ("dead", "killed by the kernel: out of memory")),
        (None, None, None, {"out_of_memory": True}, ("dead", "killed by the kernel: out of memory")),
        (None, None, -15, {"out_of_memory": True}, ("dead", "SIGTERM")),
        (None, None, -34, {}, ("dead", "SIGRTMIN")),
        (None, None, -35, {}, ("dead", "signal 35")),
        (None, None, None, {}, ("dead", "unknown: no server saw its end")),
        (None, None, None, {"crash": "SIGSEGV"}, ("dead", "SIGSEGV")),
        (None, None, -9, {"crash": "SIGSEGV"}, ("dead", "SIGKILL")),  # it handled the first
        ({**LEFT, "status": 7}, None, None, {}, ("failed", "os._exit(7)")),
        ({**LEFT, "status": 0}, None, 0, {}, ("finished", "os._exit(0)")),
        ({**LEFT, "status": 1}, MAIN, 1, {}, ("failed", "exception ValueError: bad, then os._exit(1)")),
        (EXIT, WORKER, 0, {"last_step": 6}, ("failed", "exception ValueError: bad in thread trainer")),
        (EXIT, WORKER, 0, {"last_step": 9}, ("finished", "finished")),  # training went on elsewhere
    ],
)
def test_an_end_is_judged_by_what_is_known(
    left: dict[str, Any] | None, exception: dict[str, Any] | None, status: int | None,
    more: dict[str, Any], expected: tuple[str, str],
) -> None:
    assert classify_exit(OwnReport(left, exception), status, **more) == expected


def test_the_kernels_code_is_a_status_or_a_signal() -> None:
    codes = (0, 3 << 8, 255 << 8, 9, 11 | 0x80)
    assert [exit_report.exit_code(code) for code in codes] == [0, 3, 255, -9, -11]


CRASH = """Fatal Python error: Segmentation fault

Thread 0x00007fb53a0786c0 [worker one] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 982 in run
  File "/home/u/a \\"b\\".py", line ??? in <lambda>

Current thread 0x00007fb53abefb80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/u/train.py", line 12 in Step.run

Current thread's C stack trace (most recent call first):
  Binary file "/usr/bin/python", at _Py_DumpStack+0x35

Extension modules: numpy._core (total: 1)
"""


def test_the_stacks_of_a_crash_are_read_whole() -> None:
    crash = parse_crash(CRASH)
    assert crash is not None and crash.signal == "SIGSEGV"
    worker, current = crash.threads
    assert (worker.name, worker.current, len(worker.frames)) == ("worker one", False, 2)
    assert worker.frames[1] == {
        "depth": 1, "func": "<lambda>", "file": '/home/u/a \\"b\\".py', "lineno": None,
    }
    assert current.current and [frame["func"] for frame in current.frames] == ["string_at", "Step.run"]
    assert user_frame(current) == current.frames[1]


@pytest.mark.parametrize("cut", range(0, len(CRASH), 40))
def test_a_crash_that_was_cut_short_gives_what_is_there(cut: int) -> None:
    crash = parse_crash(CRASH[:cut])
    assert crash is None or len(crash.threads) <= 2


def test_what_is_no_crash_is_none_and_the_last_of_two_counts(tmp_path: Path) -> None:
    assert parse_crash("") is None and parse_crash("hello\n  File") is None
    assert read_crash(tmp_path / "missing") is None
    twice = parse_crash("Fatal Python error: Aborted\n\n" + CRASH)
    assert twice is not None and twice.signal == "SIGSEGV" and len(twice.threads) == 2
    (tmp_path / "crash.txt").write_bytes(b"\xff\xfe" + CRASH.encode())
    found = read_crash(tmp_path / "crash.txt")
    assert found is None  # the first line is damaged: nothing says what it was


def test_a_start_that_is_noted_late_is_found_when_it_is_asked_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.bin")
    assert exit_report.began_midway(tmp_path) is None  # the agent's thread had no core yet
    journal.append({"event": "start", "t_ns": 1, "midway": True})
    assert exit_report.began_midway(tmp_path) is True
    journal.close()
