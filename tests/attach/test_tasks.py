"""What the kernel says of threads and descendants, held against processes that know better."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness import PATIENCE_S
from probe.outside.processes import tasks
from probe.outside.stacks import native
from probe.recording.process import STATES


def test_every_thread_of_this_process_is_there_with_its_facts() -> None:
    begin, end = threading.Event(), threading.Event()
    ids: list[int] = []

    def waits() -> None:
        ids.append(threading.get_native_id())
        begin.set()
        end.wait(PATIENCE_S)

    thread = threading.Thread(target=waits)
    thread.start()
    try:
        assert begin.wait(PATIENCE_S)
        found = tasks.tasks(os.getpid())
        assert {task.tid for task in found} >= {os.getpid(), ids[0]}
        assert {task.tid for task in found} == {int(name) for name in os.listdir("/proc/self/task")}
        main = found[0]
        assert main.tid == os.getpid(), "the main thread comes first"
        assert main.state == "running" and main.wchan is None
        assert main.name == Path("/proc/self/comm").read_text().strip()
        assert main.run_ns > 0 and main.ticks == main.user_ticks + main.system_ticks
        for task in found:
            assert task.state in STATES.values() and task.inner_tid == task.tid
            assert task.voluntary is not None and task.involuntary is not None
    finally:
        end.set()
        thread.join()


def test_cpu_time_grows_with_work_and_not_with_sleep() -> None:
    def used(pid: int) -> int:
        return tasks.tasks(pid)[0].run_ns

    before = used(os.getpid())
    deadline = time.monotonic() + 0.05
    while time.monotonic() < deadline:
        pass
    assert used(os.getpid()) - before > 5_000_000
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            # Before it sleeps, it waits for the disk that it is loaded from. State and wchan are two reads.
            while "nanosleep" not in ((asleep := tasks.tasks(child.pid)[0]).wchan or "") or (
                asleep.state != "sleeping"
            ):
                os.sched_yield()
            assert asleep.syscall is not None and asleep.name == "sleep"
            assert used(child.pid) == asleep.run_ns
        finally:
            child.kill()


def test_a_name_with_brackets_and_spaces_is_read_right() -> None:
    code = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) S (b c', 0, 0, 0);"
        "print('named', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        (task,) = tasks.tasks(child.pid)
        assert task.name == tasks.name_of(child.pid) == "a) S (b c"
        assert tasks.parent_of(child.pid) == os.getpid()
        child.communicate()


def test_descendants_come_after_their_parents() -> None:
    shell = "sleep 600 & echo $!; (sleep 600 & echo $!; wait) & echo $!; wait"
    with subprocess.Popen(
        ["sh", "-c", shell], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as child:
        try:
            assert child.stdout is not None
            below = {int(child.stdout.readline()) for _ in range(3)}
            found = tasks.children(child.pid)
            assert set(found) == below and len(found) == 3
            seen = [child.pid]
            for pid in found:
                assert tasks.parent_of(pid) in seen
                seen.append(pid)
            assert set(tasks.children(os.getpid())) >= {child.pid, *below}
        finally:
            os.killpg(child.pid, 9)


def test_what_runs_python_is_told_from_what_does_not() -> None:
    assert tasks.is_python(os.getpid()) is True
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            while tasks.command(child.pid) != "sleep 600":  # its name comes a moment before its words
                os.sched_yield()
            assert tasks.is_python(child.pid) is False
            assert tasks.is_python(child.pid, by_name_only=True) is None
        finally:
            child.kill()


def test_of_a_process_that_is_gone_there_is_nothing() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert tasks.tasks(child.pid) == [] and tasks.children(child.pid) == []
    assert tasks.parent_of(child.pid) is None and tasks.name_of(child.pid) is None
    assert tasks.command(child.pid) is None and tasks.is_python(child.pid) is None
    assert tasks.tracer(child.pid) == 0 and not tasks.stop_pending(child.pid)


def test_a_thread_that_waits_for_a_disk_again_and_again_is_not_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is in state D at both looks, and did something in between."""
    pid = os.getpid()
    waits = tasks.tasks(pid)[0]._replace(state="uninterruptible", voluntary=10)
    hangs = waits._replace(tid=pid + 1, voluntary=20)
    ends = waits._replace(tid=pid + 2, voluntary=30)
    first = [waits, hangs, ends]
    later = [waits._replace(voluntary=11), hangs, ends._replace(state="sleeping")]
    looks = [first, later, later]
    monkeypatch.setattr(tasks, "tasks", lambda _pid: looks.pop(0))
    assert tasks.stuck(pid) == [hangs]
    assert tasks.stuck(pid, first) == [hangs]


@pytest.mark.parametrize("stays", [False, True])
def test_native_frames_are_refused_only_where_a_thread_is_stuck(
    monkeypatch: pytest.MonkeyPatch, stays: bool
) -> None:
    """So are attaching with gdb and the command line of a child: they ask the same function."""
    pid = os.getpid()
    waits = tasks.tasks(pid)[0]._replace(state="uninterruptible")
    now = waits if stays else waits._replace(state="running")
    monkeypatch.setattr(tasks, "tasks", lambda _pid: [now])
    assert (native._why_not(pid, {pid: waits}) is not None) is stays


def sample(
    *, state: str = "running", switches: int = 7, run_ns: int = 0, delay_ns: int | None = 0
) -> tasks.Task:
    return tasks.Task(1, 1, "train", state, None, None, 0, 0, switches, 0, run_ns, delay_ns)


def test_a_thread_that_never_left_the_run_queue_waited_whenever_it_did_not_run() -> None:
    first, last = sample(), sample(run_ns=100_000_000)  # the kernel adds the wait when it ends: not yet
    assert tasks.run_delay_ratio(first, last, 0.5) == pytest.approx(0.8)


def test_a_wait_for_a_cpu_is_the_kernels_count_where_the_thread_left_the_queue() -> None:
    first, last = sample(), sample(switches=9, run_ns=100_000_000, delay_ns=200_000_000)
    assert tasks.run_delay_ratio(first, last, 0.5) == pytest.approx(0.4)
    asleep = sample(state="sleeping", delay_ns=0)
    assert tasks.run_delay_ratio(asleep, asleep, 0.5) == 0.0
    assert tasks.run_delay_ratio(sample(delay_ns=None), sample(switches=9, delay_ns=None), 0.5) is None
