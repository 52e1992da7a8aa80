"""The server of a private place, and recorded processes without torch, for tests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE_S, ROOT, SERVER, Place, wait_for_end
from probe.base import wire
from probe.base.settings import Settings
from probe.boot import launch
from probe.recording import checked, places, segments
from probe.recording.recording import Meta
from probe.server.recordings import end_record


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`; fails when there is none in all patience."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"did not come about: {what}")


class Writer:
    """A recorded process; see writer.py. `tell` sends a command and waits for its answer."""

    def __init__(self, place: Place, wanted: dict[str, Any], **environ: str) -> None:
        self.place = place
        self.process = subprocess.Popen(
            [sys.executable, "-S", str(Path(__file__).with_name("writer.py")), json.dumps(wanted)],
            env=place.environ(PYTHONPATH=str(ROOT), **environ),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        self.pid = self.process.pid
        word, folder = self._line().split(" ", 1)
        assert word == "ready"
        self.folder = Path(folder)

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        assert line, "the writer ended"
        return line

    def tell(self, command: str) -> str:
        """Send one command; its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self._line()

    def steps(self) -> int:
        """Steps written so far."""
        return int(self.tell("write 0").split()[1])

    def meta(self) -> dict[str, Any]:
        """The facts in meta.json."""
        return checked.read_sealed(self.folder / "meta.json")

    def rings(self) -> Path:
        """Folder of the rings."""
        return Path(self.meta()["rings"])

    def segments(self, table: str) -> list[segments.Segment]:
        """The sealed files of a table."""
        return segments.listing(places.segments_folder(self.folder, table, self.meta()["rank"]), self.pid)

    def sealed(self) -> bool:
        """Whether it has ended and all its rows are in segments."""
        return end_record.is_sealed(self.folder, Meta.read(self.folder))

    def exit(self) -> None:
        """Close the recording and end, as a job that is done."""
        assert self.tell("exit") == "closed"
        self.process.wait(PATIENCE_S)

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class Beside:
    """The server of a place."""

    def __init__(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        self.place = place
        self.directory = place.directory
        self._monkeypatch = monkeypatch
        for name in [name for name in os.environ if name.startswith("PROBE")]:
            monkeypatch.delenv(name)
        self.set(PROBE_DIR=str(place.directory), PROBE_RINGS_DIR=str(place.rings), **SERVER)
        self.set(PROBE_DRAIN_INTERVAL_S="0.1", PROBE_QUERY_TIMEOUT_S="110")

    def set(self, **environ: str) -> None:
        """Settings for the next start."""
        for name, value in environ.items():
            self._monkeypatch.setenv(name, value)

    def start(self, **environ: str) -> int:
        """See that the server runs; its pid."""
        self.set(**environ)
        launch.ensure_server(self.directory, Settings(), wait_s=PATIENCE_S)
        return int(self.call("GET", "/v1/health")["pid"])

    def call(self, method: str, target: str, body: object = None, timeout_s: float = PATIENCE_S) -> Any:
        """One request on the unix socket; raises the `ProbeError` that is answered."""
        return wire.call(places.server_socket(self.directory), method, target, body, timeout_s=timeout_s)

    def text(self, target: str, accept: str = "*/*") -> tuple[int, str, str]:
        """(status, content type, text) of what is no JSON."""
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_S)
        connection.sock = wire.connect_unix(places.server_socket(self.directory), PATIENCE_S)
        with contextlib.closing(connection):
            connection.request("GET", target, headers={"Accept": accept})
            answer = connection.getresponse()
            return answer.status, answer.headers["content-type"], answer.read().decode()

    def query(self, endpoint: object, sql: str, **more: object) -> dict[str, Any]:
        """Answer of `POST /v1/query`."""
        body = {"endpoint": str(endpoint), "sql": sql, **more}
        found: dict[str, Any] = self.call("POST", "/v1/query", body)
        return found

    def rows(self, endpoint: object, sql: str, **more: object) -> list[list[Any]]:
        """Rows of a query."""
        found: list[list[Any]] = self.query(endpoint, sql, **more)["rows"]
        return found

    def states(self) -> dict[int, str]:
        """State by pid."""
        return {row["pid"]: row["state"] for row in self.call("GET", "/v1/processes?all=1")["processes"]}

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        pid = self.place.server_pid()
        assert pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        assert wait_for_end(pid, PATIENCE_S)

    def log(self) -> str:
        """What the server logged."""
        return (self.directory / "server.log").read_text()
