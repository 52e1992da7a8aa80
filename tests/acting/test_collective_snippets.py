"""Collectives of a snippet that all ranks run at the same boundary: carried by a group of our own."""

from __future__ import annotations

from typing import Any

import pytest

from harness import Place
from probe.job.boundary.own_group import difference
from ranks import running_ranks

Found = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found() -> Any:
    """What came of every snippet of tests/programs/collective_snippets.py, by rank."""
    place = Place()
    try:
        with running_ranks(place, 2, "collective_snippets", watched=False, ready="") as ranks:
            yield [job.result() for job in ranks.jobs]
    finally:
        place.remove()


def message(found: Found, name: str, rank: int) -> str:
    """What a snippet raised there."""
    return str((found[rank][name]["error"] or {}).get("message"))


def test_collectives_of_a_snippet_do_what_they_say_on_all_ranks(found: Found) -> None:
    gathered = "[{'rank': 0}, {'rank': 1}]"
    first, second = (one["alike"]["value"] for one in found)
    assert f"[3.0, 3.0, 3.0] {gathered} [0.0, 1.0, 10.0, 11.0]" in first and "[tensor([3.]), tensor" in first
    assert f"[3.0, 3.0, 3.0] {gathered} [2.0, 3.0, 12.0, 13.0]" in second and second.endswith("None\"")
    assert [one["the default group by name"]["value"] for one in found] == ["2.0", "2.0"]


def test_the_jobs_groups_count_nothing_of_it_and_nothing_of_it_stays(found: Found) -> None:
    for one in found:
        job = one["job"]
        assert job["before"] == job["after"] == [1, 0]
        assert (job["groups"], job["count"], job["total"]) == (2, 2, 2.0)
        assert job["descriptors"][0] >= job["descriptors"][1]  # the first may have caught the agent at a read


@pytest.mark.parametrize("name", ["sizes", "types", "operations", "roots", "one catches"])
def test_ranks_that_call_different_things_are_told_both_and_call_nothing(found: Found, name: str) -> None:
    told = [message(found, name, rank) for rank in (0, 1)]
    assert told[0] == told[1] and "the ranks make different calls: rank 0: " in told[0], told


def test_an_exchange_whose_parts_do_not_fit_is_not_made(found: Found) -> None:
    assert "rank 0 sends to rank 0 something other" in message(found, "exchange", 1)


def test_a_rank_whose_snippet_ended_first_is_named_where_others_wait(found: Found) -> None:
    assert "division by zero" in message(found, "one raises", 0)
    assert "rank 0 had ended its snippet" in message(found, "one raises", 1)
    for name in ("the other raises", "half way"):
        assert "division by zero" in message(found, name, 1)
        assert "rank 1 ended its snippet before `allreduce([2 float32]" in message(found, name, 0)


def test_a_rank_that_comes_too_late_is_named_and_the_job_goes_on(found: Found) -> None:
    assert "rank 1 did not reach `allreduce" in message(found, "one is late", 0)
    assert found[1]["one is late"]["cut"].startswith("SnippetTimeout")
    assert [one["alike again"]["value"] for one in found] == ["2.0", "2.0"]


def test_what_would_count_in_the_jobs_groups_or_change_them_is_refused(found: Found) -> None:
    for rank in (0, 1):
        assert "on a group that the snippet names" in message(found, "a group of the job's", rank)
        for name in ("a new group", "one to another", "functional"):
            assert "on the job's own groups, or changes them" in found[rank][name]["cut"]


def test_an_exchange_is_compared_part_by_part() -> None:
    def call(out: list[int], given: list[int]) -> dict[str, Any]:
        return {"op": "alltoall_base", "arguments": [[6, "f"], [6, "f"], out, given]}

    assert difference([call([2, 4], [2, 4]), call([4, 2], [4, 2])]) == ""
    assert "rank 0 sends to rank 1" in difference([call([2, 4], [2, 4]), call([2, 4], [4, 2])])
    assert difference([call([], []), call([], [])]) == ""
