"""Removes secrets from the contents of a bundle: facts, journals, texts, and the texts in segments.

Most of it was redacted when it was recorded (`base/redaction`). A bundle leaves the host, so everything is
checked again, by the rules of this version. Runs in the client's process; duckdb in functions.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.base import redaction
from probe.recording import places
from probe.recording.journal import Journal, read_payloads, record_of

if TYPE_CHECKING:
    import duckdb

DAMAGE = "damage"
"""Name of the record about damage that the server writes, too."""


@functools.lru_cache(maxsize=1 << 16)
def text(value: str) -> str:
    """A text without secrets. Cached: names occur in thousands of rows."""
    return redaction.redact(value)


def lines(value: str) -> str:
    """The same for a text of many lines, each of which is checked on its own."""
    return "\n".join(map(redaction.redact, value.split("\n")))


def plain(value: Any, name: str = "") -> Any:
    """JSON without secrets: texts under a secret name, and anything that is secret by its shape or key. The
    value of a fact (`name`, `value`) is judged by the fact's name."""
    if isinstance(value, str):
        return redaction.REDACTED if value and redaction.secret_name(name) else text(value)
    if isinstance(value, dict):
        told = value.get("name")
        named = {"value": told} if isinstance(told, str) else {}
        return {key: plain(one, str(named.get(key, key))) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, name) for one in value]
    return value


def journals(process: Path, target: Path) -> list[str]:
    """Copy both journals of a recording without secrets; returns notes about what could not be copied.

    `target` has the same name as `process`: a record's checksum covers the name."""
    notes: list[str] = []
    for path, copy in zip(places.journals(process), places.journals(target), strict=True):
        payloads, holes = read_payloads(path)
        if not payloads and not holes:
            continue
        journal = Journal(copy)
        try:
            records = [record for payload in payloads if (record := record_of(payload)) is not None]
            # The hole at the end of the journal of a living process is a record that is being written.
            records += [{"event": DAMAGE, "what": hole.said_of(path)} for hole in holes if not hole.torn]
            refused = sum(not journal.append(plain(record)) for record in records)
        finally:
            journal.close()
        if refused:
            notes.append(f"{refused} records of {path.name} do not fit into its copy")
    return notes


def changed_texts(connection: duckdb.DuckDBPyConnection, file: Path) -> dict[str, dict[str, str]]:
    """The secrets in the texts of a segment, by column, with the replacement of each; empty without any."""
    columns = text_columns(connection, file)
    if not columns:
        return {}
    lists = ", ".join(f"list(DISTINCT {_name(column)})" for column in columns)
    source = f"read_parquet({_quoted(str(file))}, hive_partitioning = false)"
    row = connection.execute(f"SELECT {lists} FROM {source}").fetchone() or ()
    return changes(dict(zip(columns, row, strict=True)))


def text_columns(connection: duckdb.DuckDBPyConnection, file: Path) -> list[str]:
    """The columns of a segment that hold texts."""
    source = f"read_parquet({_quoted(str(file))}, hive_partitioning = false)"
    described = connection.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
    return [str(row[0]) for row in described if row[1] == "VARCHAR"]


def changes(texts: Mapping[str, Iterable[str] | None]) -> dict[str, dict[str, str]]:
    """The secrets among the texts of some columns, with the replacement of each."""
    found: dict[str, dict[str, str]] = {}
    for column, values in texts.items():
        cleaned = {value: plain(value, column) for value in values or ()}
        different = {before: after for before, after in cleaned.items() if before != after}
        if different:
            found[column] = different
    return found


def older_rows(connection: duckdb.DuckDBPyConnection, file: Path, since: int) -> tuple[int, int]:
    """How many rows of a segment are before step `since`, and how many it has."""
    row = connection.execute(
        f"SELECT count(*) FILTER (step < {int(since)}), count(*)"
        f" FROM read_parquet({_quoted(str(file))}, hive_partitioning = false)"
    ).fetchone()
    return (int(row[0]), int(row[1])) if row else (0, 0)


def without(
    connection: duckdb.DuckDBPyConnection, file: Path, texts: dict[str, dict[str, str]], since: int | None
) -> str:
    """A query for the rows of a segment with those texts replaced, from step `since` on."""
    replaced = []
    for number, (column, changes) in enumerate(texts.items()):
        kind = json.dumps("MAP(VARCHAR, VARCHAR)")
        variable = f"probe_clean_{number}"
        connection.execute(f"SET VARIABLE {variable} = from_json(?, ?)", [json.dumps(changes), kind])
        name = _name(column)
        replaced.append(f"coalesce(getvariable('{variable}')[{name}], {name}) AS {name}")
    chosen = f"* REPLACE ({', '.join(replaced)})" if replaced else "*"
    where = "" if since is None else f" WHERE step IS NULL OR step >= {int(since)}"
    return f"SELECT {chosen} FROM read_parquet({_quoted(str(file))}, hive_partitioning = false){where}"


def log_lines(path: Path, words: Iterable[str], most_bytes: int) -> str:
    """The last lines of a server's log that contain one of the words, without secrets."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 16 * most_bytes))
            data = file.read(16 * most_bytes)
    except OSError:
        return ""
    wanted = tuple(words)
    told = data.decode("utf-8", "replace").splitlines()
    kept = [line for line in told if any(map(line.__contains__, wanted))]
    return lines("\n".join(kept))[-most_bytes:]


def _name(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
