"""Attaching to real processes in every state: it works or refuses, and they compute as if nothing were."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent.asking import ask
from attach.conftest import Target
from harness import PATIENCE_S, ROOT, Place, wait_for_end
from probe.base.errors import AttachFailed, AttachPending, AttachRefused, ProbeError
from probe.outside.attach import boot_library, borrowed, gdb, payload
from probe.outside.attach.attaching import BOOT_THREAD, Attached, attach
from probe.outside.attach.meeting import Meeting
from probe.outside.attach.parked import parked_threads
from probe.recording import places

Start = Callable[..., Target]
WITHOUT_TORCH = (
    "lock", "recv", "busy", "many", "allocate", "multiply",
    *(pytest.param(state, marks=pytest.mark.campaign) for state in ("sleep", "join", "numpy")),
)
"""Who sleeps is attached to in other tests; who joins a thread waits for a lock."""
PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.1[0-9].*/bin/python"))
OLDEST_AND_NEWEST = [
    python if python in (PYTHONS[0], PYTHONS[-1]) else pytest.param(python, marks=pytest.mark.campaign)
    for python in PYTHONS
]
ASLEEP_OR_BUSY = (pytest.param("sleep", marks=pytest.mark.campaign), "multiply")
"""Attaching to one that sleeps may be over before anything happens to the attach."""
ATTACH = (
    "import sys; from pathlib import Path; from probe.outside.attach.attaching import attach\n"
    "print(attach(int(sys.argv[1]), {}, directory=Path(sys.argv[2]), say=print).outcome)"
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private PROBE_DIR for attaches that start no agent, and so leave nothing that runs."""
    with tempfile.TemporaryDirectory(prefix="probe-test-") as made:
        yield Path(made)


def settings_of(place: Place) -> dict[str, str]:
    return {"PROBE_DIR": str(place.directory), "PROBE_RINGS_DIR": str(place.rings)}


def attach_at(place: Place, pid: int, wait_s: float = PATIENCE_S) -> Attached:
    return attach(pid, settings_of(place), directory=place.directory, wait_s=wait_s)


def start_command(place: Place, pid: int, **environ: str) -> subprocess.Popen[str]:
    """An attach in a process of its own."""
    environment = {**place.environ(**environ), "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", ATTACH, str(pid), str(place.directory)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )


def until_traced(target: Target, over: Callable[[], bool]) -> int:
    """The process that traces it, as soon as one does; 0 when it was `over` before that was seen."""
    while not over():
        text = Path(f"/proc/{target.pid}/status").read_text()
        tracer = int(text.partition("TracerPid:")[2].split()[0])
        if tracer:
            return tracer
        time.sleep(0.0005)  # an attach traces for longer
    return 0


def caught(place: Place, target: Target) -> tuple[subprocess.Popen[str], int]:
    """A command that attaches just now, and its gdb. That lasts for milliseconds: it may need tries."""
    for _ in range(20):
        command = start_command(place, target.pid)
        tracer = until_traced(target, lambda command=command: command.poll() is not None)
        if tracer:
            return command, tracer
        command.communicate()
    raise AssertionError("no attach was seen")


@pytest.mark.parametrize("state", WITHOUT_TORCH)
def test_an_attach_leaves_the_computation_and_the_process_as_they_were(
    target: Start, folder: Path, state: str
) -> None:
    job = target(state)
    found = attach(job.pid, {}, directory=folder, wait_s=PATIENCE_S)
    assert found.outcome == "waiting for torch"
    assert found.loaded_s is not None and found.running_s is not None and found.loaded_s <= found.running_s
    assert not job.state().endswith("+") and job.state() != "T"
    job.finish()


@pytest.mark.parametrize("state", [pytest.param("lock", marks=pytest.mark.campaign), "busy"])
def test_threads_descriptors_and_maps_do_not_grow_with_attaches(
    target: Start, folder: Path, state: str
) -> None:
    job = target(state)

    def settled() -> dict[str, int]:
        deadline = time.monotonic() + PATIENCE_S
        while (found := job.counts())["threads"] > before["threads"] and time.monotonic() < deadline:
            time.sleep(0.002)
        return found

    before = job.counts()
    counts = []
    for _ in range(6):
        attach(job.pid, {}, directory=folder, wait_s=PATIENCE_S)
        counts.append(settled())
    # The first maps the library, a stack and an arena for the thread, which stay for the next one. Arenas are
    # cut and joined as they fill: what would be a leak is a map for each attach.
    assert {found["files"] for found in counts} == {counts[0]["files"]}
    assert counts[-1]["maps"] - counts[0]["maps"] < len(counts) - 1
    assert (counts[-1]["threads"], counts[-1]["descriptors"]) == (before["threads"], before["descriptors"])
    job.finish()


def test_an_agent_in_a_job_that_computes_in_c(target: Start, place: Place) -> None:
    job = target("torch")
    assert attach_at(place, job.pid).outcome == "started"
    assert attach_at(place, job.pid) == Attached(job.pid, "", "already")
    deadline = time.monotonic() + PATIENCE_S
    while "probe-attach" in thread_names(place, job.pid):  # it ends when it gets the GIL once more
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = job.finish()
    assert "probe-agent" in found["threads"] and "probe-attach" not in found["threads"]


def thread_names(place: Place, pid: int) -> set[str]:
    found = ask(place, pid, "GET", "/v1/stacks?all_threads=1")
    return {thread["thread_name"] for thread in found["threads"]}


def test_two_at_once_make_one_agent(target: Start, place: Place) -> None:
    job = target("asleep_with_torch")
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: attach_at(place, job.pid).outcome, range(2)))
    assert sorted(found) == ["already", "started"]
    assert job.finish()["threads"].count("probe-agent") == 1


def test_a_held_gil_is_said_with_its_holder_and_the_agent_comes_by_itself(
    target: Start, place: Place
) -> None:
    job = target("held")
    with pytest.raises(AttachPending) as pending:
        attach_at(place, job.pid, wait_s=0.3)
    assert "loaded and waits for the GIL" in pending.value.message
    assert "hold (attach_states.py:" in pending.value.message
    assert job.thread_names().count(BOOT_THREAD) == 1
    # The next one finds the thread of the first, brings in no second one, and waits.
    assert attach_at(place, job.pid).outcome == "already"
    assert job.finish()["threads"].count("probe-agent") == 1


def test_a_job_that_closes_descriptors_while_the_agent_waits_for_the_gil_keeps_its_files(
    target: Start, folder: Path, tmp_path: Path
) -> None:
    job = target("closes", cwd=tmp_path)
    with pytest.raises(AttachPending, match="waits for the GIL"):
        attach(job.pid, {}, directory=folder, wait_s=0.3)
    (tmp_path / "go").touch()
    while BOOT_THREAD in job.thread_names():
        time.sleep(0.01)
    numbers = len(os.listdir(f"/proc/{job.pid}/fd"))
    assert job.finish()["wrong"] == 0
    assert (tmp_path / "mine").read_bytes() == b""
    assert numbers == 3 + 1 + 16 + 25  # none of the job's was closed


def test_a_stopped_process_is_refused_and_stays_stopped(target: Start, folder: Path) -> None:
    job = target("sleep")
    job.signal(signal.SIGSTOP)
    while job.state() != "T":
        time.sleep(0.001)
    with pytest.raises(AttachRefused, match="is stopped") as refused:
        attach(job.pid, {}, directory=folder)
    assert f"kill -CONT {job.pid}" in refused.value.hint
    assert job.state() == "T"
    job.signal(signal.SIGCONT)
    job.finish()


@pytest.mark.parametrize("state", ASLEEP_OR_BUSY)
def test_a_command_that_is_interrupted_lets_the_job_go(target: Start, place: Place, state: str) -> None:
    job = target(state)
    command, _ = caught(place, job)
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=PATIENCE_S)
    assert (command.returncode != 0 and "KeyboardInterrupt" in errors) or state == "sleep"
    assert job.state() in ("S", "R")
    job.finish()


@pytest.mark.parametrize("state", ASLEEP_OR_BUSY)
def test_a_command_that_is_killed_lets_the_job_go(target: Start, place: Place, state: str) -> None:
    job = target(state)
    command, tracer = caught(place, job)
    command.kill()
    command.communicate(timeout=PATIENCE_S)
    assert wait_for_end(tracer, PATIENCE_S)
    assert job.state() in ("S", "R")
    job.finish()


@pytest.mark.parametrize("state", ASLEEP_OR_BUSY)
def test_a_gdb_that_is_stopped_in_the_middle_is_seen_out(target: Start, folder: Path, state: str) -> None:
    job = target(state)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(20):
            attaching = pool.submit(attach, job.pid, {}, directory=folder, wait_s=PATIENCE_S)
            tracer = until_traced(job, attaching.done)
            with contextlib.suppress(ProcessLookupError):
                if tracer:
                    os.kill(tracer, signal.SIGSTOP)
            attaching.result()
            if tracer:
                break
    assert job.state() in ("S", "R")
    job.finish()


def test_an_end_of_gdb_while_it_waits_for_a_boundary_does_not_end_the_job(
    target: Start, folder: Path
) -> None:
    for pause_s in (0.5, 0.2, 0.1, 0.05, 0.0):  # of the two seconds that it waits, if none comes before
        job = target("multiply")
        with ThreadPoolExecutor(1) as pool:
            attaching = pool.submit(attach, job.pid, {}, directory=folder, wait_s=PATIENCE_S)
            tracer = until_traced(job, attaching.done)
            time.sleep(pause_s)
            ended = False
            with contextlib.suppress(ProcessLookupError):
                os.kill(tracer, signal.SIGTERM)
                ended = True
            with contextlib.suppress(ProbeError):
                attaching.result()
        assert wait_for_end(tracer, PATIENCE_S)
        assert job.state() in ("S", "R")
        job.finish()
        if ended:
            return
    raise AssertionError("gdb was gone each time before it could be ended")


def test_a_deleted_working_folder_and_an_empty_environment_are_no_obstacle(
    target: Start, folder: Path, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    job = target("sleep", cwd=gone, environ={})
    gone.rmdir()
    assert attach(job.pid, {}, directory=folder, wait_s=PATIENCE_S).outcome == "waiting for torch"
    job.finish()


@pytest.mark.parametrize("python", OLDEST_AND_NEWEST, ids=lambda path: path.parts[-3])
@pytest.mark.parametrize("state", [pytest.param("sleep", marks=pytest.mark.campaign), "busy"])
def test_every_python_from_3_10_on_can_be_attached_to(
    target: Start, folder: Path, python: Path, state: str
) -> None:
    job = target(state, python=str(python))
    assert attach(job.pid, {}, directory=folder, wait_s=PATIENCE_S).outcome == "waiting for torch"
    job.finish()


def test_without_gdb_a_parked_thread_is_borrowed_by_pyinjector(target: Start, folder: Path) -> None:
    job = target("many")
    placed, problem = boot_library.place_library(places.make_private(folder / "boot"))
    assert placed is not None, problem
    with Meeting(folder / "boot", job.pid, job.pid, payload.source({}, directory=folder)) as meeting:
        for _ in range(5):
            done = borrowed.inject(job.pid, parked_threads(job.pid), placed)
            if done.kind != "Refused":
                break
        assert done.problem == ""
        assert meeting.until_loaded(PATIENCE_S) and meeting.until_over(PATIENCE_S)
    assert meeting.outcome == {"state": "waiting for torch"}
    job.finish()


def test_without_gdb_a_busy_process_is_refused(target: Start, place: Place, tmp_path: Path) -> None:
    job = target("busy")
    command = start_command(place, job.pid, PATH=programs(tmp_path, "cc", "as", "ld"))
    _, errors = command.communicate(timeout=PATIENCE_S)
    assert "AttachRefused" in errors and "no thread but the main one" in errors
    job.finish()


def test_beside_a_thread_that_is_stuck_in_the_kernel_no_debugger_is_used(
    target: Start, folder: Path, tmp_path: Path
) -> None:
    job = target("stuck", cwd=tmp_path)
    while job.state() != "D":
        time.sleep(0.001)
    with pytest.raises(AttachPending, match="waits for the GIL"):
        attach(job.pid, {}, directory=folder, wait_s=0.3)
    assert job.state() == "D"
    os.close(os.open(tmp_path / "pipe", os.O_WRONLY))
    while BOOT_THREAD in job.thread_names():
        time.sleep(0.01)
    job.finish()


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="vector registers of x86-64")
@pytest.mark.parametrize("state", ["lock", "allocate", "multiply"])
def test_a_call_made_by_hand_leaves_every_register_as_it_was(
    target: Start, folder: Path, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So it is done where the processor has more vector registers than gdb can write: here on any.
    monkeypatch.setattr(gdb, "large_vector_state", lambda: True)
    job = target(state)
    for _ in range(5):
        assert attach(job.pid, {}, directory=folder, wait_s=PATIENCE_S).outcome == "waiting for torch"
    assert not job.state().endswith("+") and job.state() != "T"
    job.finish()


def test_where_gdb_cannot_restore_registers_pyinjector_is_used(
    target: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gdb, "large_vector_state", lambda: True)
    monkeypatch.setattr(gdb, "has_python", lambda _program: False)
    job = target("many")
    with monkeypatch.context() as without:
        without.setattr(borrowed, "available", lambda: False)
        with pytest.raises(AttachFailed, match="continues unchanged") as refused:
            attach(job.pid, {}, directory=folder, wait_s=PATIENCE_S)
    assert "torch-probe[inject]" in refused.value.hint
    said: list[str] = []
    attached = attach(job.pid, {}, directory=folder, wait_s=PATIENCE_S, say=said.append)
    assert attached.outcome == "waiting for torch" and attached.how.endswith("without gdb")
    assert any("cannot restore the vector registers" in line for line in said)
    job.finish()


@pytest.mark.skipif(gdb.large_vector_state(), reason="this gdb could not restore this processor's registers")
def test_a_gdb_without_python_borrows_a_parked_thread(target: Start, folder: Path) -> None:
    job = target("many")
    placed, problem = boot_library.place_library(places.make_private(folder / "boot"))
    assert placed is not None, problem
    program = shutil.which("gdb")
    assert program is not None
    with Meeting(folder / "boot", job.pid, job.pid, payload.source({}, directory=folder)) as meeting:
        for _ in range(5):  # one that waits for the GIL looks parked, and may go on
            parked = parked_threads(job.pid)
            done = gdb.run(program, job.pid, parked, placed, "", breakpoints=False, plain=True)
            if done.kind != "Refused":
                break
        assert done.problem == ""
        assert meeting.until_loaded(PATIENCE_S) and meeting.until_over(PATIENCE_S)
    assert meeting.outcome == {"state": "waiting for torch"}
    job.finish()


@pytest.mark.parametrize("state", ["busy", pytest.param("sleep", marks=pytest.mark.campaign)])
def test_without_a_compiler_the_main_thread_is_asked_when_it_comes_by(
    target: Start, place: Place, tmp_path: Path, state: str
) -> None:
    shutil.copytree(
        ROOT / "probe", tmp_path / "probe", ignore=shutil.ignore_patterns("__pycache__", "boot.so")
    )
    job = target(state)
    environ = place.environ(PATH=programs(tmp_path, "gdb"))
    environ.update(PYTHONPATH=str(tmp_path))
    environ.pop("CC", None)
    done = subprocess.run(
        [sys.executable, "-c", ATTACH, str(job.pid), str(place.directory)], env=environ, text=True,
        capture_output=True, timeout=PATIENCE_S, check=False, cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "there is no C compiler" in done.stdout
    assert done.stdout.splitlines()[-1] == "waiting for torch"
    job.finish()


def programs(folder: Path, *names: str) -> str:
    """A folder for PATH that holds these programs alone."""
    made = folder / "bin"
    made.mkdir()
    for name in names:
        found = shutil.which(name)
        assert found, f"this test needs {name}"
        (made / name).symlink_to(found)
    return str(made)


def test_a_job_with_a_probe_of_its_own_is_refused_with_its_name(
    target: Start, place: Place, tmp_path: Path
) -> None:
    (tmp_path / "probe.py").write_text("value = 1\n")
    (tmp_path / "torch.py").write_text("__version__ = '2.9.0'\n")  # nothing of it is asked before
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    job = target("asleep_with_torch", environ=environ)
    with pytest.raises(AttachRefused, match="has its own `probe`"):
        attach_at(place, job.pid)
    job.finish()


@pytest.mark.parametrize(("number", "state"), [
    (signal.SIGUSR1, "allocate"), (signal.SIGINT, "sleep"),
    pytest.param(signal.SIGUSR1, "sleep", marks=pytest.mark.campaign),
    pytest.param(signal.SIGINT, "allocate", marks=pytest.mark.campaign),
])
def test_a_signal_of_the_jobs_own_reaches_it_while_it_is_attached_to(
    target: Start, folder: Path, state: str, number: signal.Signals
) -> None:
    job = target(state)
    with ThreadPoolExecutor(1) as pool:
        attaching = pool.submit(attach, job.pid, {}, directory=folder, wait_s=PATIENCE_S)
        until_traced(job, attaching.done)
        job.signal(number)
        with contextlib.suppress(ProbeError):  # it may have ended by then
            attaching.result()
    if number == signal.SIGINT:
        assert job.wait() == -signal.SIGINT and "KeyboardInterrupt" in job.errors()
    else:
        assert '"wrong": 0' in job.wait_for("RESULT") and (job.wait(), job.errors()) == (0, "")


def test_a_pending_call_that_comes_late_still_starts_the_agent(target: Start, place: Place) -> None:
    """Its command has given up; what was queued runs when the main thread comes by."""
    job = target("asleep_with_torch")
    program = shutil.which("gdb")
    assert program is not None
    address = str(place.directory / "nobody.sock")
    text = payload.calling_source(payload.source(settings_of(place), directory=place.directory), address)
    assert gdb.run(program, job.pid, parked_threads(job.pid), None, text, breakpoints=True).problem == ""
    socket = places.agent_socket(place.directory, job.pid)
    deadline = time.monotonic() + PATIENCE_S
    while not socket.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert job.finish()["threads"].count("probe-agent") == 1
