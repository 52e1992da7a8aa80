"""Ranks that a script spawns itself: no launcher says in the environment which rank a process is."""

from __future__ import annotations

import json

from harness import SERVER, Place, run_probe, running


def test_ranks_that_a_script_spawns_are_one_job_and_its_own_process_leads_to_them(place: Place) -> None:
    with running(place, "ddp_spawned", **SERVER) as job:
        asked = run_probe(place, "ddp_spawned", "ranks", "--format", "json")
        assert asked.returncode == 0, asked.stderr
        ranks = json.loads(asked.stdout)["ranks"]
        assert [one["rank"] for one in ranks] == [0, 1]
        assert job.pid not in [one["pid"] for one in ranks]

        answer = run_probe(
            place, "ddp_spawned", "query", "SELECT count(DISTINCT rank) FROM python.steps", "--format", "json"
        )
        assert json.loads(answer.stdout)["rows"] == [[2]], answer.stderr

        asked = run_probe(place, str(job.pid), "diagnose", "--no-watch", "--format", "json")
        launcher = json.loads(asked.stdout)
        assert launcher["state"] == "idle" and "2 child processes" in launcher["what"]
        assert launcher["why"][0] == "it started ddp_spawned's ranks (0, 1), which train: ask them"
        assert launcher["next"][0] == "probe ddp_spawned diagnose"
        assert job.let_go() == 0 and job.errors() == ""
