"""Incidents: opened once, over once, and nothing said twice, whatever the rounds say."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from probe.diagnose.finding import Finding
from probe.diagnose.incidents import (
    CLEAR_ROUNDS,
    CLEAR_S,
    COOLDOWN_S,
    OPENED,
    RAISED,
    RESOLVED,
    RETURNED,
    Event,
    Incidents,
)
from probe.diagnose.recipes.recipe import CLEAR, FOUND, UNKNOWN, Check, Recipe
from probe.diagnose.states import ALARM, NOTICE

ROUND_S = 4.0


def seen(subject: str = "", step: int | None = None, severity: str = NOTICE) -> Finding:
    return Finding(
        "spike", severity, "the loss jumped", recipe="loss-spike", subject=subject, step=step, rank=0
    )


RECIPE = Recipe(
    name="loss-spike", title="spike", severity=NOTICE, symptoms=["loss"], what="w", sql="", file=Path()
)


def found(*what: Finding, holds_s: float = 0.0) -> Check:
    return Check(RECIPE.model_copy(update={"holds_s": holds_s}), FOUND, list(what) or [seen()])


QUIET = Check(RECIPE, CLEAR)
NOT_KNOWN = Check(RECIPE, UNKNOWN)


def rounds(incidents: Incidents, said: list[Check], start_s: float = 0.0) -> list[Event]:
    """Events of rounds that follow each other as the monitor makes them."""
    return [
        event
        for number, one in enumerate(said)
        for event in incidents.round([one], start_s + number * ROUND_S)
    ]


def kinds(events: list[Event]) -> list[tuple[str, bool]]:
    return [(event.kind, event.tell) for event in events]


def test_what_is_found_again_and_again_is_told_once_and_once_more_when_it_is_over() -> None:
    incidents = Incidents("run")
    assert kinds(rounds(incidents, [found()] * 20 + [QUIET] * 20)) == [(OPENED, True), (RESOLVED, True)]
    assert incidents.open() == []


def test_it_is_over_only_when_it_was_clear_for_so_long_and_in_so_many_rounds() -> None:
    patient = Incidents("run")
    assert kinds(rounds(patient, [found()] + [QUIET] * int(CLEAR_S / ROUND_S))) == [(OPENED, True)]
    rare = Incidents("run")
    rare.round([found()], 0.0)
    for number in range(CLEAR_ROUNDS - 1):
        assert rare.round([QUIET], 1000.0 * (number + 1)) == []
    assert kinds(rare.round([QUIET], 1000.0 * CLEAR_ROUNDS)) == [(RESOLVED, True)]


def test_what_must_hold_is_an_incident_only_when_it_held_without_a_break() -> None:
    holding = found(holds_s=10.0)
    incidents = Incidents("run")
    assert rounds(incidents, [holding, holding, QUIET] * 5) == []
    assert kinds(rounds(incidents, [holding] * 4, 1000.0)) == [(OPENED, True)]


def test_what_is_not_known_neither_opens_nor_ends_an_incident() -> None:
    incidents = Incidents("run")
    assert rounds(incidents, [NOT_KNOWN] * 50) == []
    assert kinds(rounds(incidents, [found(), *[NOT_KNOWN] * 50])) == [(OPENED, True)]
    assert len(incidents.open()) == 1


def test_what_comes_back_within_the_cooldown_is_the_same_and_is_not_told() -> None:
    incidents = Incidents("run")
    first = rounds(incidents, [found()] + [QUIET] * 20)
    again = rounds(incidents, [found()] + [QUIET] * 20, 200.0)
    assert kinds(again) == [(RETURNED, False), (RESOLVED, False)]
    assert again[0].incident.id == first[0].incident.id
    later = rounds(incidents, [found()], 400.0 + COOLDOWN_S)
    assert kinds(later) == [(OPENED, True)]
    assert later[0].incident.id != first[0].incident.id


def test_what_came_back_and_stays_is_told_again_because_the_last_word_was_that_it_is_over() -> None:
    incidents = Incidents("run")
    rounds(incidents, [found()] + [QUIET] * 20)
    lasting = rounds(incidents, [found()] * int(COOLDOWN_S / ROUND_S + 2), 200.0)
    assert kinds(lasting) == [(RETURNED, False), (RETURNED, True)]


def test_a_higher_severity_is_told_once() -> None:
    incidents = Incidents("run")
    said = [found(), *[found(seen(severity=ALARM))] * 3, found(), found(seen(severity=ALARM))]
    assert kinds(rounds(incidents, said)) == [(OPENED, True), (RAISED, True)]


def test_an_event_that_happened_at_a_step_is_one_incident_for_ever() -> None:
    incidents = Incidents("run")
    rounds(incidents, [found(seen(step=7))] + [QUIET] * 20)
    assert rounds(incidents, [found(seen(step=7))] * 3, 10 * COOLDOWN_S) == []
    assert kinds(rounds(incidents, [found(seen(step=90))], 20 * COOLDOWN_S)) == [(OPENED, True)]


def test_subjects_of_one_recipe_are_incidents_of_their_own() -> None:
    incidents = Incidents("run")
    both = rounds(incidents, [found(seen("a"), seen("b"))])
    assert len({event.incident.id for event in both}) == 2
    ended = rounds(incidents, [found(seen("a"))] * 20, ROUND_S)
    assert [(event.kind, event.incident.finding.subject) for event in ended] == [(RESOLVED, "b")]


def test_what_was_written_down_is_not_told_again_after_a_restart() -> None:
    before = Incidents("run")
    events = rounds(before, [found(seen("a", 3), seen("b", 4))])
    after = Incidents("run")
    for event in events:
        after.restore(event.incident.id, event.incident.finding, 0.0, is_open=True)
    assert rounds(after, [found(seen("a", 3), seen("b", 4))] * 3, 10.0) == []
    assert kinds(rounds(after, [QUIET] * 20, 50.0)) == [(RESOLVED, True)] * 2


_ROUND = st.one_of(
    st.just(QUIET), st.just(NOT_KNOWN),
    st.builds(
        lambda subjects, severity, step, holds_s: found(
            *(seen(subject, step, severity) for subject in subjects), holds_s=holds_s
        ),
        st.sets(st.sampled_from("abc"), min_size=1), st.sampled_from([NOTICE, ALARM]),
        st.none() | st.integers(0, 5), st.sampled_from([0.0, 6.0]),
    ),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(_ROUND, max_size=60), st.sampled_from([1.0, 4.0, 40.0, 700.0]))
def test_whatever_the_rounds_say_an_incident_opens_before_it_ends_and_each_is_told_once(
    said: list[Check], every_s: float
) -> None:
    incidents = Incidents("run")
    told: Counter[tuple[str, str]] = Counter()
    is_open: dict[str, bool] = {}
    for number, one in enumerate(said):
        for kind, incident, tell in incidents.round([one], number * every_s):
            told[(incident.id, kind)] += tell
            was_open = is_open.get(incident.id, False)
            assert was_open if kind == RESOLVED else kind != OPENED or not was_open
            assert one.state != UNKNOWN
            is_open[incident.id] = kind != RESOLVED
    assert {one.id for one in incidents.open()} == {name for name, still in is_open.items() if still}
    assert all(count <= 1 for (_, kind), count in told.items() if kind in (OPENED, RAISED))


@settings(max_examples=100, deadline=None)
@given(st.lists(_ROUND, max_size=40), st.integers(0, 40))
def test_a_restart_at_any_moment_opens_nothing_that_is_open_already(said: list[Check], at: int) -> None:
    first, second = Incidents("run"), Incidents("run")
    opened = set()
    for number, one in enumerate(said):
        if number == at:
            break
        for kind, incident, _ in first.round([one], number * ROUND_S):
            opened.add(incident.id)
            second.restore(
                incident.id, incident.finding, number * ROUND_S, is_open=kind != RESOLVED
            )
    assert {one.id for one in first.open()} == {one.id for one in second.open()}
    for number, one in enumerate(said[at:]):
        for kind, incident, _ in second.round([one], (at + number) * ROUND_S):
            assert kind != OPENED or incident.id not in opened
