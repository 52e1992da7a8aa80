"""What stands in the way of attaching, told apart: on real processes, and on facts not found here."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attach.conftest import Target as Job
from harness import PATIENCE_S, ROOT
from probe.base.errors import AttachRefused, EndpointUnknown, NotYours, ProbeError, ProcessDead, TracingDenied
from probe.outside.attach.parked import parked_threads
from probe.outside.processes.target import Target, check_attach, check_tracing, read_target, why_denied

Start = Callable[..., Job]
NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root, to be somebody else")
SYSTEM_PYTHON = "/usr/bin/python3"
needs_system_python = pytest.mark.skipif(
    not os.path.exists(SYSTEM_PYTHON), reason="needs a Python that every user may run"
)
CHECK = (
    "import sys; from probe.outside.processes.target import read_target, check_attach, check_tracing\n"
    "from probe.base.errors import ProbeError\n"
    "for check in (check_tracing, check_attach):\n"
    "    try: check(read_target(int(sys.argv[1]))); print('fine')\n"
    "    except ProbeError as error: print(type(error).__name__, error.message, '|', error.hint)\n"
)
CLOSED = "import ctypes, time; ctypes.CDLL(None).prctl(4, 0); print('READY', flush=True); time.sleep(600)"


def refusals(command: list[str]) -> list[str]:
    """What both checks say in a process of its own."""
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, capture_output=True,
        timeout=PATIENCE_S, check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@contextlib.contextmanager
def process(*command: str, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that says a line first; killed at the end."""
    found = subprocess.Popen(command, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload]
    try:
        yield found
    finally:
        found.kill()
        found.wait()
        assert found.stdout is not None
        found.stdout.close()


def a_python(**changes: object) -> Target:
    """A process that may be attached to, but for `changes`."""
    fine = Target(
        4242, exists=True, state="S", command="python train.py",
        uids=(1000,) * 4, our_uid=1000, openable=True, is_python=True, version=(3, 11), inner_pid=4242,
        same_files=True,
    )
    return fine._replace(**changes)  # type: ignore[arg-type]


def test_a_job_of_ours_may_be_attached_to(target: Start) -> None:
    found = read_target(target("sleep").pid)
    check_tracing(found)
    check_attach(found)
    assert found.is_python and found.version == sys.version_info[:2]
    assert found.inner_pid == found.pid


def test_a_process_that_is_not_there() -> None:
    with process("true") as ended:
        ended.wait()
    for check in (check_tracing, check_attach):
        with pytest.raises(EndpointUnknown, match="there is no process"):
            check(read_target(ended.pid))


def test_a_thread_is_not_a_process(target: Start) -> None:
    job = target("many")
    deadline = time.monotonic() + PATIENCE_S
    while (thread := max(int(name) for name in os.listdir(f"/proc/{job.pid}/task"))) == job.pid:
        assert time.monotonic() < deadline
    with pytest.raises(EndpointUnknown):
        check_attach(read_target(thread))


def test_a_zombie_has_ended() -> None:
    with process("true") as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessDead, match="zombie"):
            check_attach(read_target(ended.pid))


def test_a_process_that_runs_no_python() -> None:
    with process("sleep", "600") as other:
        check_tracing(read_target(other.pid))
        with pytest.raises(AttachRefused, match=r"\(sleep 600\) does not run Python"):
            check_attach(read_target(other.pid))


def test_a_python_that_is_too_old(tmp_path: Path) -> None:
    found = sorted(Path.home().glob(".pyenv/versions/3.[6-9].*/bin/python"))
    if not found:
        pytest.skip("no older Python on this machine")
    with process(str(found[-1]), "-c", "print('READY', flush=True); input()", stdin=subprocess.PIPE) as old:
        assert old.stdout is not None
        old.stdout.readline()
        with pytest.raises(AttachRefused, match=r"runs Python 3\.\d, and the agent needs 3\.10"):
            check_attach(read_target(old.pid))


def test_a_stopped_process(target: Start) -> None:
    job = target("sleep")
    job.signal(signal.SIGSTOP)
    while job.state() != "T":
        pass
    check_tracing(read_target(job.pid))
    with pytest.raises(AttachRefused, match="is stopped") as refused:
        check_attach(read_target(job.pid))
    assert f"kill -CONT {job.pid}" in refused.value.hint


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_process_that_is_traced_already(target: Start) -> None:
    job = target("sleep")
    with process("strace", "-q", "-o", "/dev/null", "-p", str(job.pid)) as tracer:
        deadline = time.monotonic() + PATIENCE_S
        while not job.state().endswith("+") and time.monotonic() < deadline:
            pass
        check_tracing(read_target(job.pid))
        with pytest.raises(AttachRefused, match=rf"already traced by strace \(pid {tracer.pid}\)"):
            check_attach(read_target(job.pid))
        tracer.terminate()
        tracer.wait()
    job.finish()


@needs_root
@needs_system_python
def test_another_users_job_can_be_read_by_root_and_attached_to_by_its_user(target: Start) -> None:
    job = target("sleep", python=SYSTEM_PYTHON, user=NOBODY)
    found = read_target(job.pid)
    check_tracing(found)
    with pytest.raises(NotYours, match=f"process {job.pid} belongs to user nobody") as refused:
        check_attach(found)
    assert f"sudo -u nobody probe {job.pid} attach" in refused.value.hint


@needs_root
@needs_system_python
def test_roots_job_is_nothing_for_another_user(target: Start, tmp_path: Path) -> None:
    job = target("sleep")
    open_folder = Path("/tmp") / f"probe-test-{os.getpid()}"
    try:
        shutil.copytree(ROOT / "probe", open_folder / "probe")
        done = subprocess.run(
            [SYSTEM_PYTHON, "-c", CHECK, str(job.pid)], env={"PYTHONPATH": str(open_folder)}, user=NOBODY,
            cwd="/", text=True, capture_output=True, timeout=PATIENCE_S, check=False,
        )
    finally:
        shutil.rmtree(open_folder, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["NotYours", "NotYours"]
    assert "belongs to user root, and you are user nobody" in done.stdout


@needs_root
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv")
def test_a_root_without_the_right_to_trace_is_told_so(target: Start) -> None:
    job = target("sleep")
    command = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", sys.executable, "-c", CHECK]
    tracing, attaching = refusals([*command, str(job.pid)])
    assert tracing == attaching
    assert tracing.startswith("TracingDenied") and "SYS_PTRACE" in tracing and "PROBE=1" in tracing


@needs_root
@needs_system_python
def test_a_process_that_closed_itself(tmp_path: Path) -> None:
    """Root may look inside all the same; its own user may not."""
    with process(SYSTEM_PYTHON, "-c", CLOSED, user=NOBODY, cwd="/") as closed:
        assert closed.stdout is not None
        closed.stdout.readline()
        found = read_target(closed.pid)
        check_tracing(found)
        assert not found.dumpable
    asked_by_its_user = found._replace(our_uid=NOBODY, our_capabilities=0, openable=False)
    for check in (check_tracing, check_attach):
        with pytest.raises(TracingDenied, match="not dumpable"):
            check(asked_by_its_user)


@pytest.mark.parametrize(
    ("changes", "kind", "said", "cure"),
    [
        ({"yama": 1}, TracingDenied, "ptrace_scope is 1", "sysctl kernel.yama.ptrace_scope=0"),
        ({"yama": 2}, TracingDenied, "ptrace_scope is 2", "as root"),
        ({"yama": 3, "our_capabilities": 1 << 19}, TracingDenied, "ptrace_scope is 3", "next boot"),
        ({"capabilities": 1 << 21}, TracingDenied, "that you do not have", "--cap-add=SYS_PTRACE"),
        ({"dumpable": False}, TracingDenied, "not dumpable", "sudo"),
        ({"uids": (7,) * 4}, NotYours, "belongs to user", "sudo -u"),
        ({"yama": 0}, TracingDenied, "security module", "as root"),
    ],
)
def test_each_reason_for_a_closed_process_has_its_own_cure(
    changes: dict[str, object], kind: type[ProbeError], said: str, cure: str
) -> None:
    error = why_denied(a_python(openable=False, **changes))
    assert type(error) is kind and said in error.message and cure in error.hint
    assert kind is NotYours or "PROBE=1" in error.hint


def test_a_machine_without_yama_is_never_blamed_on_it() -> None:
    assert "yama" not in why_denied(a_python(openable=False, capabilities=1 << 21)).message


def test_what_may_be_opened_is_not_refused_for_what_a_setting_says() -> None:
    check_attach(a_python(yama=1, our_seccomp=2, capabilities=1 << 21))


def test_a_job_in_a_container_is_left_to_a_probe_in_there() -> None:
    with pytest.raises(AttachRefused, match="other files") as refused:
        check_attach(a_python(same_files=False, inner_pid=17))
    assert "it is pid 17" in refused.value.hint


@needs_root
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_a_mount_namespace_of_its_own_is_seen() -> None:
    code = "import os; print('READY', flush=True); input()"
    with process("unshare", "--mount", sys.executable, "-c", code, stdin=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        check_tracing(read_target(other.pid))
        with pytest.raises(AttachRefused, match="mount namespace"):
            check_attach(read_target(other.pid))


@pytest.mark.parametrize("state", ["lock", "recv", "sleep", "join"])
def test_a_thread_that_waits_is_parked_and_the_main_thread_comes_last(target: Start, state: str) -> None:
    job = target(state)
    deadline = time.monotonic() + PATIENCE_S
    found = parked_threads(job.pid)
    while job.pid not in (one.tid for one in found) and time.monotonic() < deadline:
        found = parked_threads(job.pid)  # another thread may be parked a moment earlier
    assert found[-1].tid == job.pid
    assert all(first.tid != job.pid for first in found[:-1])


def test_a_thread_that_computes_is_not_parked(target: Start) -> None:
    assert parked_threads(target("multiply").pid) == []
