"""What the watch and the ends of processes noted, as incidents: what is told, and what after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.base import clock
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.incidents import OPENED, RESOLVED
from probe.diagnose.recipes.library import installed
from probe.diagnose.recipes.recipe import FOUND, Check, Recipe
from probe.diagnose.states import ALARM, NOTICE, OK
from probe.recording.recording import Meta
from probe.server.alerts.destinations import Destination, shown
from probe.server.alerts.recipe_monitor import message_of
from probe.server.alerts.run_incidents import News, RunIncidents
from probe.server.alerts.triggers import spike_thresholds
from probe.server.recordings import server_journal
from probe.server.recordings.registry import LIVE, Recorded

BEGAN_NS = clock.wall_ns()


class Place:
    """The recordings of a job of two ranks, and what an alert knows of it."""

    def __init__(self, folder: Path) -> None:
        self.state = "running"
        self.ranks = [self._recorded(folder, rank) for rank in range(2)]
        self.known = RunIncidents("run", 0, BEGAN_NS)
        self.look()

    def _recorded(self, folder: Path, rank: int) -> Recorded:
        own = folder / f"process={rank}-{rank + 10}"
        own.mkdir()
        facts: dict[str, Any] = dict.fromkeys(Meta.__dataclass_fields__, "")
        facts |= {"job": "gpt", "run": "run", "rank": rank, "world_size": 2, "pid": rank + 10, "host": "here",
                  "attempt": 0, "started_ns": rank}
        return Recorded(own, Meta(**facts))

    def note(self, state: str, severity: str, rank: int = 0, what: str = "it stands", t_ns: int = 0) -> None:
        finding = Finding(state, severity, what, ["evidence"], ["probe gpt diagnose"])
        row = finding.row(t_ns or clock.wall_ns(), 7)
        server_journal.note_rows(self.ranks[rank].folder, "probe.verdicts", [row])

    def look(self) -> list[tuple[str, str, bool]]:
        """Recipe, event and whether it is told, of what came since the last look."""
        registry: Any = SimpleNamespace(lives=lambda recorded: self.state in LIVE)
        news = [one for recorded in self.ranks for one in self.known.read_news(registry, recorded)[0]]
        return [(one.event.incident.recipe, one.event.kind, not one.known) for one in news]


def found(name: str, *findings: Finding) -> Check:
    """A recipe that found these."""
    recipe = Recipe(
        name=name, title=name, severity=NOTICE, symptoms=["loss"], what="w", sql="", file=Path()
    )
    return Check(recipe, FOUND, [replace(one, recipe=name) for one in findings])


@pytest.fixture
def job(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_an_alarm_is_told_once_however_often_it_is_written_and_its_end_too(job: Place) -> None:
    job.note(states.MISSING_RANK, ALARM)
    assert job.look() == [("missing-rank", OPENED, True)]
    job.note(states.MISSING_RANK, ALARM)
    assert job.look() == []
    job.note(states.RUNNING_AGAIN, OK, what="goes on")
    assert job.look() == [("missing-rank", RESOLVED, True)]
    assert job.known.incidents.open() == []


def test_who_only_waits_for_others_is_no_incident_and_a_straggler_is_one(job: Place) -> None:
    job.note(states.IN_COLLECTIVE, NOTICE, 1, "waits for other ranks; the cause: rank 0")
    job.note(states.DEAD, NOTICE, 1, "died; the cause: rank 0")
    job.note(states.FINISHED, OK, 1)
    assert job.look() == []
    job.note(states.STRAGGLER, NOTICE)
    assert job.look() == [("straggler", OPENED, True)]
    job.note(states.CAUGHT_UP, OK)
    assert job.look() == [("straggler", RESOLVED, True)]


def test_the_end_of_a_process_ends_its_stall_without_a_word_and_is_told_itself(job: Place) -> None:
    job.note(states.DEADLOCK, ALARM)
    job.look()
    job.note(states.DEAD, ALARM, what="gpt/0 died of SIGKILL")
    assert job.look() == [("dead", OPENED, True)]
    [left] = job.known.incidents.open()
    assert left.recipe == "dead" and left.finding.what == "gpt/0 died of SIGKILL"


def test_after_a_restart_nothing_is_told_twice_and_what_was_on_its_way_is_told(job: Place) -> None:
    job.note(states.DEADLOCK, ALARM)
    job.look()
    [open_now] = job.known.incidents.open()
    check = found("loss-spike", Finding("spike", NOTICE, "it jumped", subject="w", step=3, rank=0))
    [spike] = job.known.take_round([check])
    told = {"t_ns": clock.wall_ns(), "incident": open_now.id, "event": OPENED, "destination": "json://…"}
    server_journal.note_rows(job.ranks[0].folder, "probe.alerts", [told])

    again = RunIncidents("run", 0, clock.wall_ns())
    first, job.known = job.known, again
    news = job.look()
    assert sorted(news) == [("deadlock-suspected", OPENED, False), ("loss-spike", OPENED, True)]
    assert {one.id for one in again.incidents.open()} == {one.id for one in first.incidents.open()}
    assert again.take_round([check]) == [], spike
    assert job.look() == []


def test_what_is_older_than_any_try_is_not_told_by_a_server_that_starts_anew(job: Place) -> None:
    job.note(states.DEADLOCK, ALARM, t_ns=clock.wall_ns() - 3600 * 10**9)
    job.known = RunIncidents("run", 0, clock.wall_ns())
    assert job.look() == [] and len(job.known.incidents.open()) == 1


def test_incidents_of_one_recipe_in_one_round_are_one_message(job: Place) -> None:
    findings = [
        Finding("dead units", severity, f"{number} dead", subject=f"layer {number}", rank=0)
        for number, severity in enumerate([NOTICE] * 4 + [ALARM] + [NOTICE] * 15)
    ]
    news = job.known.take_round([found("dead-units", *findings)])
    assert len(news) == 20
    message = message_of(news)
    assert message.title == "[alarm] gpt: dead units" and message.severity == ALARM
    assert message.body.startswith("4 dead\nand 19 more: layer 0, ")
    assert message.body.count("layer") == 8 and "rank 0 of 2" in message.body
    over = message_of([News(news[0].event._replace(kind=RESOLVED), news[0].recorded)])
    assert over.title == "[notice] over: gpt: 0 dead"


@pytest.mark.parametrize(("url", "seen"), [
    ("slack://TokenA/TokenB/TokenC/#channel", "slack://…"),
    ("json://user:secret@host:8080/path/secret?+X-Key=secret", "json://host:8080/…"),
    ("mailto://me:secret@mail.example.org?to=you@example.org", "mailto://mail.example.org/…"),
    ("jsons://[::1]:8080/secret", "jsons://[::1]:8080/…"),
    ("json://secret@", "json://…"), ("json://ho st/x", "json://…"), ("json://host:secret/", "json://…"),
    ("not a url", "<not a URL>"), ("x" * 99 + "://secret", "<not a URL>"),
])
def test_what_people_see_of_a_destination_holds_no_secret(url: str, seen: str) -> None:
    assert shown(url) == seen and "secret" not in Destination(url).shown


def test_severities_go_where_they_are_wanted() -> None:
    page = Destination.parse("alarm=pagerduty://k@a")
    assert page.wants(ALARM) and not page.wants(NOTICE) and page.url == "pagerduty://k@a"
    usual = Destination.parse("json://host/?a=alarm=b")
    assert usual.wants(NOTICE) and not usual.wants("info")
    assert Destination.parse("info=json://host").wants("info")


def test_a_spike_is_a_trigger_with_the_thresholds_of_its_recipe() -> None:
    library = installed("")
    own = library["loss-spike"].parameters
    assert spike_thresholds(library) == tuple(own[name].value for name in ("window", "enough", "sigmas"))
    without = library["loss-spike"].model_copy(update={"parameters": {}})
    assert spike_thresholds({"loss-spike": without}) is None
    assert spike_thresholds({}) is None
