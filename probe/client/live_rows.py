"""Fetches the newest rows of living runs, for a query over an archive that does not have them yet.

    servers, notes = named_servers(["node1:7130"], settings)
    sent = LiveRows(servers).rows(tails)        # a `fleet.unsealed.Source`

Only servers that the user named receive requests: those on the command line and in PROBE_PEERS, and the one
of this PROBE_DIR. Addresses never come from an archive's rows: whoever can write to the archive would choose
who receives the token. Each server lists its processes; a process's id shows whether it is in the archive.
Secrets are removed from texts, as when they are shipped.

Runs in the client's process: one daemon thread for each server, so that one that hangs does not delay the
others. httpx and duckdb in functions.
"""

from __future__ import annotations

import functools
import json
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from probe.archive import typed_rows
from probe.archive.dataset import IDENTITY, process_id_of
from probe.base import clock
from probe.base.errors import ProbeError, ServerUnavailable, SettingInvalid, TooMany, UsageError
from probe.base.settings import Settings
from probe.bundle import cleaning
from probe.client import endpoints
from probe.client.answer import Answer
from probe.client.endpoints import Address, is_loopback
from probe.client.transport import Transport, UnixTransport, open_transport
from probe.fleet.unsealed import Sent, Tail, named
from probe.recording import places
from probe.recording.tables import BY_NAME, Column

LISTED_S = 2.0
"""A server that has not listed its processes within this time is left out."""
ROWS_S = 10.0
"""Time in which a server sends the rows of all its processes."""
_MADE_S = 5.0
"""Further time to write them to files: 15 µs of processor time for a row of 14 columns."""
MOST_SERVERS = 256
MOST_ROWS = 500_000
"""Rows of all tails together; each may have the same share."""
_AGAIN_S = 0.2
"""Wait before a request that was refused with 429 is repeated."""
_SPARE_S = 0.1
"""Added to the wait for a server's thread: the request's own timeout has the better error message."""
_LARGEST_PEERS_BYTES = 1 << 20
_MEMORY_BYTES = 1 << 30
_TYPES = ("BIGINT", "DOUBLE", "BOOLEAN", "VARCHAR")
"""Types of recorded columns."""
_ENDED = ("finished", "failed", "dead")
_V = TypeVar("_V")
_Listed = dict[str, dict[str, Any]]
"""Rows of `GET /v1/processes` by the process's id."""

Servers = dict[str, Callable[[], Transport]]
"""How to reach each server, by the name that notes give it."""


class _Found(NamedTuple):
    """A process on a server, and its tails."""

    pid: int
    tails: list[Tail]


def named_servers(given: Sequence[str], settings: Settings) -> tuple[Servers, list[str]]:
    """The servers that the user named, and notes on those that are skipped. Raises `UsageError`."""
    found: Servers = {}
    notes: list[str] = []
    beside = places.server_socket(places.home(settings))
    if beside.exists():
        found[str(beside)] = functools.partial(UnixTransport, beside)
    for text in given:
        address = _address(text, settings)
        found[address.url] = functools.partial(open_transport, address, settings)
    for text in _peers(settings):
        address = _address(text, settings)
        host = address.url.partition("://")[2].rpartition(":")[0]
        if address.url.startswith("http:") and not (settings.insecure_no_tls or is_loopback(host)):
            notes.append(f"{address.url} is skipped: it has no TLS, and PROBE_INSECURE_NO_TLS is not set")
            continue
        found[address.url] = functools.partial(open_transport, address, settings)
    if len(found) > MOST_SERVERS:
        notes.append(f"only the first {MOST_SERVERS} of {len(found):,} servers are queried")
    return dict(list(found.items())[:MOST_SERVERS]), notes


def _address(text: str, settings: Settings) -> Address:
    address = endpoints.parse(text, settings) if ":" in text and ".tar." not in text else Address(text)
    if not address.url or address.endpoint:
        raise UsageError(f"{text!r} is not a server address", hint="Write HOST:PORT, or https://HOST:PORT.")
    return address


def _peers(settings: Settings) -> list[str]:
    """The servers in PROBE_PEERS, as they are written there."""
    if not settings.peers:
        return []
    try:
        with open(settings.peers, encoding="utf-8", errors="replace") as file:
            lines = file.read(_LARGEST_PEERS_BYTES).splitlines()
    except OSError as error:
        raise SettingInvalid(f"the file in PROBE_PEERS cannot be read: {error.strerror}") from None
    return list(filter(None, (line.partition("#")[0].strip() for line in lines)))


class LiveRows:
    """Fetches tails from these servers. The lists of their processes are fetched once."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._transports: dict[str, Transport] = {}
        self._listed: dict[str, _Listed | ProbeError] | None = None

    def _processes(self) -> tuple[dict[str, tuple[str, dict[str, Any]]], list[str]]:
        """The processes of all servers by id, each with the server's name; and notes on silent servers."""
        if self._listed is None:
            self._listed = _at_once(self._servers, self._list, LISTED_S)
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        notes = []
        for name, one in self._listed.items():
            if isinstance(one, ProbeError):
                notes.append(_about(name, one))
            else:
                found = {**{process: (name, row) for process, row in one.items()}, **found}
        return found, notes

    def _lost(self, what: str, rows: Collection[Mapping[str, Any]]) -> list[str]:
        if not rows:
            return []
        why = "none of the queried servers has these processes" if self._servers else (
            "no server was named: --server HOST:PORT, or PROBE_PEERS"
        )
        return [f"{what}, {why}: {named(rows)}"]

    def states(self, living: Sequence[Mapping[str, Any]]) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """See `Source`."""
        listed, notes = self._processes()
        found: dict[str, dict[str, Any]] = {}
        lost = []
        for row in living:
            known = listed.get(str(row["process"]))
            if known is None:
                lost.append(row)
            else:
                found[str(row["process"])] = _newer(row, known[1])
        return found, [*notes, *self._lost("states are as they were last shipped", lost)]

    def rows(self, wanted: Sequence[Tail]) -> Sent:
        """See `Source`."""
        listed, notes = self._processes()
        files: list[tuple[Tail, bytes]] = []
        partly: set[str] = set()
        where: dict[str, dict[str, _Found]] = {}
        lost: dict[str, Mapping[str, Any]] = {}
        for tail in wanted:
            process = str(tail.process["process"])
            if process not in listed:
                lost[process] = tail.process
                continue
            name, row = listed[process]
            where.setdefault(name, {}).setdefault(process, _Found(row["pid"], [])).tails.append(tail)
        limit = max(1, MOST_ROWS // max(1, len(wanted)))
        answers = _at_once(
            where, lambda name: self._rows(name, list(where[name].values()), limit), ROWS_S + _MADE_S
        )
        for name, sent in answers.items():
            if isinstance(sent, ProbeError):
                rows = [tail.process for one in where[name].values() for tail in one.tails]
                notes.append(f"{_about(name, sent)}; the newest rows are missing: {named(rows)}")
                partly |= {str(row["process"]) for row in rows}
            else:
                files += sent.files
                notes += sent.notes
                partly |= sent.partly
        notes += self._lost("the newest rows are missing", list(lost.values()))
        return Sent(files, list(dict.fromkeys(notes)), partly | set(lost))

    def _list(self, name: str) -> _Listed:
        """The processes of a server by id; of several with one pid the newest, which the pid means there."""
        transport = self._transports[name] = self._servers[name]()
        answer = transport.request("GET", "/v1/processes", None, LISTED_S)
        try:
            rows = sorted((int(one["started_ns"]), int(one["pid"]), str(one["host"]), number)
                          for number, one in enumerate(answer["processes"]))
            newest = {pid: (process_id_of(cleaning.text(host), pid, t_ns), place)
                      for t_ns, pid, host, place in rows}
            return {process: {**answer["processes"][place], "pid": pid}
                    for pid, (process, place) in newest.items()}
        except (KeyError, TypeError, ValueError):
            raise ServerUnavailable(f"{name} sent no valid list of processes") from None

    def _rows(self, name: str, found: Sequence[_Found], limit: int) -> Sent:
        """The rows of a server's processes; refused requests become notes."""
        files: list[tuple[Tail, bytes]] = []
        notes: list[str] = []
        partly: set[str] = set()
        until = time.monotonic() + ROWS_S
        for pid, tails in found:
            for tail in self._not_empty(name, pid, tails, until):
                who = f"{named([tail.process])}, {tail.table}"
                try:
                    answer = self._query(name, pid, tail.sql(pid), limit, until)
                except ProbeError as error:
                    notes.append(f"{who}: its newest rows are missing: {error.message}")
                    partly.add(str(tail.process["process"]))
                    continue
                notes += [f"{who}: {note}" for note in answer.notes]
                if answer.truncated:
                    notes.append(f"{who}: only the first {len(answer):,} of its newest rows are used")
                    partly.add(str(tail.process["process"]))
                if answer.rows:
                    files.append((tail, _file(answer, tail)))
        return Sent(files, notes, partly)

    def _not_empty(self, name: str, pid: int, tails: Sequence[Tail], until: float) -> Sequence[Tail]:
        """The tails of a process that have rows, by one statement; all of them if the server cannot tell."""
        sql = " UNION ALL ".join(
            f"SELECT {place} AS place WHERE EXISTS (SELECT 1 FROM ({tail.sql(pid)}))"
            for place, tail in enumerate(tails)
        )
        try:
            return [tails[place] for (place,) in self._query(name, pid, sql, len(tails), until).rows]
        except ProbeError:  # it does not know one of the tables: the single queries will show which
            return tails

    def _query(self, name: str, pid: int, sql: str, limit: int, until: float) -> Answer:
        """A server's answer to a statement; waits and retries when it refuses with 429."""
        while True:
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise ServerUnavailable(f"{name} has not sent all rows within {ROWS_S:g} s")
            body = {"endpoint": str(pid), "sql": sql, "limit": limit, "scope": "host", "timeout_s": left_s}
            try:
                return Answer.parse(self._transports[name].request("POST", "/v1/query", body, left_s))
            except TooMany:
                time.sleep(_AGAIN_S)


def _newer(row: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """A server's current values of a process, as columns of archive.processes; unknown ones are left out."""
    now_ns = clock.wall_ns()
    ended = told.get("state") in _ENDED and type(told.get("ended_ns")) is int
    found: dict[str, Any] = {"updated_ns": now_ns}
    if ended:
        found |= {name: told.get(name) for name in ("state", "ended_ns", "exit_status")}
        found["how"] = cleaning.text(str(told.get("how") or "")) or None
    if type(step := told.get("step")) is int:
        found["steps"] = max(step + 1, row["steps"] or 0)
    if isinstance(seen_s := told.get("last_seen_s"), (int, float)):
        found["last_t_ns"] = max(now_ns - int(seen_s * 1e9), row["last_t_ns"] or 0)
    return found


def _about(name: str, error: ProbeError) -> str:
    """An error's message, with the server's name."""
    return error.message if name in error.message else f"{name}: {error.message}"


def _file(answer: Answer, tail: Tail) -> bytes:
    """The rows as a Parquet file with the columns that all files of an archive have, without secrets."""
    from probe.archive.rows import copy
    from probe.confined.reading_sql import database

    rows = answer.rows
    known = BY_NAME.get(tail.table)
    if known is not None and known.source == "journal":  # few rows, whose own names show what is secret
        rows = [list(cleaning.plain(dict(zip(answer.names, row, strict=True))).values()) for row in rows]
    columns = [Column(name, kind if kind in _TYPES else "VARCHAR", "", "") for name, kind in answer.columns]
    own = {name.lower() for name in answer.names}
    added = [column for column in IDENTITY if column.name not in own]
    values = [tail.process[column.name] for column in added]
    told = [Column(one.name, one.type, "", "") for one in added]
    with tempfile.TemporaryDirectory(prefix="probe-") as folder, database(_MEMORY_BYTES) as connection:
        made, clean = Path(folder, "made.parquet"), Path(folder, "clean.parquet")
        connection.execute(f"CREATE TABLE added AS {typed_rows.query(told)}", [json.dumps([values])])
        connection.execute(f"CREATE TABLE live AS {typed_rows.query(columns)}", [json.dumps(rows)])
        copy(connection, "SELECT added.*, live.* FROM added, live", made)
        secrets = cleaning.changed_texts(connection, made)
        if secrets:
            copy(connection, cleaning.without(connection, made, secrets, None), clean)
        return (clean if secrets else made).read_bytes()


def _at_once(
    names: Collection[str], ask: Callable[[str], _V], patience_s: float
) -> dict[str, _V | ProbeError]:
    """The answer of each server, requested on a thread of its own, which is abandoned when it is late."""
    results: queue.SimpleQueue[tuple[str, _V | ProbeError]] = queue.SimpleQueue()

    def run(name: str) -> None:
        found: _V | ProbeError
        try:
            found = ask(name)
        except ProbeError as error:
            found = error
        results.put((name, found))

    for name in names:
        threading.Thread(target=run, args=(name,), name="probe-live", daemon=True).start()
    found: dict[str, _V | ProbeError] = {
        name: ServerUnavailable(f"no answer from {name} within {patience_s:g} s") for name in names
    }
    until = time.monotonic() + patience_s + _SPARE_S
    for _ in names:
        try:
            name, one = results.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            break
        found[name] = one
    return found
