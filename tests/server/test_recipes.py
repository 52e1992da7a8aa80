"""Recipes over recordings, by the server: in one request, of one process and of all ranks, live and dead."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.base import wire
from probe.base.errors import EndpointUnknown, QueryWorkerDied, RecipeUnknown
from probe.diagnose.recipes.recipe_files import parse
from probe.recording.places import server_socket
from probe.server.answers import recipe_runs
from probe.server.hosts import fanout
from server.beside import Beside, Writer, until

FRONT = """\
-- title = "{title}"
-- severity = "{severity}"
-- symptoms = ["nan"]
-- order = {order}
-- scope = "{scope}"
-- what = "{what}"
-- next = ["probe {{endpoint}} query \\"SELECT 1\\""]
"""


def shelf(folder: Path) -> Path:
    """A folder with recipes of all kinds: two that find, three that cannot be judged, one that is broken."""
    folder.mkdir()

    def put(name: str, sql: str, severity: str = "notice", order: int = 150, scope: str = "rank") -> None:
        front = FRONT.format(title=name, severity=severity, order=order, scope=scope, what="{n} of {ranks}")
        (folder / f"{name}.sql").write_text(front + sql)

    counted = "SELECT count(*) AS n, list(DISTINCT rank ORDER BY rank)::VARCHAR AS ranks FROM python.steps"
    put("own-steps", counted)
    put("own-ranks", counted, "alarm", 300, "job")
    put("own-clear", "SELECT 1 AS n, 1 AS ranks FROM python.steps WHERE loss > 1e9")
    put("own-fails", "SELECT CAST('x' || step AS BIGINT) AS n, 1 AS ranks FROM python.steps")
    put("own-unknown", "SELECT 1 AS n, 1 AS ranks, 'never' AS unknown")
    put("own-endless", "SELECT count(*) AS n, 1 AS ranks FROM range(1000000000000)")
    put("own-reads-files", "SELECT count(*) AS n, 1 AS ranks FROM read_text('/etc/passwd')")
    put("own-writes", "SELECT 1 AS n, 1 AS ranks; DELETE FROM python.steps")
    return folder


def outcomes(answer: dict[str, Any]) -> dict[str, str]:
    """Own recipes and what came of them."""
    said = {one["check_name"]: one["outcome"] for one in answer["checks"]}
    return {name: said[name] for name in said if name.startswith("own-")}


OF_ONE = {
    "own-steps": "found", "own-ranks": "found", "own-clear": "clear", "own-fails": "unknown",
    "own-unknown": "unknown", "own-endless": "unknown", "own-reads-files": "unknown",
}


@pytest.mark.alone
def test_one_process_is_judged_live_and_dead_and_what_was_checked_is_kept(
    beside: Beside, record: Callable[..., Writer], tmp_path: Path
) -> None:
    own = shelf(tmp_path / "own")
    beside.start(PROBE_RECIPES=str(own), PROBE_QUERY_TIMEOUT_S="1", PROBE_MONITOR="0")
    writer = record()
    writer.tell("write 30")
    # It makes no step, so deep statistics would be waited for in vain.
    target = f"/v1/diagnose?endpoint={writer.pid}&symptom=nan&deep=0"
    path = server_socket(beside.place.directory)
    *parts, answer = map(json.loads, wire.lines(path, f"{target}&follow=1", 60))
    assert outcomes(answer) == OF_ONE
    (own / "own-endless.sql").unlink()  # seen without a restart; it takes all of its time in each diagnosis
    assert parts and set(answer) == set(beside.call("GET", target)), "the last line is the answer"
    told = [one for part in parts for one in part["part"]["findings"]]
    names = [(one["recipe"], one["what"], one["explained_by"]) for one in answer["findings"]]
    assert told and all((one["recipe"], one["what"], one["explained_by"]) in names for one in told)
    assert all(0 < part["part"]["judged"] <= part["part"]["of"] for part in parts)
    with pytest.raises(EndpointUnknown):
        list(wire.lines(path, "/v1/diagnose?endpoint=nobody&follow=1", 60))
    assert answer["conclusion"]["cause"] == "own-steps"
    [problem] = [note for note in answer["notes"] if "own-writes.sql" in note]
    assert "more than one statement" in problem
    reasons = {one["recipe"]: one["reason"] for one in answer["unknown"]}
    assert "Conversion" in reasons["own-fails"] and "stopped after" in reasons["own-endless"]
    assert "never" in reasons["own-unknown"] and "SQL failed" in reasons["own-reads-files"]
    worst = answer["findings"][0]
    assert (worst["recipe"], worst["severity"], worst["what"]) == ("own-ranks", "alarm", "30 of [0]")
    assert worst["next"] == [f'probe {writer.pid} query "SELECT 1"']
    kept = beside.rows(
        writer.pid, "SELECT check_name, outcome FROM probe.checks WHERE check_name LIKE 'own-%' "
        f"AND symptom = 'nan' AND diagnosis_id = '{answer['diagnosis_id']}'",
    )
    assert dict(kept) == OF_ONE

    writer.kill()
    for endpoint in (str(writer.pid), str(writer.folder)):
        dead = beside.call("GET", f"/v1/diagnose?endpoint={endpoint}")
        found = {one["recipe"]: one["what"] for one in dead["findings"]}
        assert dead["state"] == "dead" and found["own-steps"] == "30 of [0]"
        assert "checks" not in dead and dead["judged"]["unknown"] >= 3
    with pytest.raises(RecipeUnknown):
        beside.call("GET", f"/v1/diagnose?endpoint={writer.pid}&symptom=nanana")
    listed = beside.call("GET", "/v1/recipes")
    assert any("own-writes" in problem for problem in listed["problems"])


def test_of_a_job_a_recipe_sees_the_lowest_rank_or_all_as_its_scope_says(
    beside: Beside, record: Callable[..., Writer], tmp_path: Path
) -> None:
    own = shelf(tmp_path / "own")
    (own / "own-endless.sql").unlink()
    beside.start(PROBE_RECIPES=str(own), PROBE_MONITOR="0", PROBE_SEAL_INTERVAL_S="0.1")
    ranks = [record(rank=rank, run="two", job="two", world_size=2) for rank in (0, 1)]
    for writer in ranks:
        writer.tell("write 10")
    whole = beside.call("GET", "/v1/diagnose?endpoint=two&symptom=nan")
    found = {one["recipe"]: one["what"] for one in whole["findings"]}
    assert (found["own-steps"], found["own-ranks"]) == ("10 of [0]", "20 of [0, 1]")
    assert [one["rank"] for one in whole["ranks"]] == [0, 1]
    one = beside.call("GET", f"/v1/diagnose?endpoint={ranks[1].pid}&symptom=nan")
    assert outcomes(one)["own-ranks"] == "unknown", "one rank says nothing of all"
    assert {one["recipe"]: one["what"] for one in one["findings"]}["own-steps"] == "10 of [1]"

    def quiet_s() -> set[float]:
        facts = beside.call("GET", "/v1/diagnose?endpoint=two&scope=host")["facts"]
        return {one["usual_quiet_s"] for one in facts}

    assert max(quiet_s()) < 77
    (own / "parameters.toml").write_text("[stall-thresholds]\nquiet_s = 77\n")
    until(lambda: quiet_s() == {77}, "stall thresholds are read again without a restart")

    [segment] = until(lambda: ranks[0].segments("python.steps"), "sealed")
    segment.path.write_bytes(b"")
    whole = beside.call("GET", "/v1/diagnose?endpoint=two&symptom=nan")
    found = {one["recipe"]: one["what"] for one in whole["findings"]}
    assert (found["own-steps"], found["own-ranks"]) == ("0 of ?", "10 of [1]")
    assert any("left out" in note and segment.path.name in note for note in whole["notes"])


def test_what_ends_the_worker_is_found_by_halving(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    async def ask(_job: Any, _found: Any, given: Any) -> dict[str, Any]:
        asked.append([recipe.name for recipe in given])
        if "r2" in asked[-1]:
            raise QueryWorkerDied("it died")
        nothing = {"columns": ["n", "ranks"], "rows": [], "elapsed_ms": 1.0}
        return {"results": [nothing for _ in given], "notes": ["said"]}

    monkeypatch.setattr(recipe_runs._Job, "_ask", ask)
    text = FRONT.format(title="t", severity="info", order=1, scope="rank", what="x") + "SELECT 1 AS n"
    given = [parse(text, Path(f"r{number}.sql")) for number in range(5)]
    nobody: Any = None
    job = recipe_runs._Job(nobody, nobody, "host", "1", 1.0, False)
    ran = asyncio.run(job.run(fanout.Found([]), given))
    assert [one.state for one in ran.checks] == ["clear", "clear", "unknown", "clear", "clear"]
    assert ran.notes == ["said"] and len(asked) == 5
