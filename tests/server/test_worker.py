"""What a query worker has given up: files, writing, the network, other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness import ROOT, Place
from server.beside import Beside, Writer, until

TRY = """
import os, socket, sys
from pathlib import Path
from probe.confined import sandbox, worker_frames
missing = sandbox.enter([*worker_frames.python_paths(), sys.argv[1]], 2 << 30, os.getppid())
def tried(action):
    try:
        action()
        return "yes"
    except OSError as error:
        return type(error).__name__
inside, outside = Path(sys.argv[1]), Path(sys.argv[2])
print("missing", ",".join(missing))
print("read inside", tried((inside / "file").read_bytes))
print("read outside", tried((outside / "file").read_bytes))
print("read passwd", tried(Path("/etc/passwd").read_bytes))
print("list outside", tried(lambda: os.listdir(outside)))
print("write inside", tried(lambda: (inside / "new").write_bytes(b"x")))
print("write tmp", tried(lambda: Path("/tmp/probe-worker-test").write_bytes(b"x")))
print("connect", tried(lambda: socket.create_connection(("127.0.0.1", int(sys.argv[3])), 5)))
print("run", tried(lambda: os.execv("/bin/true", ["true"])))
import duckdb
print("duckdb", duckdb.connect(":memory:").execute("SELECT 42").fetchall()[0][0])
"""


@pytest.fixture
def outcome(tmp_path: Path) -> dict[str, str]:
    """What a process that entered the sandbox could still do."""
    import socket

    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        found = subprocess.run(
            [sys.executable, "-c", TRY, str(tmp_path / "inside"), str(tmp_path / "outside"),
             str(listener.getsockname()[1])],
            env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        )
    assert found.returncode == 0, found.stderr
    return dict(line.rsplit(" ", 1) for line in found.stdout.splitlines())


def test_a_worker_reads_the_recordings_and_nothing_else(outcome: dict[str, str]) -> None:
    if "landlock" in outcome.get("missing", ""):
        pytest.skip("this kernel has no Landlock")
    assert outcome["read inside"] == "yes"
    assert outcome["duckdb"] == "42"
    allowed = ("read inside", "duckdb", "missing")
    refused = {name: result for name, result in outcome.items() if name not in allowed}
    assert len(refused) == 7 and set(refused.values()) == {"PermissionError"}, refused


@pytest.mark.usefixtures("real_servers")
def test_a_worker_ends_with_its_server_and_carries_nothing_of_its_environment(
    beside: Beside, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    server = beside.start()

    def workers() -> list[int]:
        return [int(line.split()[0]) for line in place.processes() if "probe.server.sql.worker" in line]

    (pid,) = until(workers, "a worker")
    assert b"hunter2" not in Path(f"/proc/{server}/environ").read_bytes()
    until(lambda: _idle(pid), "it has entered its sandbox")
    if os.getuid() == 0:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"HOME=/nonexistent" in environ and b"PROBE_DIR" not in environ
    status = Path(f"/proc/{pid}/status").read_text()
    assert "NoNewPrivs:\t1" in status
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max core file size        0" in limits and "Max file size             0" in limits
    assert os.getsid(pid) == pid
    beside.kill()
    until(lambda: not Path(f"/proc/{pid}").exists(), "the worker ended too")


def test_the_query_worker_of_a_forked_server_is_a_fork_of_the_same_process(
    beside: Beside, place: Place, record: Callable[..., Writer]
) -> None:
    """A process of its own takes a third of a second of processor time for every server of the tests."""
    writer = record()
    beside.start()
    assert beside.rows(writer.pid, "SELECT 1") == [[1]]
    assert not [line for line in place.processes() if "probe.server.sql.worker" in line]


def _idle(pid: int) -> bool:
    """Whether the worker waits for a request: it has more threads than its first, DuckDB's."""
    return len(os.listdir(f"/proc/{pid}/task")) > 1
