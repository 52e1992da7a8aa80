"""A job on several hosts, which are network namespaces: found through its store, cut off, without rank 0."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cluster import network
from harness import PROGRAMS, Job
from probe.base.errors import ProbeError
from probe.recording import announcement
from server.beside import until

WHY_NOT = network.why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
TRAINS = ("parallel", "--way", "reduce", "--forever", "--pace-ms", "100")
STEPS = "SELECT rank, count(*) > 0 FROM python.steps GROUP BY rank ORDER BY rank"
UNITS_S = {"ns": 1e-9, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
PATIENCE_S = 20.0
"""More than any answer takes here when a host is silent; a TCP connection would wait for minutes."""


class Running(NamedTuple):
    """A job that trains on all hosts, one rank on each."""

    hosts: list[network.Host]
    name: str
    jobs: list[Job]

    def ranks(self, number: int) -> dict[str, Any]:
        """What host `number` says of all ranks."""
        found: dict[str, Any] = self.hosts[number].call("GET", f"/v1/ranks?endpoint={self.name}")
        return found

    def until_known(self, number: int, count: int) -> None:
        """Until host `number` sees so many ranks."""
        until(lambda: len(self.ranks(number)["ranks"]) == count, f"{count} ranks seen by host {number}")

    def until_announced(self, number: int) -> None:
        """Until host `number` has read the job's store; it knows the host of MASTER_ADDR before."""
        def known() -> bool:
            return any(row["source"] == "store" for row in self.ranks(number)["hosts"])

        until(known, f"the store read by host {number}")


@pytest.fixture(scope="module")
def pair() -> Iterator[Running]:
    """Two hosts with one rank each."""
    with network.hosts(2, PROBE_QUERY_TIMEOUT_S="10") as found:
        name, jobs = network.start_job(found, 1, *TRAINS)
        running = Running(found, name, jobs)
        for number in (0, 1):
            running.until_known(number, 2)
        yield running


def test_hosts_find_each_other_through_the_jobs_store_and_are_one_job(pair: Running) -> None:
    for number, host in enumerate(pair.hosts):
        pair.until_announced(number)
        answer = host.call("GET", f"/v1/ranks?endpoint={pair.name}")
        assert [(row["rank"], row["host"]) for row in answer["ranks"]] == [(0, "node1"), (1, "node2")]
        assert len({row["run"] for row in answer["ranks"]}) == 1 and answer["missing"] == []
        assert all(row["lag_steps"] is not None for row in answer["ranks"])
        assert [(row["source"], row["state"]) for row in answer["hosts"]] == [
            ("here", "answers"), ("store", "answers"),
        ]
        assert host.query(pair.name, STEPS)["rows"] == [[0, True], [1, True]]
        joined = (
            "SELECT count(*) > 0 FROM python.steps a JOIN python.steps b USING (step) "
            "WHERE a.rank = 0 AND b.rank = 1"
        )
        assert host.query(pair.name, joined)["rows"] == [[True]]


def test_stacks_and_the_verdict_are_of_all_hosts(pair: Running) -> None:
    for host in pair.hosts:
        captured = host.call("GET", f"/v1/backtrace?endpoint={pair.name}")
        assert sorted(captured["ranks"]) == ["0", "1"] and captured["missing"] == []
        assert {one["host"] for one in captured["ranks"].values()} == {"node1", "node2"}
    here = pair.hosts[0]
    verdict = here.call("GET", f"/v1/diagnose?endpoint={pair.name}")
    assert [(one["rank"], one["host"]) for one in verdict["ranks"]] == [(0, "node1"), (1, "node2")]
    assert verdict["missing"] == []
    assert here.call("GET", f"/v1/backtrace?endpoint={pair.name}/1")["pid"] == pair.jobs[1].pid
    assert here.call("GET", f"/v1/diagnose?endpoint={pair.name}/1&symptom=hang")["state"]


def test_the_command_on_one_host_shows_all_and_goes_straight_to_another(pair: Running) -> None:
    here, there = pair.hosts
    shown = here.probe(pair.name, "ranks")
    assert shown.returncode == 0, shown.stderr
    assert [line.split()[:2] for line in shown.stdout.splitlines()[1:]] == [["0", "node1"], ["1", "node2"]]
    answer = json.loads(here.probe(pair.name, "ranks", "--format", "json").stdout)
    assert [row["rank"] for row in answer["ranks"]] == [0, 1]
    straight = here.probe_inside("-t", f"{there.address}:{network.PORT}", "query", "SELECT 1 AS one")
    assert straight.returncode == 0, straight.stderr


@pytest.mark.campaign
def test_a_trace_has_one_time_line_and_a_bundle_the_rows_of_both_hosts(pair: Running, tmp_path: Path) -> None:
    """Both hosts have this machine's clock: the trace finds them no further apart than its error."""
    here = pair.hosts[0]
    common = "SELECT step FROM python.collectives GROUP BY step HAVING count(DISTINCT rank) = 2"
    both = f"SELECT count(*) > 30 FROM ({common})"
    until(lambda: here.query(pair.name, both)["rows"] == [[True]], "thirty steps of both ranks")
    words = (pair.name, "trace", "--since", "0", "-o", str(tmp_path / "x.json"))
    traced = here.probe(*words)
    if "ranks 0-1" not in traced.stdout:
        assert "node2" in traced.stderr, "which host did not answer in time is said"
        traced = here.probe(*words)
    assert traced.returncode == 0, traced.stderr
    assert "by their collectives; the trace is corrected" in traced.stderr, traced.stderr
    assert "no single offset fits" not in traced.stderr and "not aligned" not in traced.stderr
    found = json.loads((tmp_path / "x.json").read_text())
    [told] = found["otherData"]["clocks"]
    match = re.search(r"is ([\d.]+) (\S+) (?:ahead|behind) .*give or take ([\d.]+) ([^\s,]+)", told)
    assert match and found["otherData"]["arrows"] > 0, told
    apart_s, error_s = (float(match[at]) * UNITS_S[match[at + 1]] for at in (1, 3))
    assert apart_s <= 1.1 * error_s + 1e-4, f"{told}, and they have the same clock"

    path = tmp_path / "both.tar.gz"
    made = here.probe(pair.name, "bundle", "-o", str(path))
    assert made.returncode == 0 and "2 ranks" in made.stdout and "not in it" not in made.stderr, made.stderr

    def asked(*words: str) -> Any:
        shown = here.probe(str(path), *words, "--format", "json")
        assert shown.returncode == 0 and shown.stdout, f"{words}: {shown.stdout}{shown.stderr}"
        return json.loads(shown.stdout)

    steps = "SELECT rank, count(*) > 10, count(DISTINCT pid) FROM python.steps GROUP BY rank ORDER BY rank"
    assert asked("query", steps)["rows"] == [[0, True, 1], [1, True, 1]]
    ranks = asked("ranks")["ranks"]
    newest = asked("query", "SELECT max(step) FROM python.steps WHERE rank = 1")["rows"]
    assert newest == [[ranks[1]["step"]]]
    listed = [(one["rank"], one["host"], one["state"]) for one in ranks]
    assert listed == [(0, "node1", "bundled"), (1, "node2", "bundled")]
    for table in ("python.parameters", "python.stack_samples", "python.stack_nodes", "python.collectives"):
        assert asked("query", f"SELECT count(DISTINCT rank) FROM {table}")["rows"] == [[2]], table
    assert sorted(asked("backtrace")["ranks"]) == ["0", "1"]


@pytest.mark.alone
@pytest.mark.campaign
def test_a_link_that_is_cut_costs_the_ranks_behind_it_and_no_waiting(pair: Running) -> None:
    """Before the question, and in the middle of it."""
    here, there = pair.hosts
    there.cut()
    try:
        began = time.monotonic()
        answer = here.query(pair.name, STEPS)
        elapsed_s = time.monotonic() - began
        assert answer["rows"] == [[0, True]]
        assert [note.partition(":")[0] for note in answer["notes"]] == ["rank 1"]
        assert elapsed_s < PATIENCE_S, elapsed_s
    finally:
        there.mend()
    pair.until_known(0, 2)
    slow = "SELECT DISTINCT rank FROM python.backtrace ORDER BY 1"
    found: list[dict[str, Any]] = []
    pair.jobs[1].signal(network.STOP)
    try:
        asking = threading.Thread(target=lambda: found.append(here.query(pair.name, slow)))
        asking.start()
        until(lambda: there.asked(), "the question is at the other host")
        there.cut()
        asking.join(PATIENCE_S)
        assert not asking.is_alive()
    finally:
        there.mend()
        pair.jobs[1].signal(network.CONTINUE)
    assert found[0]["rows"] == [[0]] and any(note.startswith("rank 1: ") for note in found[0]["notes"])
    pair.until_known(0, 2)


@pytest.mark.campaign
def test_what_was_learnt_outlives_rank_0_and_its_store() -> None:
    with network.hosts(3) as found:
        name, jobs = network.start_job(found, 1, *TRAINS)
        running = Running(found, name, jobs)
        for number in range(3):
            running.until_known(number, 3)
        first = found[0].place.server_pid()
        jobs[0].kill()
        found[0].cut()
        answer = found[1].query(name, STEPS)
        assert answer["rows"] == [[1, True], [2, True]]
        (note,) = answer["notes"]
        assert note.startswith("rank 0: host node1 ")
        listed = running.ranks(2)
        assert [row["rank"] for row in listed["ranks"]] == [1, 2] and len(listed["missing"]) == 1
        assert {row["state"] for row in listed["hosts"]} == {"answers", "unreachable"}
        assert first is not None


@pytest.mark.campaign
@pytest.mark.parametrize("shared", [True, False], ids=["a shared token", "a token of its own"])
def test_a_host_is_believed_only_with_the_shared_token(shared: bool) -> None:
    """Whoever reaches the store can write there; our token goes to nobody who does not hold it."""
    with network.hosts(2) as found:
        if not shared:
            del found[1].shared["PROBE_TOKEN_FILE"]
        name, jobs = network.start_job(found, 1, *TRAINS)
        running = Running(found, name, jobs)
        if shared:
            running.until_known(0, 2)
            return
        until(lambda: "another token" in " ".join(running.ranks(0)["missing"]), "said")
        assert [row["rank"] for row in running.ranks(0)["ranks"]] == [0]


@pytest.mark.campaign
def test_without_a_run_id_the_hosts_agree_on_the_run_and_a_new_start_is_a_new_attempt() -> None:
    with network.hosts(2) as found:
        for attempt in (0, 1):
            name, jobs = network.start_job(
                found, 1, *TRAINS, run_id="none", MASTER_PORT="29500", PROBE_NAME="static"
            )
            running = Running(found, "static", jobs)
            for number in (0, 1):
                running.until_known(number, 2)
            ranks = running.ranks(1)["ranks"]
            assert {row["run"] for row in ranks} == {f"static-{found[0].address}-29500"}, name
            assert [row["attempt"] for row in ranks] == [attempt, attempt]
            assert {row["state"] for row in ranks} <= {"running"}
            told = found[0].query("static", "SELECT DISTINCT attempt FROM python.steps")["rows"]
            assert told == [[attempt]]
            for job in jobs:
                job.kill()


@pytest.mark.campaign
def test_torchrun_on_two_hosts_is_one_job_before_and_after_a_restart() -> None:
    """It counts restarts on each host for itself, and keeps its store: neither may be mistaken for ranks."""
    with network.hosts(2) as found:
        for number, host in enumerate(found):
            rendezvous = f"is_host={'true' if number == 0 else 'false'}"
            host.torchrun(
                "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "night",
                "--rdzv-endpoint", f"{found[0].address}:29400", "--rdzv-conf", rendezvous,
                "--max-restarts", "3", str(PROGRAMS / "parallel.py"), *TRAINS[1:], PROBE_NAME="elastic",
            )
        running = Running(found, "elastic", [])

        def both(number: int, before: frozenset[int]) -> list[dict[str, Any]] | None:
            """Both ranks, each another process than before, as one host sees them."""
            try:
                ranks: list[dict[str, Any]] = running.ranks(number)["ranks"]
            except (ProbeError, OSError):
                return None
            good = [one for one in ranks if one["state"] == "running" and one["pid"] not in before]
            return ranks if len(ranks) == len(good) == 2 else None

        first = until(lambda: both(0, frozenset()), "two ranks")
        assert {one["run"] for one in first} == {"elastic-night"}
        os.kill(first[1]["pid"], network.KILL)
        pids = frozenset(one["pid"] for one in first)
        for number in (0, 1):
            again = until(lambda number=number: both(number, pids), "the restart")
            assert [(one["rank"], one["host"]) for one in again] == [(0, "node1"), (1, "node2")]


@pytest.mark.campaign
def test_a_job_on_one_host_says_nothing_to_its_store() -> None:
    with network.hosts(1) as (host,):
        _, jobs = network.start_job([host], 2, *TRAINS)
        assert not list(network.folder_of(host).glob(f"*/*/*/{announcement.FILE}"))
        assert all("probe-announce" not in network.threads(job) for job in jobs)
