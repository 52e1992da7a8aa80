"""A changed learning rate, held against what the optimizer of a real training really used."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agent.asking import ask, tell
from agent.nursery import Forked, Nursery, forked
from harness import Place, run_probe
from probe.base.errors import ActionRefused, BadRequest, NotUndoable

SCHEDULES = ("CosineAnnealingLR", "LambdaLR", "OneCycleLR", "SequentialLR", "by_hand", "Own", "none")
CHANGED = (*SCHEDULES, f"{SCHEDULES[0]} by command")
AFTER = 20
"""Steps after each change that are compared, as many as the answer tells of."""
Change = dict[str, Any]


def act(place: Place, pid: int, **arguments: Any) -> dict[str, Any]:
    answer: dict[str, Any] = ask(
        place, pid, "POST", "/v1/act", {"action": "lr", "arguments": arguments, "wait_s": 60.0}
    )
    return answer


def undo(place: Place, pid: int, answer: dict[str, Any]) -> dict[str, Any]:
    undone: dict[str, Any] = ask(place, pid, "POST", "/v1/undo", {"id": answer["id"], "wait_s": 60.0})
    return undone


def of(schedule: str) -> dict[str, Any]:
    """How the optimizer of a schedule is named."""
    return {} if schedule == SCHEDULES[0] else {"optimizer": f"{schedule}_optimizer"}


def command(place: Place, *words: str) -> dict[str, Any]:
    """The answer that the command prints."""
    done = run_probe(place, *words, "--format", "json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


class Story:
    """What was done to one job, one optimizer after the other, and what the job says of itself."""

    def __init__(self, place: Place, job: Forked) -> None:
        self.refused: dict[str, Exception] = {}
        self.shown: dict[str, dict[str, Any]] = {}
        self.changes: dict[str, list[dict[str, Any]]] = {}
        self._place, self._pid = place, job.pid
        for schedule in reversed(SCHEDULES):
            self.shown[schedule] = act(place, job.pid, **of(schedule))
            scaled = act(place, job.pid, scale=0.1, **of(schedule))
            held = act(place, job.pid, set=0.005, group=1, **of(schedule))
            self.changes[schedule] = [scaled, held, undo(place, job.pid, held), undo(place, job.pid, scaled)]
        pid, first = str(job.pid), SCHEDULES[0]
        scaled = command(place, pid, "lr", "--scale", "0.1")
        held = command(place, pid, "lr", "--set", "0.005", "--group", "1")
        undone = [command(place, pid, "undo", answer["id"]) for answer in (held, scaled)]
        self.changes[f"{first} by command"] = [scaled, held, *undone]
        self.history = command(place, pid, "lr")
        self._refuse("far", scale=11.0)
        self._refuse("negative", set=-1.0)
        self._refuse("group", scale=0.5, group=7)
        self._refuse("both", scale=0.5, set=0.1)
        self._refuse("unknown", scale=0.5, speed=3)
        self._refuse("optimizer", scale=0.5, optimizer="optimiser")
        self._refuse("vanishes", scale=1e-320)
        _, error = _caught(lambda: undo(place, job.pid, self.changes["none"][0]))
        self.refused["undone twice"] = error
        self.settled_at = undone[-1]["step"]
        tell(job)
        self.said = job.result()
        assert (job.let_go(), job.errors()) == (0, "")

    def _refuse(self, name: str, **arguments: Any) -> None:
        _, self.refused[name] = _caught(lambda: act(self._place, self._pid, **arguments))

    def steps(self, schedule: str, change: int) -> Iterator[tuple[list[float], list[float], int]]:
        """(rates used, rates untouched, step) of the steps after a change and before the next."""
        first = self.changes[schedule][change]["step"]
        name, _, _ = schedule.partition(" ")
        for step in range(first, first + AFTER):
            yield self.said["used"][name][step], self.said["untouched"][name][step], step


def _caught(action: Callable[[], object]) -> tuple[object, Exception]:
    with pytest.raises((BadRequest, ActionRefused, NotUndoable)) as caught:
        action()
    return None, caught.value


@pytest.fixture(scope="module")
def story(nursery: Nursery) -> Iterator[Story]:
    place = Place()
    try:
        with forked(nursery, place, ("scheduled", *SCHEDULES, "--until-told")) as [job]:
            job.wait_for("READY")
            yield Story(place, job)
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


def near(one: list[float], other: list[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("schedule", CHANGED)
def test_the_next_20_steps_use_the_schedule_times_the_factor(story: Story, schedule: str) -> None:
    for used, untouched, step in story.steps(schedule, 0):
        assert near(used, [rate * 0.1 for rate in untouched]), step


@pytest.mark.parametrize("schedule", CHANGED)
def test_a_rate_that_is_set_is_used_and_the_other_group_goes_on(story: Story, schedule: str) -> None:
    for used, untouched, step in story.steps(schedule, 1):
        assert near(used, [untouched[0] * 0.1, 0.005]), step


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_undoing_the_last_change_returns_to_the_one_before(story: Story, schedule: str) -> None:
    first, next_change = (story.changes[schedule][change]["step"] for change in (2, 3))
    for step in range(first, next_change):
        untouched = story.said["untouched"][schedule][step]
        assert near(story.said["used"][schedule][step], [rate * 0.1 for rate in untouched]), step


@pytest.mark.parametrize("schedule", CHANGED)
def test_undoing_all_returns_to_the_untouched_schedule(story: Story, schedule: str) -> None:
    for used, untouched, step in story.steps(schedule, 3):
        assert near(used, untouched), step


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_nobody_changed_is_as_it_was(story: Story, schedule: str) -> None:
    first = story.changes[schedule][0]["step"]
    for step in range(first):
        assert near(story.said["used"][schedule][step], story.said["untouched"][schedule][step]), step
    assert story.said["steps"] >= story.settled_at + AFTER
    for step in range(story.settled_at, story.said["steps"]):
        assert near(story.said["used"][schedule][step], story.said["untouched"][schedule][step]), step


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_answer_tells_the_rates_that_were_really_used(story: Story, schedule: str) -> None:
    for answer in story.changes[schedule][:2]:
        details = answer["details"]
        assert details["steps"] == list(range(answer["step"], answer["step"] + AFTER))
        assert f"the next {AFTER} steps used" in answer["what"]
        for group in details["groups"]:
            really = [story.said["used"][schedule][step][group["group"]] for step in details["steps"]]
            assert near(group["used"], really)


@pytest.mark.parametrize(
    ("schedule", "kept"),
    [("CosineAnnealingLR", "schedule"), ("SequentialLR", "schedule"), ("by_hand", "rule"), ("Own", "rule"),
     ("none", "group")],
)
def test_the_answer_says_what_keeps_the_rate(story: Story, schedule: str, kept: str) -> None:
    scaled = story.changes[schedule][0]
    assert scaled["details"]["kept_by"] == kept
    assert scaled["state"] == ("standing" if kept == "rule" else "done")
    assert ("when probe leaves" in " ".join(scaled["notes"])) is (kept == "rule")


def test_a_schedule_that_the_job_writes_itself_is_named_with_what_it_wrote(story: Story) -> None:
    scaled = story.changes["by_hand"][0]
    first = scaled["details"]["overwritten"][0]
    assert "the job's own code writes the rate, which is multiplied by 0.1 for each step" in scaled["what"]
    assert f"{first['rate']:.6g} in group 0" in " ".join(scaled["notes"])
    assert first["step"] == scaled["step"]
    assert math.isclose(first["rate"], story.said["untouched"]["by_hand"][first["step"]][0], rel_tol=1e-6)
    for schedule in SCHEDULES:
        overwritten = any(change["details"]["overwritten"] for change in story.changes[schedule][:2])
        assert overwritten is (schedule == "by_hand"), schedule


def test_a_rate_held_against_a_schedule_says_so(story: Story) -> None:
    held = story.changes["CosineAnnealingLR"][1]
    assert "held while CosineAnnealingLR continues underneath" in held["what"]
    assert "in force again" in story.changes["CosineAnnealingLR"][2]["what"]


def test_the_command_shows_what_was_changed_and_undone(story: Story) -> None:
    changes = [(row["arguments"], row["state"]) for row in story.history["changes"][-2:]]
    assert [state for _, state in changes] == ["undone", "undone"]
    assert story.history["details"]["schedulers"][0]["class"] == SCHEDULES[0]


def test_showing_needs_no_boundary_and_tells_groups_and_schedulers(story: Story) -> None:
    for schedule in SCHEDULES:
        shown = story.shown[schedule]
        assert shown["held_ms"] is None
        groups = shown["details"]["groups"]
        assert [(group["tensors"], group["elements"]) for group in groups] == (
            [(1, 8)] * 2 if schedule == SCHEDULES[0] else [(1, 2)] * 2
        )
        kinds = [scheduler["class"] for scheduler in shown["details"]["schedulers"]]
        assert kinds == ([] if schedule in ("none", "by_hand") else [schedule])
    inner = story.shown["SequentialLR"]["details"]["schedulers"][0]["inner"]
    assert [scheduler["class"] for scheduler in inner] == ["LinearLR", "CosineAnnealingLR"]
    assert len(story.shown["none"]["details"]["others"]) == len(SCHEDULES) - 1


@pytest.mark.parametrize(
    ("what", "words"),
    [("far", "above the limit of 10 times"), ("negative", "at least 0"), ("group", "no group 7"),
     ("both", "mutually exclusive"), ("unknown", "speed"), ("optimizer", "no optimizer 'optimiser'"),
     ("vanishes", "cannot be represented"), ("undone twice", "undone already")],
)
def test_what_cannot_be_meant_is_refused(story: Story, what: str, words: str) -> None:
    assert words in str(story.refused[what])


def test_when_probe_leaves_a_scaled_schedule_stays_and_rates_that_were_held_go_back(
    nursery: Nursery, place: Place
) -> None:
    names = ("CosineAnnealingLR", "LambdaLR", "by_hand")
    with forked(nursery, place, ("scheduled", *names, "--until-told")) as [job]:
        job.wait_for("READY")
        act(place, job.pid, scale=0.1)
        act(place, job.pid, set=0.03, **of("LambdaLR"))
        act(place, job.pid, scale=0.1, **of("by_hand"))
        ask(place, job.pid, "POST", "/v1/stop")
        tell(job)
        said = job.result()
        assert job.let_go() == 0, job.errors()
    for name, factor in zip(names, (0.1, 1.0, 1.0), strict=True):
        used, untouched = said["used"][name], said["untouched"][name]
        for step in range(said["steps"] - AFTER, said["steps"]):
            assert near(used[step], [rate * factor for rate in untouched[step]]), (name, step)
