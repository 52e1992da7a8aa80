"""`probe JOB backtrace`: all ranks of a real job at once, one of which sleeps, is stopped, is dead."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator

import pytest

from harness import PATIENCE_S, Place, run_probe
from probe.recording.process import life
from ranks import Ranks, running_ranks


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    made = Place()
    try:
        yield made
        left = made.close()
        assert not any(left.values()), left
    finally:
        made.remove()


@pytest.fixture(scope="module")
def hanging(place: Place) -> Iterator[Ranks]:
    """Three ranks, of which rank 1 sleeps and the others wait for it in an all_reduce."""
    options = ("--way", "all_reduce", "--meeting", str(place.directory / "meeting"))
    with running_ranks(place, 3, "stall_ranks", *options, ready="HANGING") as ranks:
        deadline = time.monotonic() + PATIENCE_S
        while "ranks 0,2: all_reduce <- main" not in asked(place, ranks.name, "backtrace"):
            assert time.monotonic() < deadline, asked(place, ranks.name, "backtrace")
            time.sleep(0.1)
        yield ranks
        ranks[2].signal(signal.SIGCONT)


def asked(place: Place, *words: str) -> str:
    """What the command prints; fails when it fails."""
    done = run_probe(place, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_rank_that_is_elsewhere_is_said_first(place: Place, hanging: Ranks) -> None:
    head, odd, others, *rest = asked(place, hanging.name, "backtrace").splitlines()
    assert head == "3 ranks in 2 places, the fewest ranks first" and not rest
    assert odd.startswith("rank 1: sleep_on_storage (stall_ranks.py:") and " <- main (stall_ranks" in odd
    assert others.startswith("ranks 0,2: all_reduce <- main (stall_ranks.py:") and "step 5" in others


def test_all_frames_are_a_tree_that_forks_where_the_ranks_part(place: Place, hanging: Ranks) -> None:
    tree = asked(place, hanging.name, "backtrace", "--all-frames").partition("all frames")[2]
    lines = [line.split() for line in tree.splitlines()[1:] if "nursery.py" not in line]
    assert [(line[0], line[2]) for line in lines if line[1] == "*"] == [
        ("0-2", "<module>"), ("0,2", "main"), ("1", "main"), ("1", "sleep_on_storage")
    ]
    assert ["0,2", "all_reduce"] in [line[:2] for line in lines]


def test_which_ranks_are_not_in_the_collective_is_one_query(place: Place, hanging: Ranks) -> None:
    sql = "SELECT ranks FROM cluster.stack_classes WHERE stack NOT LIKE 'all_reduce%'"
    assert json.loads(asked(place, hanging.name, "query", sql, "--format", "json"))["rows"] == [["1"]]
    sql = "SELECT ranks, rank_count FROM cluster.stacks WHERE func = 'main' ORDER BY node"
    rows = json.loads(asked(place, hanging.name, "query", sql, "--format", "json"))["rows"]
    assert rows == [["0,2", 2], ["1", 1]]


def test_one_rank_and_a_pid_answer_as_they_did(place: Place, hanging: Ranks) -> None:
    for endpoint in (f"{hanging.name}/1", str(hanging[1].pid)):
        answer = json.loads(asked(place, endpoint, "backtrace", "--json"))
        assert answer["pid"] == hanging[1].pid and answer["source"] == "agent" and "classes" not in answer


def test_other_threads_are_shown_for_each_class(place: Place, hanging: Ranks) -> None:
    lines = asked(place, hanging.name, "backtrace", "--all-threads").splitlines()
    assert [line.split(":")[0] for line in lines if line.startswith("    probe-agent")] == [
        "    probe-agent (rank 1)", "    probe-agent (ranks 0,2)"
    ]


def test_a_stopped_and_a_dead_rank_are_shown_beside_the_living(place: Place, hanging: Ranks) -> None:
    """The dead one is rank 0. Both are in the same place as before, and in no class of the living."""
    hanging[2].signal(signal.SIGSTOP)
    hanging[0].signal(signal.SIGKILL)
    assert hanging[0].wait() == -signal.SIGKILL
    deadline = time.monotonic() + PATIENCE_S
    while (found := life(hanging[2].pid)) is None or found.state != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    answer = json.loads(asked(place, hanging.name, "backtrace", "--json"))
    assert {(one["ranks"], one["state"]) for one in answer["classes"]} == {
        ("0", "ended"), ("1", "alive"), ("2", "stopped")
    }
    assert answer["missing"] == []
    sources = {rank: capture["source"] for rank, capture in answer["ranks"].items()}
    assert sources == {"0": "recording", "1": "agent", "2": "outside"}
    done = run_probe(place, hanging.name, "backtrace")
    assert "rank 0: all_reduce <- main" in done.stdout and "ended: its last stack" in done.stdout
    assert "rank 2: all_reduce <- main" in done.stdout and "stopped" in done.stdout
    assert "rank 0: " in done.stderr and "SIGKILL" in done.stderr and "read from outside" in done.stderr
