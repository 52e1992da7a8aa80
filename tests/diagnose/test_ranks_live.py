"""Real jobs of several ranks that go wrong: one alarm, at the rank that is the cause; the right answer."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from agent.asking import kill_server
from diagnose.hung import noted, recorded_of, until
from harness import PATIENCE_S, ROOT, SERVER, Place, run_probe, wait_for_end
from probe.base import wire
from probe.diagnose import states
from probe.diagnose.ranks.job_rules import diagnose_job
from probe.diagnose.ranks.rank_evidence import Facts
from probe.diagnose.states import ALARM, NOTICE
from probe.recording import places
from ranks import Ranks, running_ranks

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_available() or not torch.distributed.is_gloo_available(),
    reason="this torch is built without gloo",
)
CAMPAIGN = (
    "sleep", "sleep in group", "leaves", "no send", "op", "shape", "dtype", "order", "groups", "kill", "segv",
    "exit", "exception", "stop", "gil", "worker", "compute", "backward", "input", "periodic",
    "none", "evaluation", "checkpoint", "lengths", "warm-up", "one-off",
)


def diagnosed(place: Place, endpoint: str) -> dict[str, Any]:
    done = run_probe(place, endpoint, "diagnose", "--format", "json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def alarms(place: Place, ranks: Ranks) -> list[tuple[int, str]]:
    """Rank and state of every alarm that the server wrote about the job."""
    rows = [(rank, row) for rank, job in enumerate(ranks.jobs) for row in noted(recorded_of(place, job.pid))]
    return [(rank, row["state"]) for rank, row in rows if row["severity"] == ALARM]


@pytest.mark.alone
def test_a_rank_without_probe_is_not_seen_and_neither_it_nor_the_network_is_blamed(place: Place) -> None:
    options = ("--fault", "sleep", "--rank", "1", "--at", "12", "--forever")
    settings = {"PROBE_STALL_S": "1", **SERVER}
    with running_ranks(place, 2, "faulty_ranks", *options, unrecorded=(1,), **settings) as ranks:
        ranks[1].wait_for("FAULT")
        recorded = recorded_of(place, ranks[0].pid)
        until(lambda: any(row["severity"] == ALARM for row in noted(recorded)), "the server's alarm")
        found = diagnosed(place, ranks.name)
        assert (found["state"], found["severity"]) == (states.UNKNOWN, ALARM), found
        assert found["what"].startswith("rank 0 waits in all_reduce #")
        assert found["what"].endswith("the reason is unknown: there is no information about rank 1")
        assert [row["state"] for row in noted(recorded)] == [states.UNKNOWN], "and one alarm, there"


@pytest.mark.alone
def test_the_rank_that_hangs_the_others_gets_the_only_alarm_and_is_named_wherever_one_asks(
    place: Place,
) -> None:
    options = ("--fault", "sleep", "--rank", "1", "--at", "12", "--forever")
    place.start_server(PROBE_STALL_S="1")  # it sees every end
    with running_ranks(place, 2, "faulty_ranks", *options, PROBE_STALL_S="1", **SERVER) as ranks:
        ranks[1].wait_for("FAULT")
        culprit, victim = (recorded_of(place, ranks[rank].pid) for rank in (1, 0))
        until(lambda: noted(culprit) and noted(victim), "the server's rows on both ranks")
        assert alarms(place, ranks) == [(1, states.MISSING_RANK)]
        [waits, *_] = noted(victim)
        assert waits["severity"] == NOTICE and "the cause: rank 1 never joined all_reduce #" in waits["what"]

        found = diagnosed(place, ranks.name)
        assert (found["state"], found["severity"], found["culprits"]) == (states.MISSING_RANK, ALARM, [1])
        assert "rank 0 waits in it" in found["what"] and "never_join (faulty_ranks.py:" in found["what"]
        assert [(one["rank"], one["pid"]) for one in found["ranks"]] == [
            (rank, ranks[rank].pid) for rank in (0, 1)
        ]
        assert found["next"][0] == f"probe {ranks.name}/1 backtrace --workers"
        asked = f"/v1/diagnose?endpoint={ranks.name}&scope=host"
        server = places.server_socket(place.directory)
        facts = wire.call(server, "GET", asked, None, timeout_s=PATIENCE_S)
        known = [Facts.from_dict(raw) for raw in facts["facts"]]  # what another host's server would get
        assert (diagnose_job(known).state, diagnose_job(known).culprits) == (states.MISSING_RANK, (1,))
        said = run_probe(place, ranks.name, "diagnose").stdout
        assert said.startswith("MISSING RANK (alarm)  rank 1 never joined") and "\n  next   probe " in said
        assert diagnosed(place, f"{ranks.name}/1")["state"] == states.BLOCKED, "one rank, when one is named"
        listed = json.loads(run_probe(place, "ps", "--format", "json").stdout)["processes"]
        assert {one["state"] for one in listed} == {"stalled"}


def test_rank_0_that_died_first_is_the_cause_also_when_only_recordings_are_left(place: Place) -> None:
    options = ("--fault", "kill", "--way", "ddp", "--rank", "0", "--at", "8", "--forever")
    place.start_server()  # it sees every end
    with running_ranks(place, 2, "faulty_ranks", *options, **SERVER) as ranks:
        assert ranks[0].wait() == -9
        assert ranks[1].wait() != 0
        until(lambda: noted(recorded_of(place, ranks[1].pid)), "a row on the victim's end")
        assert alarms(place, ranks) == [(0, states.DEAD)]
        wait_for_end(kill_server(place), 20.0)
        found = diagnosed(place, ranks.name)
        assert (found["state"], found["culprits"]) == (states.DEAD_RANK, [0])
        assert "died first, of SIGKILL, at step 7" in found["what"]
        assert "rank 1 ended because of it" in found["what"]


def test_calls_that_do_not_fit_are_known_after_gloo_has_aborted_the_ranks(place: Place) -> None:
    options = ("--fault", "dtype", "--rank", "1", "--at", "8", "--forever")
    place.start_server()  # it sees every end
    with running_ranks(place, 3, "faulty_ranks", *options, **SERVER) as ranks:
        for job in ranks.jobs:
            assert job.wait() != 0
        until(lambda: all(noted(recorded_of(place, job.pid)) for job in ranks.jobs), "rows on all ends")
        assert alarms(place, ranks) == [(1, states.DTYPE_MISMATCH)]
        found = diagnosed(place, ranks.name)
        assert (found["state"], found["culprits"]) == (states.DTYPE_MISMATCH, [1])
        assert found["what"].count("reduce_loss") == 2, "both call sites"
        assert "float64" in found["what"] and "float32" in found["what"]


@pytest.mark.alone
@pytest.mark.campaign
def test_a_straggler_is_a_notice_when_it_becomes_one_and_another_when_it_is_none(place: Place) -> None:
    options = ("--fault", "compute", "--rank", "1", "--at", "60", "--until", "200", "--length", "0.06",
               "--pace-ms", "20", "--forever")
    place.start_server()  # it sees every end
    with running_ranks(place, 2, "faulty_ranks", *options, **SERVER) as ranks:
        slow = recorded_of(place, ranks[1].pid)
        until(lambda: len(noted(slow)) == 2, "both notices")
        became, ended = noted(slow)
        assert (became["state"], became["severity"]) == (states.STRAGGLER, NOTICE)
        assert ", in forward, " in became["what"]
        assert ended["state"] == states.CAUGHT_UP and ended["severity"] == "ok"
        assert noted(recorded_of(place, ranks[0].pid)) == [], "a victim of a straggler has no row"


@pytest.mark.alone
@pytest.mark.campaign
@pytest.mark.parametrize("name", CAMPAIGN)
def test_each_planted_fault_is_found_in_time_and_clean_jobs_raise_nothing(name: str) -> None:
    command = [sys.executable, str(ROOT / "bench" / "faults.py"), "--seeds", "2", "--only", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
