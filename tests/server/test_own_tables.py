"""Tables that jobs declare: read from rings and segments, over ranks that declare them differently, and never
trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness import PATIENCE_S
from probe.recording import checked, declared
from probe.recording.recording import Meta
from probe.server.sql.statements import Query
from probe.server.sql.worker import Worker
from server.beside import Beside, Writer, until

ALL = "SELECT rank, reward, other FROM user.scores ORDER BY rank, reward"
STEPS = [["x", "BIGINT", "", ""]]


def test_declared_tables_are_queried_over_ranks_before_and_after_they_are_sealed(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    ranks = [record(job="own", run="own", rank=rank, world_size=3) for rank in range(3)]
    ranks[0].tell("own scores reward DOUBLE 0.5")
    ranks[0].tell("own scores reward DOUBLE -1")
    ranks[0].tell("own notes what VARCHAR token=abcdefgh")
    ranks[1].tell("own scores other VARCHAR grün")
    ranks[2].tell("own scores reward VARCHAR text")
    beside.start(PROBE_SEAL_INTERVAL_S="3600")
    expected = [[0, -1.0, None], [0, 0.5, None], [1, None, "grün"]]
    other = f"user.scores of pid {ranks[2].pid} has columns of other types: left out"
    for ended in (False, True):
        if ended:
            rings = [one.rings() for one in ranks]
            for one in ranks:
                one.kill()
            until(lambda rings=rings: not any(folder.exists() for folder in rings), "sealed")
            assert ranks[0].segments("user.scores")
        answer = beside.query("own", ALL)
        assert (answer["rows"], answer["notes"]) == (expected, [other])
        assert beside.rows("own", "SELECT what FROM user.notes") == [["token=<redacted>"]]
        assert beside.rows(f"own/{1}", "SHOW TABLES")[-1][0] == "user.scores"
    counted = "SELECT table_name, rows_written, rows_sealed FROM probe.rings WHERE table_name LIKE 'user.%'"
    assert beside.rows("own/0", f"{counted} ORDER BY ALL") == [["user.notes", 1, 1], ["user.scores", 2, 2]]
    tables = beside.call("GET", "/v1/tables?endpoint=own%2F0")["tables"]
    assert [one["name"] for one in tables if one["name"].startswith("user.")] == ["user.scores", "user.notes"]
    assert tables[-1]["columns"][-1] == {"name": "what", "type": "VARCHAR", "unit": "s", "doc": "a value"}


def test_rows_of_another_host_bring_their_declaration(record: Callable[..., Writer]) -> None:
    here, there, odd = (record(job="own", run="own", rank=rank, world_size=3) for rank in range(3))
    here.tell("own scores reward DOUBLE 0.5")
    there.tell("own scores other VARCHAR grün")
    there.tell("own far x DOUBLE 7")
    odd.tell("own scores reward VARCHAR text")
    sql = f"SELECT (SELECT count(*) FROM user.far), * FROM ({ALL})"
    parts = [(f"host{one.pid}", run(one, sql=sql, room_bytes=1 << 20)) for one in (there, odd)]
    answer = json.loads(run(here, sql=sql, parts=parts))
    assert answer["rows"] == [[1, 0, 0.5, None], [1, 1, None, "grün"]]
    assert answer["notes"] == [f"user.scores of host host{odd.pid} has columns of other types: left out"]
    assert json.loads(run(here, sql="SHOW TABLES", parts=parts))["rows"][-1][0] == "user.scores"
    damaged = [("bad", parts[0][1].replace(b'"other"', b'"rank1"')), ("torn", parts[0][1][:99])]
    answer = json.loads(run(here, sql=ALL.replace(", other", ""), parts=damaged))
    assert answer["rows"] == [[0, 0.5], [1, None]] and "host torn cannot be read" in answer["notes"][0]


def run(writer: Writer, **request: Any) -> bytes:
    """A query worker's answer about one process."""
    meta = Meta.read(writer.folder)
    source = {name: getattr(meta, name) for name in ("rings", "run", "attempt", "rank", "pid", "started_ns")}
    sources = [{**source, "folder": str(writer.folder)}]
    limits = {"timeout_s": PATIENCE_S, "asked_s": PATIENCE_S, "limit": 100, "notes": [], "live": {}}
    nobody: Any = None
    connection = Worker(nobody, 256 << 20, nobody).new_database()
    try:
        return Query({"sources": sources, **limits, **request}).run(connection)
    finally:
        connection.close()


def test_a_damaged_declaration_costs_its_tables_and_nothing_else(
    beside: Beside, record: Callable[..., Writer]
) -> None:
    writer = record()
    writer.tell("write 3")
    writer.tell("own scores reward DOUBLE 0.5")
    file = writer.folder / declared.FILE
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"reward", b"rewarb"))
    beside.start()
    answer = beside.query(writer.pid, "SELECT count(*) FROM python.steps")
    assert answer["rows"] == [[3]] and "its own tables are left out" in answer["notes"][-1]
    file.write_bytes(whole)
    assert beside.rows(writer.pid, "SELECT reward FROM user.scores") == [[0.5]]


@pytest.mark.parametrize("described", [
    {}, ["scores"], [{}], [{"known": "python.steps"}], [{"name": 5, "doc": "", "columns": STEPS}],
    [{"name": "../x", "doc": "", "columns": STEPS}], [{"name": "x", "doc": "", "columns": []}],
    [{"name": "x", "doc": "", "columns": [["a\" int); --", "BIGINT", "", ""]]}],
    [{"name": "x", "doc": "", "columns": [["rank", "BIGINT", "", ""]]}],
    [{"name": "x", "doc": "", "columns": [["a", "BIGINT", "", ""], ["A", "DOUBLE", "", ""]]}],
    [{"name": "x", "doc": "", "columns": [["a", "MAP", "", ""]]}],
    [{"name": "x", "doc": "", "columns": [[f"a{n}", "BIGINT", "", ""] for n in range(41)]}],
    [{"name": "x", "doc": "", "columns": STEPS}, {"name": "x", "doc": "!", "columns": STEPS}],
    [{"name": f"x{n}", "doc": "", "columns": STEPS} for n in range(1000)],
], ids=lambda described: json.dumps(described)[:50])
def test_no_declaration_names_what_it_may_not(described: Any, tmp_path: Any) -> None:
    with pytest.raises(ValueError):
        declared.of_json(described)
    (tmp_path / declared.FILE).write_bytes(checked.sealed(declared.FILE, {"tables": described}))
    with pytest.raises(declared.RecordingError):
        declared.read(tmp_path)
