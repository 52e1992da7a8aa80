"""The step that ranks agree upon: none has reached it when the last is told, and no later than need be.

Also what is said if they do not act."""

from __future__ import annotations

import pytest

from probe.base.commit_vote import Decision
from probe.base.errors import NotTogether, ProcessDead
from probe.server.hosts import coordinator
from probe.server.hosts.agreed_step import Place, agree
from probe.server.hosts.rank_group import Reply

NOW_NS = 10**18


def place(step: int, step_s: float, ended_s: float, *, paused: bool = False, from_start: bool = True,
          own: int = 0) -> Place:
    """A rank whose step runs since `ended_s`; `own`: what its numbers are behind the job's."""
    ends = [
        (number - own, int(NOW_NS - (ended_s + step_s * (step - 1 - number)) * 1e9))
        for number in range(max(0, step - 30), step)
    ]
    return Place(step - own, ends, paused, from_start)


@pytest.mark.parametrize(
    ("step_s", "ended_s", "expected"),
    [
        (0.001, 0.0, 500), (0.05, 0.01, 11), (0.3, 0.15, 3), (10.0, 3.0, 1), (10.0, 9.8, 2),
        (10.0, 60.0, 2),  # overdue: it may end now
    ],
)
def test_the_step_is_the_first_that_begins_late_enough(step_s: float, ended_s: float, expected: int) -> None:
    agreed = agree({rank: place(100, step_s, ended_s) for rank in range(4)}, 0.5, NOW_NS)
    assert set(agreed.steps.values()) == {100 + expected} or expected == 500
    if expected == 500:
        assert 590 <= agreed.steps[0] <= 601
    assert agreed.in_s is not None and agreed.in_s >= 0.499


def test_a_rank_that_is_ahead_decides() -> None:
    agreed = agree({0: place(100, 0.1, 0.0), 1: place(103, 0.1, 0.0)}, 0.5, NOW_NS)
    assert agreed.steps[0] == agreed.steps[1] >= 103 + 5


def test_ranks_that_were_attached_to_are_lined_up_by_when_their_steps_ended() -> None:
    places = {
        0: place(100, 0.2, 0.05), 1: place(100, 0.2, 0.05, from_start=False, own=37),
        2: place(100, 0.2, 0.05, from_start=False, own=40),
    }
    agreed = agree(places, 0.5, NOW_NS)
    assert agreed.steps[1] == agreed.steps[0] - 37 and agreed.steps[2] == agreed.steps[0] - 40
    unclear = {**places, 2: place(100, 0.2, 0.15, from_start=False, own=40)._replace(ends=[(59, NOW_NS)])}
    with pytest.raises(NotTogether, match="cannot be matched yet"):
        agree(unclear, 0.5, NOW_NS)


def test_paused_ranks_meet_where_they_are_and_a_lone_one_is_named() -> None:
    held = {rank: place(100, 0.2, 5.0, paused=True) for rank in range(3)}
    assert set(agree(held, 0.5, NOW_NS).steps.values()) == {100}
    with pytest.raises(NotTogether, match="rank 1 is paused") as refused:
        agree({**held, 0: place(100, 0.2, 5.0), 2: place(100, 0.2, 5.0)}, 0.5, NOW_NS)
    assert "JOB/1 resume" in refused.value.hint
    with pytest.raises(NotTogether, match="different steps"):
        agree({**held, 2: place(101, 0.2, 5.0, paused=True)}, 0.5, NOW_NS)


def test_a_rank_that_has_not_begun_a_step_yet_is_named() -> None:
    with pytest.raises(NotTogether, match="rank 1 has not started a step"):
        agree({0: place(5, 0.1, 0.0), 1: Place(None, [], False, False)}, 0.5, NOW_NS)


def test_without_any_step_done_the_one_after_the_next_is_taken() -> None:
    agreed = agree({rank: Place(0, [], False, True) for rank in range(2)}, 0.5, NOW_NS)
    assert set(agreed.steps.values()) == {2} and agreed.in_s is None


def test_a_refusal_names_the_rank_that_was_killed_beside_the_one_that_failed_because_of_it() -> None:
    left = {"where": "the training thread is in backward (train.py:99)", "came": False}
    replies = [
        Reply(0, 100, "a", left, None), Reply(1, 101, "a", None, ProcessDead("it died of SIGKILL")),
    ]
    no = Decision(False, "rank 0: probe left the process before a step ended")
    with pytest.raises(NotTogether) as refused:
        coordinator.raise_unless_done(coordinator.Outcome("all-1", replies, no, None))
    assert refused.value.message == (
        "rank 0: probe left the process before a step ended (rank 0: the training thread is in backward "
        "(train.py:99)); rank 1: it died of SIGKILL. Nothing was changed on any rank"
    )
