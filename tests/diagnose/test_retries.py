"""Verdicts on retry loops: they name the exception, where it is raised, and the scarce resource."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.nursery import Nursery, forked
from diagnose.hung import STALL_S, until
from harness import SERVER, Place, run_probe
from probe.diagnose import states
from probe.diagnose.process.handled import lacks

SAID = {
    "refused": ("ConnectionRefusedError: [Errno 111] Connection refused", "ask_server (retries.py:"),
    "data": ("FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/shard-7.bin'",
             "read_shard (retries.py:"),
    "descriptors": ("OSError: [Errno 24] Too many open files: '/dev/null' (", "open_one_more (retries.py:"),
}


@pytest.fixture(scope="module")
def found(nursery: Nursery) -> Iterator[dict[str, dict[str, Any]]]:
    """What `diagnose` says of each way, once it names an exception; of `polls` once all others do."""
    place = Place()
    ways = [*SAID, "polls"]
    try:
        commands = [("retries", "--way", way) for way in ways]
        with forked(nursery, place, *commands, PROBE_STALL_S=str(STALL_S), **SERVER) as jobs:
            for job in jobs:
                job.wait_for("HANGING")

            answers = {}
            for way, job in zip(ways, jobs, strict=True):
                def named(pid: int = job.pid, way: str = way) -> dict[str, Any] | None:
                    done = run_probe(place, str(pid), "diagnose", "hang", "--format", "json")
                    answer: dict[str, Any] = json.loads(done.stdout)
                    return answer if way == "polls" or "caught repeatedly" in answer["what"] else None

                answers[way] = until(named, f"the exception of {way}") or {}
            for job in jobs:
                job.kill()
            yield answers
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


@pytest.mark.parametrize("way", SAID)
def test_what_is_tried_again_and_again_is_said_with_where_it_was_raised(
    found: dict[str, dict[str, Any]], way: str
) -> None:
    what, place = SAID[way]
    said = found[way]["what"]
    assert what in said and f"raised in {place}" in said and " distinct ones in " in said
    assert way != "descriptors" or "of at most 200 descriptors are open)" in said
    expected = states.WAITING_FOR_DATA if way == "data" else states.RETRYING
    assert found[way]["state"] == expected and "try_for_ever (retries.py:" in said


def test_without_room_the_file_system_is_named_with_what_is_left_there(tmp_path: Path) -> None:
    said = lacks(os.getpid(), errno.ENOSPC, str(tmp_path / "not-yet-there.pt"))
    assert re.fullmatch(rf"[\d,]+ of [\d,]+ MiB are free on the file system of {tmp_path}", said)
    assert lacks(os.getpid(), errno.ENOENT, "x") == "", "an error that tells of no shortage"


def test_a_poll_is_no_retry(found: dict[str, dict[str, Any]]) -> None:
    assert found["polls"]["state"] != states.RETRYING and "caught repeatedly" not in found["polls"]["what"]
