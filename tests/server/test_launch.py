"""The server's start and end: nobody's child, one per place, gone when it is not needed."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from harness import PATIENCE_S, ROOT, UNSAID_SERVER, Place, wait_for_end
from probe.base.errors import ServerUnavailable
from probe.base.settings import Settings
from probe.boot import launch
from probe.recording import places
from server.beside import Beside, Writer, until

STARTER = """
import os, sys
from pathlib import Path
from probe.boot import launch
from probe.base.settings import Settings
sys.stdin.readline()
launch.ensure_server(Path(os.environ["PROBE_DIR"]), Settings(), wait_s=float(sys.argv[1]))
children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
print("children", len(children), flush=True)
sys.stdin.readline()
"""


def starter(place: Place, wait_s: float, **environ: str) -> subprocess.Popen[str]:
    """A process that starts the server when it is told, and then says how many children it has."""
    return subprocess.Popen(
        [sys.executable, "-c", STARTER, str(wait_s)],
        env=place.environ(PYTHONPATH=str(ROOT), **environ),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )


def servers(place: Place) -> list[str]:
    return [line for line in place.processes() if "probe.server" in line and "worker" not in line]


@pytest.mark.usefixtures("real_servers")
def test_many_starters_at_once_make_one_server_and_nobody_its_parent(place: Place) -> None:
    starters = [starter(place, 60.0, PROBE="1", SECRET_KEY="hunter2") for _ in range(6)]
    try:
        for process in starters:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in starters:
            assert process.stdout is not None
            assert process.stdout.readline() == "children 0\n"
        until(lambda: len(servers(place)) == 1, "one server is left")
        pid = place.server_pid()
        assert pid is not None
        assert os.getsid(pid) not in {os.getsid(0), *(process.pid for process in starters)}
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert b"PROBE=1" not in environ and not any(entry.startswith(b"SECRET") for entry in environ)
        assert os.readlink(f"/proc/{pid}/cwd") == "/"
        for descriptor in ("0", "1"):
            assert os.readlink(f"/proc/{pid}/fd/{descriptor}") == "/dev/null"
        assert os.readlink(f"/proc/{pid}/fd/2") == str(place.directory / "server.log")
    finally:
        for process in starters:
            process.communicate("\n")


def test_the_agent_does_not_wait_for_the_server(place: Place, beside: Beside) -> None:
    launch.ensure_server(place.directory, Settings(), wait_s=0.0)
    until(lambda: places.server_socket(place.directory).exists(), "the server serves")
    pid = beside.start()
    launch.ensure_server(place.directory, Settings(), wait_s=0.0)
    assert beside.start() == pid


@pytest.mark.usefixtures("real_servers")
def test_after_sigkill_the_next_start_works_and_leaves_no_worker(place: Place, beside: Beside) -> None:
    first = beside.start()
    until(lambda: any("worker" in line for line in place.processes()), "a worker is ready")
    beside.kill()
    until(lambda: not place.processes(), "the workers are gone too")
    assert places.server_socket(place.directory).exists(), "a stale socket is in the way"
    assert beside.start() != first


@pytest.mark.usefixtures("real_servers")
def test_sigterm_ends_it_cleanly(place: Place, beside: Beside) -> None:
    pid = beside.start()
    os.kill(pid, signal.SIGTERM)
    assert wait_for_end(pid, PATIENCE_S)
    assert not places.server_socket(place.directory).exists()
    until(lambda: not place.processes(), "nothing is left")
    assert "Traceback" not in beside.log()


def test_it_ends_itself_some_time_after_the_last_agent_and_request(
    place: Place, beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record()
    pid = beside.start(PROBE_SERVER_LINGER_S="1")
    assert not wait_for_end(pid, 3.0), "an agent lives"
    writer.exit()
    assert wait_for_end(pid, PATIENCE_S)
    assert not places.server_socket(place.directory).exists()
    assert writer.sealed(), "everything was sealed before"


def test_without_its_packages_it_says_so(place: Place, tmp_path: Path) -> None:
    """A job's interpreter that has torch and nothing of ours."""
    code = (
        "import sys, os; from pathlib import Path; from probe.boot import launch\n"
        "from probe.base.errors import ServerUnavailable; from probe.base.settings import Settings\n"
        "try: launch.ensure_server(Path(os.environ['PROBE_DIR']), Settings(), wait_s=0)\n"
        "except ServerUnavailable as error: print(error.message, error.hint)\n"
    )
    bare = subprocess.run(
        [sys.executable, "-S", "-c", code], env=place.environ(PYTHONPATH=str(ROOT), **UNSAID_SERVER),
        capture_output=True, text=True, check=True,
    )
    assert "fastapi" in bare.stdout and "PROBE_SERVER_PYTHON" in bare.stdout
    assert servers(place) == []


def test_another_python_can_run_it(place: Place, beside: Beside) -> None:
    code = (
        "import os; from pathlib import Path\n"
        "from probe.base.settings import Settings; from probe.boot import launch\n"
        "launch.ensure_server(Path(os.environ['PROBE_DIR']), Settings(), wait_s=60)\n"
    )
    subprocess.run(
        [sys.executable, "-S", "-c", code], check=True,
        env=place.environ(PYTHONPATH=str(ROOT), PROBE_SERVER_PYTHON=sys.executable),
    )
    assert beside.call("GET", "/v1/health")["status"] == "ok"


@pytest.mark.usefixtures("real_servers")
def test_a_server_that_does_not_answer_is_named(place: Place, beside: Beside) -> None:
    pid = beside.start()
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ServerUnavailable, match="stopped"):
            launch.ensure_server(place.directory, Settings(), wait_s=0.1)
        assert len(servers(place)) == 1
    finally:
        os.kill(pid, signal.SIGCONT)


def test_the_log_does_not_grow_without_end(place: Place, beside: Beside) -> None:
    place.directory.mkdir(exist_ok=True)
    (place.directory / "server.log").write_bytes(b"x" * (launch.LARGEST_LOG_BYTES + 1))
    beside.start()
    assert len(beside.log()) < 10_000


def test_a_server_whose_folder_was_deleted_ends_and_leaves_the_next_one_alone(
    place: Place, beside: Beside, record: Callable[..., Writer]
) -> None:
    quick = {"PROBE_DRAIN_INTERVAL_S": "0.05", "PROBE_SEAL_INTERVAL_S": "0.05"}
    first = beside.start(**quick)
    shutil.rmtree(place.directory)
    place.directory.mkdir(mode=0o700)
    writer = record()
    second = beside.start(**quick)
    assert wait_for_end(first, PATIENCE_S), "two servers would seal the same rows"
    writer.tell("write 20")
    until(lambda: writer.segments("python.steps"), "sealed")
    assert beside.rows(writer.pid, "SELECT count(*), count(DISTINCT step) FROM python.steps") == [[20, 20]]
    assert place.server_pid() == second and places.server_socket(place.directory).exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"f_bavail": 0}, "has 0 KiB free"), ({"f_favail": 0}, "has no inodes left"),
     ({"f_flag": os.ST_RDONLY}, "is on a file system that is mounted read-only")],
)
def test_a_server_that_has_no_room_is_not_started_and_the_error_says_so(
    place: Place, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, int], said: str
) -> None:
    found = os.statvfs(place.directory)
    names = [name for name in dir(found) if name.startswith("f_")]
    full = SimpleNamespace(**{**{name: getattr(found, name) for name in names}, **wrong})
    monkeypatch.setattr(os, "statvfs", lambda path: full)
    with pytest.raises(ServerUnavailable, match=f"{place.directory} {said}"):
        launch.ensure_server(place.directory, Settings(place.environ()), wait_s=PATIENCE_S)
    assert servers(place) == []


@pytest.mark.usefixtures("real_servers")
def test_a_server_keeps_open_nothing_that_it_inherited(place: Place, beside: Beside) -> None:
    read, write = os.pipe()
    environ = launch.server_environment(place.directory, Settings(), os.environ)
    with os.fdopen(read, "rb") as heard:
        server = subprocess.Popen([sys.executable, "-m", "probe.server"], env=environ, pass_fds=[write])
        os.close(write)
        assert select.select([heard], [], [], PATIENCE_S)[0] and heard.read() == b""  # its end is closed
        assert beside.start() == server.pid
        server.terminate()
        assert server.wait(PATIENCE_S) == 0
