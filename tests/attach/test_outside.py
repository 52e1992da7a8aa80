"""Reading a process from outside: what every kind of hang looks like, and that the process is unharmed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from attach.reading import (
    OLDEST_AND_NEWEST,
    PYTHONS,
    Start,
    functions,
    in_function,
    innermost,
    line_of,
    named,
    set_free,
    states,
    stuck_in_the_kernel,
    until,
)
from harness import PATIENCE_S, PROGRAMS, ROOT, wait_for_end
from probe.base.errors import EndpointUnknown, ProbeError, ProcessDead, StacksUnavailable
from probe.outside.processes import tasks
from probe.outside.stacks import outside_view, pyspy


def test_a_sleeping_process_shows_where_it_sleeps(bare: Start) -> None:
    job = bare("outside_states", "sleeps")
    line = line_of("outside_states", "def sleeps()") + 2

    def asleep(found: dict[str, Any]) -> bool:
        thread = found["threads"][0]
        return thread["state"] == "sleeping" and innermost(thread)["lineno"] == line

    found = until(asleep, job.pid)
    (thread,) = found["threads"]
    assert found["source"] == "outside" and found["tool"] == "py-spy" and found["pid"] == job.pid
    assert thread["training"] and thread["thread_id"] == thread["process_id"] == job.pid
    assert thread["wchan"] and thread["owns_gil"] is False
    assert thread["waits_for_gil"] is None and thread["moving"] is None
    frame = thread["frames"][0]
    assert frame["is_user"] and frame["depth"] == 0 and frame["frame_type"] == "Python"
    assert frame["file"] == str(PROGRAMS / "outside_states.py")


def test_a_gil_held_in_c_is_seen_with_its_owner(bare: Start) -> None:
    job = bare("outside_states", "holds_the_gil")
    (thread,) = until(in_function("holds_the_gil"), job.pid)["threads"]
    assert thread["owns_gil"] is True
    found = outside_view.read_stacks(job.pid, native=True)
    assert any("was stopped for" in note for note in found["notes"])
    (thread,) = found["threads"]
    assert thread["owns_gil"] is True and "usleep" in functions(thread)
    assert functions(thread).index("usleep") < functions(thread).index("holds_the_gil")


def test_a_thread_that_holds_the_gil_is_shown_beside_the_training_thread(bare: Start) -> None:
    job = bare("outside_states", "another_thread_holds_the_gil")

    def waits(found: dict[str, Any]) -> bool:
        return any(thread["waits_for_gil"] for thread in found["threads"])

    found = until(waits, job.pid, native=True)
    training, holder = found["threads"]
    assert training["training"] and training["waits_for_gil"] and not training["owns_gil"]
    assert holder["thread_name"] == "holder" and holder["owns_gil"] and not holder["waits_for_gil"]
    assert innermost(holder)["func"] == "holds_the_gil"


def test_a_deadlock_shows_both_threads_at_the_lock(bare: Start) -> None:
    job = bare("outside_states", "deadlocks")
    line = line_of("outside_states", "with other:")

    def deadlocked(found: dict[str, Any]) -> bool:
        at = [innermost(thread)["lineno"] for thread in found["threads"] if thread["frames"]]
        return at.count(line) == 2

    found = until(deadlocked, job.pid, all_threads=True)
    assert found["threads"][0]["training"] and named(found, "crosses")["frames"]
    alone = outside_view.read_stacks(job.pid)
    assert len(alone["threads"]) == 1 and any("another thread" in note for note in alone["notes"])


@pytest.mark.parametrize("wanted", [{}, {"native": True, "all_threads": True}])
def test_a_stopped_process_is_read_and_stays_stopped(bare: Start, wanted: dict[str, Any]) -> None:
    job = bare("outside_states", "sleeps")
    until(in_function("sleeps"), job.pid)
    job.signal(signal.SIGSTOP)
    while states(job.pid) != {"stopped"}:
        os.sched_yield()
    found = outside_view.read_stacks(job.pid, **wanted)
    assert innermost(found["threads"][0])["func"] == "sleeps"
    assert found["threads"][0]["state"] == "stopped"
    assert any("threads stopped" in note for note in found["notes"])
    assert not any("py-spy could not" in note for note in found["notes"]), "stopping it is not even tried"
    assert states(job.pid) == {"stopped"}
    job.signal(signal.SIGCONT)
    while states(job.pid) == {"stopped"}:
        os.sched_yield()
    assert outside_view.read_stacks(job.pid)["threads"][0]["state"] != "stopped"


@pytest.mark.parametrize("wanted", [{}, {"native": True, "all_threads": True}, {"locals": True}])
def test_a_process_stuck_in_the_kernel_is_read_without_touching_it(
    bare: Start, tmp_path: Path, wanted: dict[str, Any]
) -> None:
    job = stuck_in_the_kernel(bare, tmp_path / "pipe")
    found = outside_view.read_stacks(job.pid, workers=True, timeout_s=20.0, **wanted)
    main = found["threads"][0]
    assert main["state"] == "uninterruptible" and main["wchan"] and main["owns_gil"]
    assert innermost(main)["func"] == "is_stuck_in_the_kernel"
    assert any("uninterruptible" in note for note in found["notes"])
    assert any("no native frames" in note for note in found["notes"]) is bool(wanted.get("native"))
    kernel = [frame["func"] for frame in main["frames"] if frame["file"] == "[kernel]"]
    if wanted.get("native") and tasks.kernel_stack(os.getpid(), os.getpid()):  # to root only
        assert main["wchan"] in kernel and functions(main)[: len(kernel)] == kernel
        assert [frame["depth"] for frame in main["frames"]] == list(range(len(main["frames"])))
    else:
        assert not kernel
    assert not any("answer within" in note for note in found["notes"]), "stopping it is not even tried"
    # The child between vfork and exec has its parent's memory, not its parent's threads.
    assert {thread["process_id"] for thread in found["threads"] if thread["frames"]} == {job.pid}
    assert states(job.pid) == {"uninterruptible"} and not tasks.tracer(job.pid)
    set_free(job, tmp_path / "pipe")


def test_a_process_traced_by_another_is_read_all_the_same(bare: Start) -> None:
    job = bare("outside_states", "sleeps")
    until(in_function("sleeps"), job.pid)
    code = (
        "import ctypes, sys; ptrace = ctypes.CDLL(None).ptrace; pid = int(sys.argv[1]);"
        "assert ptrace(0x4206, pid, 0, 0) == 0; print('seized', flush=True); sys.stdin.read()"
    )
    tracer = subprocess.Popen(
        [sys.executable, "-c", code, str(job.pid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert tracer.stdin is not None and tracer.stdout is not None
    try:
        assert tracer.stdout.readline() == b"seized\n"
        found = outside_view.read_stacks(job.pid, native=True)
        assert innermost(found["threads"][0])["func"] == "sleeps" and found["tool"] == "py-spy"
        assert any(f"process {tracer.pid} (python" in note for note in found["notes"])
    finally:
        tracer.stdin.close()
        tracer.wait(PATIENCE_S)
        tracer.stdout.close()


def test_of_64_threads_all_are_seen_by_name(bare: Start) -> None:
    job = bare("outside_states", "has_many_threads")
    everybody = {"MainThread", *(f"person-{number}" for number in range(63))}

    asleep_in = {"has_many_threads", "has_many_threads.<locals>.one_of_many"}

    def asleep(found: dict[str, Any]) -> bool:
        return {innermost(thread)["func"] for thread in found["threads"]} == asleep_in

    for wanted in ({}, {"nonblocking": True}, {"native": True}):
        found = until(asleep, job.pid, all_threads=True, **wanted)
        assert {thread["thread_name"] for thread in found["threads"]} == everybody
        assert {thread["thread_id"] for thread in found["threads"]} == {
            task.tid for task in tasks.tasks(job.pid)
        }


@pytest.mark.parametrize("python", OLDEST_AND_NEWEST, ids=lambda path: path.parts[-3])
def test_every_python_is_read_in_every_way(bare: Start, python: Path) -> None:
    job = bare("outside_states", "another_thread_holds_the_gil", python=str(python))
    for wanted in ({}, {"nonblocking": True}, {"native": True}, {"locals": True}):
        found = until(in_function("holds_the_gil"), job.pid, all_threads=True, **wanted)
        holder = named(found, "holder")
        assert holder["owns_gil"] and holder["thread_id"] in {task.tid for task in tasks.tasks(job.pid)}
        assert found["threads"][0]["thread_id"] == job.pid and found["threads"][0]["training"]
        own = [frame["func"] for frame in holder["frames"] if frame["is_user"]]
        assert own == ["holds_the_gil"], "threading is of the standard library"
        assert found["tool"] == ("pystack" if "native" in wanted else "py-spy"), found["notes"]


def test_there_must_be_a_python_process(bare: Start) -> None:
    child = subprocess.Popen(["sleep", "600"])
    try:
        with pytest.raises(StacksUnavailable, match="is not a Python process"):
            outside_view.read_stacks(child.pid)
        child.kill()
        while tasks.tasks(child.pid)[0].state != "zombie":
            os.sched_yield()
        with pytest.raises(ProcessDead):
            outside_view.read_stacks(child.pid)
    finally:
        child.kill()
        child.wait()
    with pytest.raises(EndpointUnknown):
        outside_view.read_stacks(child.pid)
    assert tasks.tasks(child.pid) == []


def test_secrets_in_variables_are_not_shown(bare: Start) -> None:
    job = bare("outside_states", "keeps_secrets")
    for wanted in ({}, {"native": True}):
        found = until(in_function("keeps_secrets"), job.pid, locals=True, **wanted)
        (frame,) = [frame for frame in found["threads"][0]["frames"] if frame["func"] == "keeps_secrets"]
        values = {one["name"]: one["value"] for one in frame["locals"]}
        assert values["password"] == values["remembered"].strip("\"'") == "<redacted>"
        assert values["n_tokens"] == "17" and "4" in values["settings"]
        assert not any(word in str(found) for word in ("correct horse", "battery staple", "aaaaaaaa"))
    assert "locals" not in outside_view.read_stacks(job.pid)["threads"][0]["frames"][0]


def test_children_are_seen_python_or_not(bare: Start) -> None:
    job = bare("outside_states", "has_children", word="")
    python, other = (int(word) for word in job.wait_for("CHILDREN").split()[1:])
    job.wait_for("READY")
    found = outside_view.read_stacks(job.pid, workers=True)
    lines = {line["pid"]: line for line in found["processes"]}
    assert list(lines) == [job.pid, python, other] == [job.pid, *tasks.children(job.pid)]
    assert lines[other]["command"] == "sleep 600" and lines[other]["state"] == "sleeping"
    assert lines[python]["parent_pid"] == lines[other]["parent_pid"] == job.pid
    assert {thread["process_id"] for thread in found["threads"]} == {job.pid, python}
    (thread,) = [thread for thread in found["threads"] if thread["process_id"] == python]
    assert innermost(thread)["func"] == "child_sleeps" and not thread["training"]


def test_forked_dataloader_workers_are_seen_with_their_role(fork: Start) -> None:
    job = fork("outside_loader", watched=False)
    for _ in range(2):
        job.wait_for("STUCK")

    def all_wait(found: dict[str, Any]) -> bool:
        stuck = [one for one in found["threads"] if innermost(one)["func"] == "Hangs.reads_from_a_dead_disk"]
        waits = any("_MultiProcessingDataLoaderIter" in name for name in functions(found["threads"][0]))
        return len(stuck) == 2 and waits

    found = until(all_wait, job.pid, workers=True)
    workers = {line["pid"] for line in found["processes"] if line["role"] == "DataLoader worker"}
    assert len(workers) == 2 and job.pid not in workers
    stuck = {thread["process_id"]: functions(thread) for thread in found["threads"][1:]}
    assert set(stuck) == workers
    assert all("Hangs.__getitem__" in frames and "_worker_loop" in frames for frames in stuck.values())
    assert found["threads"][0]["training"]


def test_a_process_computes_on_unharmed_while_it_is_read(bare: Start) -> None:
    alone = bare("outside_states", "computes").result()
    job = bare("outside_states", "computes")
    reads = 0
    while not wait_for_end(job.pid, 0.0):
        for wanted in ({"all_threads": True}, {"native": True, "all_threads": True}, {"nonblocking": True}):
            with contextlib.suppress(ProbeError):  # it ends when it likes
                reads += bool(outside_view.read_stacks(job.pid, **wanted)["threads"])
    assert job.result() == alone and job.wait() == 0
    assert reads


def test_a_stack_read_while_it_changes_is_whole_or_said_not_to_be(bare: Start) -> None:
    """Without stopping the process, py-spy tears every eighth of Python 3.10's."""
    job = bare("outside_states", "recurses", python=str(PYTHONS[0]))
    for _ in range(40):
        found = outside_view.read_stacks(job.pid, nonblocking=True, all_threads=True)
        begins = {functions(thread)[-1] for thread in found["threads"] if thread["frames"]}
        assert begins <= {"<module>", "_bootstrap"} or any("torn" in note for note in found["notes"])


@pytest.mark.parametrize("python", OLDEST_AND_NEWEST, ids=lambda path: path.parts[-3])
def test_a_thread_that_begins_elsewhere_is_not_taken_for_torn(bare: Start, python: Path) -> None:
    job = bare("outside_states", "has_a_bare_thread", python=str(python))

    def asleep(found: dict[str, Any]) -> bool:
        return all(thread["state"] == "sleeping" for thread in found["threads"])

    found = until(asleep, job.pid, nonblocking=True, all_threads=True)
    bare_thread = next(thread for thread in found["threads"] if not thread["training"])
    assert functions(bare_thread)[-1].endswith("bare_thread") and len(found["threads"]) == 2
    assert not any("torn" in note for note in found["notes"])


@pytest.mark.skipif(not shutil.which("setpriv") or os.geteuid(), reason="needs root, to give a right away")
def test_without_the_right_to_trace_the_error_says_so(bare: Start) -> None:
    job = bare("outside_states", "sleeps")
    code = (
        "import sys; from probe.base.errors import ProbeError\n"
        "from probe.outside.stacks import outside_view\n"
        "try: outside_view.read_stacks(int(sys.argv[1]))\n"
        "except ProbeError as error: print(error.code, error.hint)"
    )
    done = subprocess.run(
        ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", sys.executable, "-c", code,
         str(job.pid)],
        capture_output=True, text=True, check=True,
    )
    assert done.stdout.startswith("tracing_denied") and "PTRACE" in done.stdout


def test_what_a_tool_left_stopped_is_continued_and_what_was_stopped_is_not(bare: Start) -> None:
    job = bare("outside_states", "sleeps")
    assert pyspy.continue_if_left_stopped(job.pid, was_stopped=False) is None
    job.signal(signal.SIGSTOP)
    while states(job.pid) != {"stopped"}:
        os.sched_yield()
    assert pyspy.continue_if_left_stopped(job.pid, was_stopped=True) is None
    assert states(job.pid) == {"stopped"}
    assert "SIGCONT" in str(pyspy.continue_if_left_stopped(job.pid, was_stopped=False))
    while states(job.pid) == {"stopped"}:
        os.sched_yield()


def test_looking_leaves_no_process_behind(bare: Start) -> None:
    job = bare("outside_states", "has_children")
    before = set(tasks.children(os.getpid()))
    outside_view.read_stacks(job.pid, native=True, all_threads=True, workers=True)
    assert set(tasks.children(os.getpid())) == before
    assert not any(thread.name.startswith("probe-look") for thread in threading.enumerate())


def test_without_the_tool_the_error_says_how_to_get_it(bare: Start) -> None:
    job = bare("outside_states", "sleeps")
    code = (
        "import sys; from probe.base.errors import StacksUnavailable\n"
        "from probe.outside.stacks import outside_view\n"
        "try: outside_view.read_stacks(int(sys.argv[1]))\n"
        "except StacksUnavailable as error: print(error.message, error.hint)"
    )
    done = subprocess.run(
        [str(PYTHONS[0]), "-c", code, str(job.pid)], env={"PYTHONPATH": str(ROOT), "PATH": "/nowhere"},
        capture_output=True, text=True, check=True,
    )
    assert "py-spy" in done.stdout and f"{PYTHONS[0]} -m pip install" in done.stdout


def test_the_module_is_cheap_to_import() -> None:
    heavy = ("pystack", "concurrent", "logging", "asyncio", "torch", "numpy", "multiprocessing")
    code = (
        "import sys, probe.outside.stacks.outside_view\n"
        f"print([name for name in sys.modules if name.startswith({heavy})])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("file", "user"),
    [
        ("/home/me/train.py", True),
        ("/home/me/lib/python/train.py", True),
        ("train.py", True),
        ("<frozen importlib._bootstrap>", False),
        ("<stdin>", False),
        ("/opt/env/lib/python3.12/site-packages/torch/nn/modules/module.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        ("/usr/lib/python3.13/threading.py", False),
        ("/usr/lib64/python3.13t/threading.py", False),
        ("/opt/lib/python312.zip/threading.py", False),
        (outside_view.__file__, False),
    ],
)
def test_whose_code_a_file_is(file: str, user: bool) -> None:
    assert outside_view.is_user_code(file) is user


def test_another_copy_of_probe_is_no_code_of_the_users_and_their_own_package_of_that_name_is(
    tmp_path: Path,
) -> None:
    copy, own = tmp_path / "probe" / "volume" / "probe", tmp_path / "me" / "probe"
    for folder in (copy / "boot" / "path", own):
        folder.mkdir(parents=True)
    (copy / "boot" / "path" / "sitecustomize.py").touch()
    assert not outside_view.is_user_code(f"{copy}/job/agent/agent.py")
    assert outside_view.is_user_code(f"{own}/linear.py")
