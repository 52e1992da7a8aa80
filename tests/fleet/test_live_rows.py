"""Questions that name runs that live: each of their rows is there once, shipped or not, or a note says whose
are missing."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archive.made import META, put_process
from archive.reading import read
from harness import PATIENCE_S
from probe.archive import shipping
from probe.archive.compaction import compact
from probe.archive.store import FolderStore
from probe.archive.throttle import Pace
from probe.client import live_rows
from probe.recording.tables import BY_NAME, Table
from probe_cli.main import run as run_command
from ranks import free_port
from server.beside import Beside, Writer, until

pytestmark = pytest.mark.usefixtures("forked_workers")
RUN = "gpt-1"
SUMMARY = (
    "SELECT rank, count(*), count(DISTINCT step), max(step) FROM python.steps GROUP BY rank ORDER BY rank"
)


class Asking:
    """The command, on another machine unless PROBE_DIR is that of the server."""

    def __init__(self, store: FolderStore, **environ: str) -> None:
        self._store = store
        self._environ = {"HOME": "/nonexistent", **environ}

    def __call__(self, sql: str, *words: str) -> tuple[list[list[Any]], str]:
        """Rows, and what stderr says."""
        told, notes = self.told("query", sql, "--limit", "100000", *words)
        return told["rows"], notes

    def told(self, *words: str) -> tuple[Any, str]:
        """The JSON of an answer, and what stderr says."""
        out, err = io.StringIO(), io.StringIO()
        line = ["fleet", self._store.url, *words, "--format", "json"]
        assert run_command(line, self._environ, out, err, io.StringIO()) == 0, err.getvalue()
        return json.loads(out.getvalue()), err.getvalue()


def first_row(told: Any) -> dict[str, Any]:
    """The first row of an answer by the names of its columns."""
    return dict(zip([column["name"] for column in told["columns"]], told["rows"][0], strict=True))


def ship(beside: Beside, store: FolderStore, writer: Writer) -> None:
    """Ship what is sealed now."""
    shipping.Shipper(beside.directory, store, Pace(0, 1.0, threading.Event())).ship(writer.folder)


def more(beside: Beside, writer: Writer, steps: int) -> None:
    """More rows of each kind, which the server seals."""
    before = len(writer.segments("python.steps"))
    writer.tell(f"write {steps}")
    writer.tell("strange")
    writer.tell("log accuracy 0.5")
    writer.tell(f"own notes note VARCHAR about-{steps}")
    beside.call("GET", f"/v1/backtrace?endpoint={writer.pid}")
    until(lambda: len(writer.segments("python.steps")) > before, "another segment")
    until(lambda: writer.segments("user.notes"), "a segment of its own table")


def everything(table: Table) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    return f"SELECT {names}, run, attempt, rank, pid FROM {table.full_name}"


def test_each_row_of_a_live_run_is_there_once_and_what_is_missing_is_named(
    beside: Beside, record: Callable[..., Writer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual_s = live_rows.LISTED_S
    for limit in ("LISTED_S", "ROWS_S"):  # what comes late is left out, and said to be missing
        monkeypatch.setattr(live_rows, limit, PATIENCE_S)
    store = FolderStore(tmp_path / "archive")
    address = f"127.0.0.1:{free_port()}"
    server = beside.start(PROBE_LISTEN=address, PROBE_SEAL_INTERVAL_S="0.1")
    writer = record(job="gpt", run=RUN, world_size=2)
    other = record(job="gpt", run=RUN, rank=1, world_size=2)
    other.tell("write 12")
    until(lambda: other.segments("python.steps"), "a segment of the other rank")
    ship(beside, store, other)
    other.tell("write 5")
    for steps in (40, 30, 20):  # three files, so that there is something to merge
        more(beside, writer, steps)
        ship(beside, store, writer)
    asked = Asking(
        store, PROBE_DIR=str(tmp_path / "elsewhere"), PROBE_TOKEN_FILE=str(beside.directory / "token")
    )
    shipped, notes = asked(SUMMARY, "--since", "1d")
    assert shipped[0][1] + shipped[1][1] == len(read(store, "python.steps"))
    assert "not ended when they were last shipped" in notes and "gpt-1 on here" in notes
    more(beside, writer, 25)  # sealed, not shipped
    writer.tell("write 7")  # perhaps not sealed

    def check(*tables: str) -> None:
        """The answer is that of the run's own server."""
        words = "--server", address
        rows, notes = asked(SUMMARY, *words)
        assert rows == beside.rows(RUN, SUMMARY) != shipped, notes
        assert [row[1] for row in rows] == [row[2] for row in rows] == [row[3] + 1 for row in rows]
        for name in tables:
            sql = everything(BY_NAME[name])
            rows, notes = asked(sql, *words)
            assert sorted(map(repr, rows)) == sorted(map(repr, beside.rows(RUN, sql, limit=100_000)))
            assert rows and "missing" not in notes

    check("python.steps", "python.torch_trace", "python.stacks")
    own, _ = asked("SELECT job, run, host, pid, note FROM user.notes ORDER BY note", "--server", address)
    assert own == [["gpt", "gpt-1", "here", writer.pid, f"about-{steps}"] for steps in (20, 25, 30, 40)]
    assert compact(store, grace_s=0).made
    ship(beside, store, writer)  # what was written after the mergers
    shipped, _ = asked(SUMMARY)
    writer.tell("write 9")
    check("python.stacks")
    words = "--server", address
    steps = int(beside.rows(RUN, "SELECT max(step) + 1 FROM python.steps")[0][0])
    before, now = (first_row(asked.told("runs", *given)[0]) for given in ((), words))
    assert before["steps"] < now["steps"] == steps and now["state"] == "running", (before, now)
    told, notes = asked.told("hosts", *words)
    assert first_row(told)["host"] == "here" and "last shipped" not in notes
    both, notes = asked.told("compare", RUN, RUN, *words)
    assert [one["steps"]["last"] for one in both["runs"]] == [steps - 1] * 2, (both, notes)
    for given, missing in ((words, False), ((), True)):
        _, notes = asked.told("diagnose", RUN, "--recipe", "throughput-drop", *given)
        assert ("not ended when they were last shipped" in notes) == missing, notes
        assert "newer rows" not in notes

    rows, notes = asked(SUMMARY, "--live")
    assert rows == shipped and "no server was named" in notes and "gpt-1 on here" in notes
    beside_it = Asking(store, PROBE_DIR=str(beside.directory))
    assert beside_it(SUMMARY, "--live")[0] == beside.rows(RUN, SUMMARY)

    monkeypatch.setattr(live_rows, "LISTED_S", usual_s)
    os.kill(server, signal.SIGSTOP)
    try:
        rows, notes = asked(SUMMARY, "--server", address)
    finally:
        os.kill(server, signal.SIGCONT)
    assert rows == shipped
    assert f"no answer from http://{address} within {usual_s:g} s" in notes and "gpt-1 on here" in notes
    beside.kill()
    rows, notes = asked(SUMMARY, "--server", address)
    assert rows == shipped
    assert f"no server answers at http://{address}" in notes
    assert "the newest rows are missing" in notes and "gpt-1 on here" in notes
    beside.start()
    writer.exit()
    other.exit()


def test_an_address_in_an_archive_is_never_asked(tmp_path: Path) -> None:
    """Whoever can write to an archive would get the token."""
    store = FolderStore(tmp_path / "archive")
    token = tmp_path / "token"
    token.touch(0o600)
    token.write_text("t" * 43)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as named:
        listener.setblocking(False)
        url = f"127.0.0.1:{listener.getsockname()[1]}"
        meta = replace(META, host=url)
        put_process(store, tmp_path, meta, 1, state="running", pid=7)
        asked = Asking(store, PROBE_DIR=str(tmp_path / "dir"), PROBE_TOKEN_FILE=str(token))
        _, notes = asked(SUMMARY, "--server", f"127.0.0.1:{named.getsockname()[1]}")
        assert f"r1 on {url}" in notes and "missing" in notes
        connection, _ = named.accept()
        connection.close()
        try:
            listener.accept()
        except BlockingIOError:
            return
        raise AssertionError("it was asked")
