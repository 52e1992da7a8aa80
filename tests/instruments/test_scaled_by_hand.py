"""What is recorded of a job that scales its loss itself, and of an evaluation on inputs of two shapes."""

from __future__ import annotations

import json

from harness import SERVER, Place, run_probe, running


def test_a_loss_is_recorded_without_the_scale_that_the_job_multiplied_and_each_shape_of_an_evaluation_is_seen(
    place: Place
) -> None:
    with running(place, "scaled_by_hand", **SERVER) as job:
        def rows(sql: str) -> list[list[float]]:
            asked = run_probe(place, str(job.pid), "query", sql, "--format", "json")
            assert asked.returncode == 0, asked.stderr
            found: list[list[float]] = json.loads(asked.stdout)["rows"]
            return found

        [[highest, least_scale, most_scale]] = rows(
            "SELECT max(loss), min(loss_scale), max(loss_scale) FROM python.steps"
        )
        assert 0 < highest < 100 and (least_scale, most_scale) == (4096.0, 4096.0)
        [[scaled]] = rows("SELECT bool_and(clip_scaled) FROM python.steps WHERE clip_scaled IS NOT NULL")
        assert scaled
        shapes = rows("SELECT DISTINCT shape FROM python.model_inputs WHERE gradless ORDER BY shape")
        assert shapes == [["[16, 8]"], ["[64, 8]"]]
