"""The monitor beside recorded processes: what is found is told once, in time, and to those who want it."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe.base.errors import BadRequest, DestinationInvalid, RecipeUnknown
from probe.recording import places
from probe.recording.journal import read_journal
from probe.server.runtime import supervision
from server.beside import Beside, Writer, until
from server.sinks import deaf_server, mail_server, webhook

RECIPE = """-- title = "loss is not a number"
-- severity = "alarm"
-- symptoms = ["nan", "loss"]
-- what = "the loss became {kind} at step {step}"
-- why = ["losses before it were finite"]
-- next = ["probe {endpoint} backtrace"]
SELECT min(step) AS step, 'NaN' AS kind FROM python.steps WHERE isnan(loss) HAVING count(*) > 0
"""
WITHIN_S = 10.0


@pytest.fixture
def beside(beside: Beside) -> Beside:
    """A server whose monitor runs the recipes, as servers do where nobody tests."""
    beside.set(PROBE_MONITOR="1")
    return beside


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A folder with one recipe, as PROBE_RECIPES names it."""
    (tmp_path / "own-nan.sql").write_text(RECIPE)
    return str(tmp_path)


def rows(writer: Writer, table: str) -> list[dict[str, Any]]:
    """What the server noted about a process."""
    return [
        row
        for record in read_journal(places.journals(writer.folder)[1]) if record.get("table") == table
        for row in record["rows"]
    ]


def listed(beside: Beside, recipe: str = "own-nan") -> list[dict[str, Any]]:
    found = beside.call("GET", "/v1/monitor?all=1")["incidents"]
    return [one for one in found if one["recipe"] == recipe]


@pytest.mark.alone
def test_an_alert_is_at_the_webhook_and_in_the_mail_within_ten_seconds_and_once_also_after_a_restart(
    beside: Beside, record: Callable[..., Writer], own: str
) -> None:
    writer = record(job="gpt")
    with webhook() as hook, mail_server() as mail:
        settings = {"PROBE_RECIPES": own, "PROBE_NOTIFY": f"{hook.url} alarm={mail.url}"}
        beside.start(**settings, PROBE_MONITOR_INTERVAL_S="1")
        writer.tell("write 20")
        until(lambda: beside.rows("gpt", "SELECT count(*) FROM python.steps")[0][0] == 20, "rows")
        at = time.monotonic()
        writer.tell("strange")
        until(lambda: hook.taken and mail.taken, "both messages")
        for sink in (hook, mail):
            [taken] = sink.taken
            assert taken.at - at < WITHIN_S
            assert "[alarm] gpt: loss is not a number" in taken.title
            assert "the loss became NaN at step 20" in taken.text
            assert f"probe {writer.pid} backtrace" in taken.text
            assert os.uname().nodename in taken.text or "here" in taken.text
        noted = until(lambda: rows(writer, "probe.alerts")[1:] and rows(writer, "probe.alerts"), "two rows")
        came = {(row["outcome"], row["event"], row["attempts"]) for row in noted}
        assert came == {("delivered", "opened", 1)}
        assert not any("secret" in row["destination"] for row in noted)
        [verdict] = [row for row in rows(writer, "probe.verdicts") if row["recipe"] == "own-nan"]
        assert verdict["incident"] == noted[0]["incident"] and verdict["step"] == 20
        sql = "SELECT recipe FROM probe.verdicts WHERE incident IS NOT NULL AND recipe LIKE 'own%'"
        assert beside.rows("gpt", sql) == [["own-nan"]]

        beside.kill()
        beside.start()
        writer.tell("write 5")
        [again] = until(lambda: listed(beside), "the incident after a restart")
        assert again["incident"] == verdict["incident"]
        writer.tell("strange")
        writer.kill()  # how it ended is news: another message, and the last one
        until(lambda: len(hook.taken) > 1, "the end")
        assert [("SIGKILL" in one.text, "not a number" in one.title) for one in hook.taken] == [
            (False, True), (True, False),
        ]
        assert "secret" not in beside.log() and "example.org" not in beside.log()


def test_a_run_that_ends_at_once_is_judged_all_the_same(
    beside: Beside, record: Callable[..., Writer], own: str
) -> None:
    with webhook() as hook:
        beside.start(PROBE_RECIPES=own, PROBE_NOTIFY=hook.url, PROBE_MONITOR_INTERVAL_S="3600")
        writer = record(job="brief")
        writer.tell("write 3")
        writer.tell("strange")
        writer.exit()
        until(lambda: [one for one in hook.taken if "not a number" in one.title], "the message")


@pytest.mark.alone
def test_what_is_not_taken_is_tried_again_and_a_mail_server_that_hangs_holds_up_nobody(
    beside: Beside, record: Callable[..., Writer], own: str
) -> None:
    writer = record(job="gpt")
    with webhook() as hook, deaf_server() as deaf:
        hook.refuse = 1
        beside.start(PROBE_RECIPES=own, PROBE_NOTIFY=f"{deaf} {hook.url}", PROBE_MONITOR_INTERVAL_S="1")
        writer.tell("write 3")
        writer.tell("strange")
        until(lambda: hook.taken, "the second try")
        began = time.monotonic()
        assert beside.rows("gpt", "SELECT count(*) FROM python.steps") == [[7]]
        assert time.monotonic() - began < WITHIN_S
        [row] = until(lambda: rows(writer, "probe.alerts"), "its row")
        assert (row["attempts"], row["outcome"]) == (2, "delivered")


def test_destinations_are_kept_privately_shown_without_their_secrets_and_checked(
    beside: Beside, own: str
) -> None:
    with webhook() as hook:
        beside.start(PROBE_RECIPES=own, PROBE_NOTIFY="json://127.0.0.1:9/given")
        for wrong in ("nonsense", "nosuchservice://x", "alarm=nonsense"):
            with pytest.raises(DestinationInvalid) as raised:
                beside.call("POST", "/v1/monitor", {"notify": [wrong]})
            assert wrong not in raised.value.message
        answer = beside.call("POST", "/v1/monitor", {"notify": [f"alarm={hook.url}"]})
        assert [(one["least"], one["added"]) for one in answer["destinations"]] == [
            ("notice", False), ("alarm", True),
        ]
        assert "secret" not in json.dumps(answer)
        kept = beside.directory / "monitor.json"
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600 and "secret" in kept.read_text()
        beside.kill()
        beside.start()
        answer = beside.call("POST", "/v1/monitor", {"test": True})
        assert [one["outcome"] for one in answer["tests"]] == ["failed", "delivered"]
        assert "[test]" in hook.taken[0].title
        with pytest.raises(DestinationInvalid, match="PROBE_NOTIFY"):
            beside.call("POST", "/v1/monitor", {"remove": ["1"]})
        assert len(beside.call("POST", "/v1/monitor", {"remove": [hook.url]})["destinations"]) == 1
        assert "secret" not in kept.read_text() + beside.log()


def test_what_is_configured_is_done_once_for_an_incident_and_said_to_be_the_monitors(
    beside: Beside, record: Callable[..., Writer], own: str
) -> None:
    writer, other = record(job="gpt"), record(job="other")
    beside.start(PROBE_RECIPES=own, PROBE_MONITOR_INTERVAL_S="1")
    rule = {"recipe": "own-nan", "words": "lr --scale 0.5", "action": "lr", "arguments": {"scale": 0.5}}
    with pytest.raises(BadRequest, match="need a job"):
        beside.call("POST", "/v1/monitor", {"on": [rule]})
    with pytest.raises(RecipeUnknown, match="own-man") as raised:
        beside.call("POST", "/v1/monitor", {"endpoint": "gpt", "on": [{**rule, "recipe": "own-man"}]})
    assert "own-nan" in raised.value.hint
    beside.call("POST", "/v1/monitor", {"endpoint": "gpt", "on": [rule]})
    for one in (writer, other):
        one.tell("write 3")
        one.tell("strange")
    until(lambda: len(listed(beside)) == 2, "two incidents")
    [kept] = until(
        lambda: [one for one in beside.call("GET", "/v1/monitor")["rules"] if one["last"]], "what came of it"
    )
    assert kept["last"] == "said" and kept["words"] == "lr --scale 0.5"
    assert (writer.tell("asked"), other.tell("asked")) == ("asked 1", "asked 0")
    assert beside.call("POST", "/v1/monitor", {"endpoint": "gpt", "off": ["own-nan"]})["rules"] == []


def test_a_task_that_swallows_cancellations_is_ended_all_the_same() -> None:
    """As `asyncio.wait_for` does before Python 3.12: a server that waited for such a task never ended."""

    async def stubborn() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                continue

    async def end_it() -> bool:
        task = asyncio.ensure_future(stubborn())
        await asyncio.sleep(0)
        await asyncio.wait_for(supervision.end_tasks([task]), WITHIN_S)
        return task.done()

    assert asyncio.run(end_it())
