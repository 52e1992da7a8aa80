"""What tests of the agent ask: its own socket directly, tables and states through the command."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness import PATIENCE_S, PROGRAMS, Job, Place, run_probe
from probe.base import wire
from probe.recording import places
from probe.recording.process import life
from probe.recording.recording import Meta
from probe.server.answers import queries
from probe.server.recordings.registry import Registry
from probe.server.sql.statements import Query
from probe.server.sql.views import mentioned
from probe.server.sql.worker import Worker

BY_SERVER = frozenset({
    "cluster.hosts", "cluster.ranks", "cluster.stack_classes", "cluster.stacks", "probe.alerts",
    "probe.checks", "probe.facts", "probe.rings", "probe.verdicts",
    "process.gpu", "python.backtrace", "python.stacks",
})
"""Tables with rows that a server writes or asks for."""
QUERY_BYTES = 512 << 20
_LISTENED: set[Path] = set()
"""Sockets of agents that were there once."""
TIMES = frozenset({"wall_s", "step_wall_s", "step_phases_s"})
"""Keys of a program's result that differ from run to run."""


def _lives(pid: int) -> bool:
    found = life(pid)
    return found is not None and found.state != "Z"


def ask(
    place: Place, pid: int, method: str, target: str, body: object = None, timeout_s: float = 60.0
) -> Any:
    """One request to the agent in `pid`; raises the `ProbeError` it answers with. The first waits for its
    socket, which the agent's thread binds: a job may have trained before it."""
    path = places.agent_socket(place.directory, pid)
    deadline = time.monotonic() + PATIENCE_S
    while path not in _LISTENED and not path.exists() and _lives(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    _LISTENED.add(path)
    return wire.call(path, method, target, body, timeout_s=timeout_s)


def evaluate(
    place: Place, pid: int, code: str, timeout_s: float = 30.0, when: str = "auto"
) -> dict[str, Any]:
    """The agent's answer to a snippet; `when` is `now`, `step` or what the guard says."""
    body = {"code": code, "timeout_s": timeout_s, "when": when}
    answer: dict[str, Any] = ask(place, pid, "POST", "/v1/eval", body, timeout_s + 30.0)
    return answer


def answer(place: Place, pid: int, *words: str) -> dict[str, Any]:
    """What a command says, as JSON."""
    done = run_probe(place, str(pid), *words, "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def wait_for_names(place: Place, pid: int) -> None:
    """Until the agent knows the modules of the model: from then on steps can be sampled."""
    ready = "__import__('probe.job.agent.lifecycle', fromlist=['_']).agent_here().instruments.names.ready"
    deadline = time.monotonic() + PATIENCE_S
    while evaluate(place, pid, ready, when="now")["value"] != "True":
        assert time.monotonic() < deadline, "the model's modules never became known"
        time.sleep(0.01)


def query(place: Place, endpoint: object, sql: str) -> list[list[Any]]:
    """Rows of a query. Without a server they are read in this process, with the code of a server's worker:
    a server for one question takes two seconds of processor time."""
    names = {table.full_name for table in mentioned(sql)}
    if place.server_pid() is None and names and not names & BY_SERVER:
        return read(place, endpoint, sql, names)
    done = run_probe(place, str(endpoint), "query", "--format", "json", "--limit", "1000000", sql)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert not answer["truncated"]
    rows: list[list[Any]] = answer["rows"]
    return rows


def read(place: Place, endpoint: object, sql: str, names: set[str]) -> list[list[Any]]:
    """The rows, by the statements and views of a query worker."""
    registry = Registry(place.directory)
    idle: Any = SimpleNamespace(registry=registry, sealer=SimpleNamespace(failures={}))
    nobody: Any = None
    request = queries._own_request(idle, registry.resolve(str(endpoint)), names, nobody)
    limits = {"sql": sql, "limit": 1_000_000, "timeout_s": PATIENCE_S, "asked_s": PATIENCE_S}
    connection = Worker(nobody, QUERY_BYTES, nobody).new_database()
    try:
        answer = json.loads(Query({**request, **limits}).run(connection))
    finally:
        connection.close()
    assert not answer["truncated"]
    rows: list[list[Any]] = answer["rows"]
    return rows


def listed(place: Place) -> list[dict[str, Any]]:
    """Everything that `probe ps --all` lists, oldest first."""
    done = run_probe(place, "ps", "--all", "--format", "json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["processes"]
    return sorted(found, key=lambda process: process["started_ns"])


def states(place: Place) -> dict[int, str]:
    """State of every process that `probe ps --all` lists, by pid."""
    return {process["pid"]: process["state"] for process in listed(place)}


def recorded(place: Place) -> list[Meta]:
    """What is written down about every process that had an agent."""
    return [Meta.read(folder) for folder in places.process_folders(place.directory)]


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    """A program's result without what no two runs share."""
    return {name: value for name, value in result.items() if name not in TIMES}


@contextmanager
def jobs(place: Place, *commands: Sequence[str], watched: bool = True, **environ: str) -> Iterator[list[Job]]:
    """Several programs at once, started together; killed at the end of the block."""
    with ExitStack() as stack:
        environment = place.watched(**environ) if watched else place.environ(**environ)
        started = []
        for command in commands:
            job = Job(*command, environ=environment, folder=place.directory)
            stack.callback(job.kill)
            started.append(job)
        yield started


def tell(job: Job, line: str = "") -> None:
    """One line on the program's stdin."""
    stream = job._process.stdin
    assert stream is not None
    stream.write(line.encode() + b"\n")
    stream.flush()


def plain_and_watched(place: Place, *command: str, **environ: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results of a program without probe and with it, run side by side; both end with exit code 0 and
    say the same on stderr."""
    with (
        jobs(place, command, watched=False) as [plain],
        jobs(place, command, watched=True, **environ) as [watched],
    ):
        results = (without_times(plain.result()), without_times(watched.result()))
        assert plain.let_go() == 0, plain.errors()
        assert watched.let_go() == 0, watched.errors()
        assert watched.errors() == plain.errors()
    return results


def kill_server(place: Place) -> int:
    """SIGKILL for the server of this place, which runs or is being started; its pid."""
    place.start_server()
    pid = place.server_pid()
    assert pid is not None, "no server"
    os.kill(pid, signal.SIGKILL)
    return pid


def descriptors(pid: int) -> list[str]:
    """What the open descriptors of a process lead to, without the numbers that differ each time."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        found.append(re.sub(r":\[\d+\]|(?<=/stderr)-.*", "", target))
    return sorted(found)


def accepts(place: Place, pid: int) -> bool:
    """Whether anybody answers on the control socket of `pid`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(str(places.agent_socket(place.directory, pid))) == 0


def program(name: str) -> str:
    """Path of a program, for messages that name it."""
    return str(PROGRAMS / f"{name}.py")
