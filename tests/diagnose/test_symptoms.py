"""A symptom is diagnosed in a real training: deep statistics are asked for, and the transcript is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agent.asking import query
from harness import SERVER, Job, Place, run_probe

ASKED = "SELECT DISTINCT action_id, action, arguments FROM probe.actions WHERE arguments IS NOT NULL"


def test_what_a_diagnosis_lacks_it_asks_the_job_for_and_keeps_what_it_checked(
    place: Place, start: Callable[..., Job]
) -> None:
    job = start("one_millisecond_step", "--forever", **SERVER)
    done = run_probe(place, str(job.pid), "diagnose", "gradients", "--format", "json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    said = answer["notes"]
    assert any("of 3 steps were collected for this diagnosis" in note for note in said), said
    [asked] = query(place, job.pid, ASKED)
    assert asked[1] == "watch" and "activations" in asked[2]
    kept = query(
        place, job.pid, "SELECT number, check_name, outcome FROM probe.checks "
        f"WHERE diagnosis_id = '{answer['diagnosis_id']}' AND symptom = 'gradients' ORDER BY number",
    )
    assert kept == [[one["number"], one["check_name"], one["outcome"]] for one in answer["checks"]]
    assert len(kept) > 5
    run_probe(place, str(job.pid), "diagnose", "gradients", "--no-watch")
    assert query(place, job.pid, ASKED) == [asked]
