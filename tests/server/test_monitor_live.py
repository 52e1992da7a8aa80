"""The monitor beside a real job: a stop is told once, and so is its end; an action is audited."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.asking import query
from harness import SERVER, Job, Place, run_probe
from server.beside import until
from server.sinks import webhook

STALL_S = 2.0
RECIPE = """-- title = "ten steps are done"
-- severity = "notice"
-- symptoms = ["slow"]
-- what = "step {step} is done"
SELECT 10 AS step FROM python.steps HAVING max(step) >= 10
"""


@pytest.mark.campaign
def test_a_stopped_job_is_told_of_once_and_again_when_it_goes_on_and_what_is_configured_is_done(
    place: Place, start: Callable[..., Job], tmp_path: Path
) -> None:
    (tmp_path / "ten-steps.sql").write_text(RECIPE)
    with webhook() as hook:
        settings = {
            "PROBE_NOTIFY": f"alarm={hook.url}", "PROBE_STALL_S": str(STALL_S),
            "PROBE_RECIPES": str(tmp_path), "PROBE_MONITOR_INTERVAL_S": "1", **SERVER, "PROBE_MONITOR": "1",
        }
        job = start("gpt_with_schedule", "--size", "tiny", "--forever", **settings)
        pid = str(job.pid)
        done = run_probe(place, pid, "monitor", "--on", "ten-steps", "lr --scale 0.5", "--format", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["rules"][0]["words"] == "lr --scale 0.5"
        wrong = run_probe(place, pid, "monitor", "--on", "ten-steps", "lr --scale nonsense")
        assert wrong.returncode == 2 and "nonsense" in wrong.stderr

        actions = until(
            lambda: query(place, pid, "SELECT action, arguments, caller_role, state FROM probe.actions "
                          "WHERE state <> 'asked'"), "the action",
        )
        assert actions == [["lr", '{"scale": 0.5}', "monitor", "done"]]

        job.signal(signal.SIGSTOP)
        until(lambda: hook.taken, "the alarm")
        assert "[alarm]" in hook.taken[0].title and "stopped" in hook.taken[0].title
        assert f"kill -CONT {pid}" in hook.taken[0].text
        job.signal(signal.SIGCONT)
        until(lambda: hook.taken[1:], "that it goes on")
        assert hook.taken[1].title.startswith("[alarm] over: ")
        job.kill()
        until(lambda: hook.taken[2:], "how it ended")
        assert "SIGKILL" in hook.taken[2].text
        sql = "SELECT event FROM probe.alerts WHERE outcome = 'delivered' ORDER BY t_ns"
        events = until(lambda: (found := query(place, pid, sql))[2:] and found, "a row for each message")
        assert events == [["opened"], ["resolved"], ["opened"]]
        again = query(place, pid, "SELECT count(*) FROM probe.actions WHERE state = 'done'")
        assert again == [[1]], "once for an incident"
