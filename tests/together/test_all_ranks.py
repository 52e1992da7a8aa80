"""A job's ranks change before the same step or not at all, and the training is what it would have been."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from harness import SERVER, Place, run_probe
from probe.base.errors import BadRequest, NotTogether, NotUndoable, ProbeError, SnippetRefused
from ranks import Ranks, running_ranks
from together.all_ranks import Asked, act, first_steps, in_force, last_states, post, query

OPTIONS = ("--way", "reduce")


def end(ranks: Ranks) -> list[dict[str, Any]]:
    """Let all ranks end after the same step; their results."""
    ranks.tell()
    return [job.result() for job in ranks.jobs]


def is_as_without_probe(place: Place, results: list[dict[str, Any]], *options: str) -> bool:
    """Whether as many steps without probe have the same losses and sums, bit by bit."""
    steps = results[0]["steps"]
    with running_ranks(
        place, len(results), "parallel", *OPTIONS, "--steps", str(steps), *options, watched=False
    ) as plain:
        again = [job.result() for job in plain.jobs]
    return steps > 20 and all(
        one["losses"] == other["losses"] and one["sums"] == other["sums"]
        for one, other in zip(results, again, strict=True)
    )


SIZES = [(2, 1), pytest.param(4, 5, marks=pytest.mark.campaign)]
"""Ranks, and how often their rate is changed."""


@pytest.mark.parametrize(("size", "times"), SIZES)
def test_all_ranks_change_before_the_same_step_as_if_the_job_did_it_itself(
    place: Place, size: int, times: int
) -> None:
    every = list(range(size))
    with running_ranks(place, size, "parallel", *OPTIONS, "--forever", "--pace-ms", "20") as ranks:
        steps: list[int] = []
        for number in range(times):
            answer = act(place, ranks.name, "lr", scale=0.5)
            steps.append(answer["step"])
            assert [one["rank"] for one in answer["answers"]] == every
            assert {one["answer"]["step"] for one in answer["answers"]} == {answer["step"]}
            assert {one["answer"]["id"] for one in answer["answers"]} == {answer["id"]}
            rate = 0.01 * 0.5 ** (number + 1)
            assert first_steps(place, ranks.name)[rate] == dict.fromkeys(every, answer["step"])
        assert not list((place.directory / "ballots").iterdir()), "nothing is left to vote on"

        # What only reads is asked of each at once; names that the job has no other for mean something.
        seen = post(place, "/v1/eval", endpoint=ranks.name, code="rank, world_size")
        assert [one["answer"]["value"] for one in seen["answers"]] == [f"({rank}, {size})" for rank in every]
        assert {one["answer"]["where"] for one in seen["answers"]} == {"at once"}
        shown = act(place, ranks.name, "lr")
        assert shown["what"] == f"optimizer (SGD): lr {rate:g}; StepLR" and len(shown["answers"]) == size

        # What changes the job, before the same step; what asks other ranks, only when all are told to.
        code = "optimizer.param_groups[0]['note'] = ledger.steps; ledger.steps"
        at_once = [Asked(lambda: post(place, "/v1/eval", endpoint=ranks.name, code=code)) for _ in range(2)]
        changed = [one.outcome() for one in at_once]
        for one in changed:
            assert {answer["answer"]["value"] for answer in one["answers"]} == {str(one["step"])}
        assert changed[0]["step"] != changed[1]["step"], "one after the other"
        summed = "t = torch.tensor([float(rank)]); dist.all_reduce(t); t.item()"
        with pytest.raises(SnippetRefused, match="collective"):
            post(place, "/v1/eval", endpoint=ranks.name, code=summed)
        sums = post(place, "/v1/eval", endpoint=ranks.name, code=summed, together=True)
        assert [one["answer"]["value"] for one in sums["answers"]] == [str(float(sum(every)))] * size
        with pytest.raises(BadRequest, match="100 times"):
            act(place, ranks.name, "lr", scale=100)

        # One rank alone may not undo what all did; all together may, once.
        done = post(place, "/v1/act", endpoint=ranks.name, action="clip", arguments={"max_norm": 1e9})
        with pytest.raises(ProbeError, match="on all ranks"):
            post(place, "/v1/undo", endpoint=f"{ranks.name}/1", id=done["id"])
        assert all(in_force(place, ranks, rank) for rank in every)
        undone = post(place, "/v1/undo", endpoint=ranks.name, id=done["id"])
        assert {one["answer"]["step"] for one in undone["answers"]} == {undone["step"]}
        assert not any(in_force(place, ranks, rank) for rank in every)
        with pytest.raises(NotUndoable, match="undone already"):
            post(place, "/v1/undo", endpoint=ranks.name, id=done["id"])

        listed = run_probe(place, ranks.name, "actions").stdout
        (line,) = [one for one in listed.splitlines() if done["id"] in one]
        assert f" 0-{size - 1} " in line and "undone" in line
        rows = query(place, ranks.name, "SELECT count(*) FROM probe.actions WHERE state = 'done'")
        assert rows == [[times * size]]
        results = end(ranks)
    assert is_as_without_probe(place, results, "--halve-before", *(str(step) for step in steps))


def test_what_one_rank_cannot_do_no_rank_does(place: Place) -> None:
    with running_ranks(
        place, 2, "parallel", *OPTIONS, "--forever", "--pace-ms", "20", PROBE_RANK_HOLD_S="3"
    ) as ranks:
        act(place, ranks.name, "clip", max_norm=1e9)

        # Refused beforehand by one: named, with its reason.
        (place.directory / "memory.rank1.pickle").touch()
        with pytest.raises(NotTogether, match=r"rank 1: .*exists.*Nothing was changed on any rank"):
            act(place, ranks.name, "memory_snapshot", path=str(place.directory / "memory.pickle"))
        assert [state for state, _ in last_states(place, ranks.name).values()] == ["cancelled", "refused"]
        assert not (place.directory / "memory.rank0.pickle").exists()

        # Done by one and failed on the other at the very step: put back before it begins.
        breaks = (
            "import probe.job.actions.interventions.skip_nonfinite as one\n"
            "one.SkipNonfinite.begin = lambda self: 1 / 0"
        )
        post(place, "/v1/eval", endpoint=f"{ranks.name}/1", code=breaks, when="now")
        with pytest.raises(NotTogether, match=r"rank 1: .*ZeroDivisionError.*undone before step \d+"):
            act(place, ranks.name, "skip_nonfinite")
        states = last_states(place, ranks.name)
        assert states[1][0] == "failed" and states[0][0] == "cancelled" and "reverted" in states[0][1]
        for rank in (0, 1):
            assert [one["action"] for one in in_force(place, ranks, rank)] == ["clip"]

        # Stopped: nobody has it, within the deadline; and the training goes on as if nothing had been asked.
        ranks[1].signal(signal.SIGSTOP)
        asked = Asked(lambda: act(place, ranks.name, "lr", wait_s=5.0, scale=0.5))
        with pytest.raises(NotTogether, match=r"rank 1: .*stopped"):
            asked.outcome()
        ranks[1].signal(signal.SIGCONT)
        time.sleep(0.5)  # whatever would be done late is done by now
        assert set(first_steps(place, ranks.name)) == {0.01}
        assert not any(one["action"] == "lr" for rank in (0, 1) for one in in_force(place, ranks, rank))
        results = end(ranks)
    assert is_as_without_probe(place, results)


@pytest.mark.campaign
@pytest.mark.parametrize(("way", "pace_ms", "times"), [("reduce", 0, 20), ("ddp", 5, 20), ("ddp", 50, 10)])
def test_however_short_the_steps_are_every_change_is_at_one_step(
    place: Place, way: str, pace_ms: int, times: int
) -> None:
    with running_ranks(
        place, 4, "parallel", "--way", way, "--forever", "--pace-ms", str(pace_ms),
        PROBE_QUERY_TIMEOUT_S="60", **SERVER,
    ) as ranks:
        for number in range(times):
            factor = 0.5 if number % 2 == 0 else 2.0
            step = act(place, ranks.name, "lr", scale=factor)["step"]
            before, after = ([rate for rate, in query(
                place, ranks.name, f"SELECT lr FROM python.steps WHERE step = {one}"
            )] for one in (step - 1, step))
            scheduled = 0.5 if step % 1000 == 0 else 1.0
            assert before == [before[0]] * 4 and after == [before[0] * factor * scheduled] * 4
        apart = "SELECT step FROM python.steps GROUP BY step HAVING count(DISTINCT lr) > 1"
        assert query(place, ranks.name, apart) == []
        end(ranks)
