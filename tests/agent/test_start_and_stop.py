"""probe.start() and probe.stop() in a script: nothing stays behind, however often and whenever."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agent.asking import accepts, ask, query, recorded, states, without_times
from agent.nursery import Forked
from harness import Place, run_probe

CALLERS = 20
NOTHING = [[], {}]


@pytest.mark.parametrize("rounds", [6, pytest.param(50, marks=pytest.mark.campaign)])
def test_many_rounds_leave_nothing_behind_and_change_nothing(
    fork: Callable[..., Forked], place: Place, rounds: int
) -> None:
    states(place)
    warm = str(min(10, rounds // 2))
    command = ("starts_and_stops", "--rounds", str(rounds), "--warm", warm, "--callers", str(CALLERS))
    plain = fork(*command, watched=False)
    job = fork(*command, "--probe", "--hold", watched=False, WHOLE_END="1")
    result, expected = without_times(job.result()), without_times(plain.result())
    [early, late], _ = result.pop("alive"), expected.pop("alive")
    assert late == early and early["maps"] == 0
    assert result.pop("agents") == [1] * CALLERS and expected.pop("agents") == []
    assert result == expected
    assert result["left"] == {"in turns": NOTHING, "by a thread": NOTHING, "at once": NOTHING}
    assert list((place.directory / "agents").iterdir()) == []
    everything = place.directory / "recordings"
    found = query(place, everything, "SELECT run, count(*) FROM python.steps GROUP BY run")
    # So many rounds of 3 steps each; those of the restless thread are as many as there was time for.
    assert [steps for _, steps in found].count(3) >= rounds
    assert len(recorded(place)) == len({meta.run for meta in recorded(place)}) > rounds
    assert set(states(place).values()) == {"finished"}
    assert (job.let_go(), job.errors()) == (0, "")


def test_a_job_can_be_left_by_request(fork: Callable[..., Forked], place: Place) -> None:
    plain, job = fork("one_millisecond_step", "--steps", "500", watched=False), fork(
        "one_millisecond_step", "--steps", "500", "--hold"
    )
    job.wait_for("READY")
    assert ask(place, job.pid, "POST", "/v1/stop") == {"stopped": True, "ended": []}
    assert not accepts(place, job.pid)
    done = run_probe(place, str(job.pid), "lr", "--scale", "0.5")
    assert done.returncode == 3 and "was stopped: it runs without an agent" in done.stderr
    with pytest.raises(FileNotFoundError):
        ask(place, job.pid, "GET", "/v1/health")
    assert without_times(job.result()) == without_times(plain.result())
    assert states(place) == {job.pid: "finished"}
    assert (job.let_go(), job.errors()) == (0, "")


@pytest.mark.parametrize(
    ("watched", "steps"),
    [(True, "300"), (False, "600"),
     *(pytest.param(watched, "3000", marks=pytest.mark.campaign) for watched in (True, False))],
)
def test_two_threads_that_train_are_left_as_they_are(
    fork: Callable[..., Forked], place: Place, watched: bool, steps: str
) -> None:
    options = ("--steps", steps, *(() if watched else ("--late",)))
    plain = fork("two_trainers", "--steps", steps, watched=False).result()
    job = fork("two_trainers", *options, "--hold", watched=watched)
    result = job.result()
    assert (result["raised"], result["thread_losses"]) == ([], plain["thread_losses"])
    assert (job.let_go(), job.errors()) == (0, "")


def test_starting_and_stopping_never_disturbs_a_step_that_goes_through_its_hooks(
    fork: Callable[..., Forked], place: Place
) -> None:
    plain = fork("steps_with_hooks", "--steps", "120", watched=False).result()
    job = fork("steps_with_hooks", "--steps", "120", "--probe", "--hold", watched=False)
    result = job.result()
    assert result["raised"] == [] and result["left"] == [1, 1]
    assert result["thread_losses"] == plain["thread_losses"]
    assert result["rounds"] > 3 and len(result["thread_losses"][0]) == 120
    assert (job.let_go(), job.errors()) == (0, "")
