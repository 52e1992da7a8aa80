"""Collectives of jobs of two gloo ranks: what was called is on record, before it is over, come what may."""

from __future__ import annotations

import functools
import json
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness import PATIENCE_S, Place, run_probe
from ranks import Ranks, running_ranks

KINDS = {"all_to_all": {"all_to_all_single"}, "all_reduce": {"all_reduce", "all_reduce_coalesced"}}
"""What torch's recorder calls an operation, where that is not our name alone."""
Query = Callable[[str], list[dict[str, Any]]]


def rows_of(place: Place, name: str, sql: str) -> list[dict[str, Any]]:
    """Rows of a query over all ranks of a job."""
    done = run_probe(place, name, "query", "--format", "json", "--limit", "100000", sql)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    names = [column["name"] for column in answer["columns"]]
    return [dict(zip(names, row, strict=True)) for row in answer["rows"]]


def asking(place: Place, name: str) -> Query:
    """Ask a job again and again."""
    return functools.partial(rows_of, place, name)


class Held:
    """A job whose ranks have communicated in every way; all but rank 1 are now in an all_reduce."""

    def __init__(self, place: Place, ranks: Ranks, results: list[dict[str, Any]]) -> None:
        self.ranks = ranks
        self.results = results
        self.query = asking(place, ranks.name)


@pytest.fixture(scope="module")
def held() -> Iterator[Held]:
    place = Place()
    try:
        with running_ranks(place, 2, "collective_kinds", "--then", "hang") as ranks:
            yield Held(place, ranks, [job.result() for job in ranks.jobs])
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


def test_every_call_is_on_record_as_the_program_counted_it(held: Held) -> None:
    for rank, result in enumerate(held.results):
        rows = held.query(
            f"SELECT * FROM python.collectives WHERE rank = {rank} AND source = 'call'"
            " AND elements IS DISTINCT FROM 11 ORDER BY t_ns"
        )
        made = result["calls"]
        assert [row["op"] for row in rows] == [call[3] for call in made]
        for row, (_, group, seq, op, peer, elements, early, state) in zip(rows, made, strict=True):
            assert (row["pg"], row["seq"]) == (group, seq), row
            assert row["peer"] == peer, row
            assert elements is None or row["elements"] == elements, row
            assert row["asynchronous"] == early, row
            # One that nobody waited for is known to be complete only where torch's recorder said so since.
            assert row["state"] in ({"unknown", "done"} if state == "unknown" else {state}), row
            known = state == "done"
            assert (row["duration_s"] is not None) == known, row
            assert (row["wait_s"] is None) == (state == "unknown"), row
            assert row["bytes"] is None or elements is None or row["bytes"] == 4 * elements, op
            assert row["call_site"].partition(":")[0].endswith("collective_kinds.py"), row


def test_numbers_are_those_of_torch_and_the_same_on_every_rank(held: Held) -> None:
    """Also after sends and receives, of which the ranks make different numbers."""
    for rank, result in enumerate(held.results):
        rows = held.query(
            f"SELECT pg, seq, op FROM python.collectives WHERE rank = {rank} AND seq IS NOT NULL"
        )
        recorded = {(row["pg"], row["seq"]): row["op"] for row in rows}
        torchs = {(group, seq): op for group, seq, op in result["flight"]}
        assert len(torchs) > 20
        assert torchs.keys() <= recorded.keys()
        for place, op in torchs.items():
            assert recorded[place] in KINDS.get(op, {op})
    apart = held.query(
        "SELECT pg, seq FROM python.collectives WHERE seq IS NOT NULL GROUP BY ALL"
        " HAVING count(DISTINCT op) > 1"
    )
    assert apart == []


def test_a_group_tells_its_ranks(held: Held) -> None:
    rows = held.query("SELECT DISTINCT pg, ranks FROM python.collectives ORDER BY pg")
    assert [(row["pg"], row["ranks"]) for row in rows] == [("0", "0-1"), ("1", "0"), ("2", "1"), ("3", "0-1")]


def test_time_in_collectives_is_a_phase_and_the_phases_add_up(held: Held) -> None:
    rows = held.query("SELECT * FROM python.steps ORDER BY rank, step")
    assert [row["step"] for row in rows] == [0, 1, 2, 3] * 2
    for row in rows:
        assert row["comm_s"] > 0
        parts = ("data_s", "forward_s", "backward_s", "optimizer_s", "comm_s", "held_s", "other_s")
        assert all(row[part] is None or row[part] >= 0 for part in parts)
        total = sum(row[part] or 0.0 for part in parts)
        assert total == pytest.approx(row["wall_s"], rel=1e-6, abs=1e-7)


def test_a_rank_that_hangs_in_a_collective_has_it_on_record_as_pending(held: Held) -> None:
    """Last of this job: rank 0 is killed in the middle of it."""
    sql = (
        "SELECT rank, pg, seq, op, elements, duration_s, call_site FROM python.collectives"
        " WHERE state = 'pending'"
    )
    (row,) = held.query(sql)
    assert (row["rank"], row["pg"], row["op"], row["elements"]) == (0, "0", "all_reduce", 11)
    assert row["duration_s"] is None
    assert row["call_site"].endswith(" main")
    held.ranks[0].signal(signal.SIGKILL)
    assert held.ranks[0].wait() == -signal.SIGKILL
    assert held.query(sql) == [row]


def test_ranks_that_disagree_are_both_on_record_when_the_backend_has_ended_them(place: Place) -> None:
    with running_ranks(place, 2, "collective_kinds", "--then", "mismatch") as ranks:
        for job in ranks.jobs:
            job.result()
        assert all(job.wait() != 0 for job in ranks.jobs)
        rows = rows_of(
            place, ranks.name,
            "SELECT rank, op, seq, elements, state, call_site FROM python.collectives"
            " WHERE elements IN (7, 100000) AND asynchronous = false ORDER BY rank",
        )
    assert [(row["rank"], row["op"], row["elements"]) for row in rows] == [
        (0, "all_reduce", 7), (1, "all_reduce", 100_000),
    ]
    assert rows[0]["seq"] == rows[1]["seq"]
    assert rows[0]["call_site"] == rows[1]["call_site"]
    assert all(row["state"] in ("pending", "failed") for row in rows)


@pytest.mark.parametrize(
    "way", ["ddp", *(pytest.param(way, marks=pytest.mark.campaign) for way in ("reduce", "fsdp"))]
)
def test_nothing_is_communicated_that_is_not_the_jobs_and_nothing_changes(place: Place, way: str) -> None:
    """Every rank's collectives are the same in the same order, with and without; all are on record."""
    words = ("--way", way, "--steps", "25", "--second-group", "--trace")
    entries = {"TORCH_FR_BUFFER_SIZE": "2000"}
    plain: list[dict[str, Any]] = []
    with running_ranks(place, 2, "parallel", *words, watched=False, **entries) as ranks:
        plain = [job.result() for job in ranks.jobs]
        assert [job.wait() for job in ranks.jobs] == [0, 0]
    with running_ranks(place, 2, "parallel", *words, "--hold", **entries) as ranks:
        watched = [job.result() for job in ranks.jobs]
        query = asking(place, ranks.name)
        for rank in (0, 1):
            for key in ("losses", "parameters_sha256", "sums", "flight", "counts"):
                assert watched[rank][key] == plain[rank][key], key
            assert len(plain[rank]["flight"]) > 40
            rows = until_all_are_there(query, rank, plain[rank]["flight"])
            sizes = {(entry[0], entry[1]): entry[3] for entry in plain[rank]["flight"]}
            for row in rows:
                expected = sizes[row["pg"], row["seq"]]
                assert row["shapes"] == ", ".join(str(shape) for shape in expected), row
                assert row["state"] == "done", row
            issued = {row["source"] for row in rows}
            assert issued == ({"call", "flight"} if way == "ddp" else {"call"})
        for job in ranks.jobs:
            assert job.let_go() == 0


def until_all_are_there(query: Query, rank: int, flight: list[list[Any]]) -> list[dict[str, Any]]:
    """All rows of one rank: torch's recorder is looked at now and then, on the agent's thread."""
    expected = sorted((entry[0], entry[1]) for entry in flight)
    sql = f"SELECT * FROM python.collectives WHERE rank = {rank} AND state != 'pending' ORDER BY pg, seq"
    deadline = time.monotonic() + PATIENCE_S
    while True:
        rows = query(sql)
        if sorted((row["pg"], row["seq"]) for row in rows) == expected:
            return rows
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    raise AssertionError(f"{len(rows)} rows are on record, of {len(expected)} collectives")


def until(
    query: Callable[[str], list[dict[str, Any]]], sql: str, right: Callable[[list[dict[str, Any]]], bool]
) -> list[dict[str, Any]]:
    """The rows of a query once they are right. The Flight Recorder is read now and then, and at the end."""
    deadline = time.monotonic() + PATIENCE_S
    while not right(rows := query(sql)):
        assert time.monotonic() < deadline, rows
        time.sleep(0.05)
    return rows


@pytest.mark.campaign
def test_a_rank_that_waits_for_another_has_the_collective_on_record_whoever_issued_it(place: Place) -> None:
    """DistributedDataParallel's are issued by C++ inside backward."""
    sql = "SELECT pg, seq, op FROM python.collectives WHERE rank = 0 AND state = 'pending'"
    with running_ranks(place, 2, "parallel", "--way", "ddp", "--forever") as ranks:
        query = asking(place, ranks.name)
        ranks[1].signal(signal.SIGSTOP)
        waits = "seq = (SELECT max(seq) FROM python.collectives WHERE rank = 0)"
        (row,) = until(query, f"{sql} AND {waits}", lambda rows: bool(rows))  # an older one may be done since
        (behind,) = query("SELECT max(seq) AS seq FROM python.collectives WHERE rank = 1")
        assert (row["pg"], row["op"]) == ("0", "all_reduce")
        assert behind["seq"] <= row["seq"]
        ranks[1].signal(signal.SIGCONT)
        ranks.tell()
        for job in ranks.jobs:
            job.result()
        assert until(query, sql, lambda rows: not rows) == []
