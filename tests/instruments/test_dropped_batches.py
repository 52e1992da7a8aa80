"""Batches that never reach a backward: they are counted, and what is wrong with them is read."""

from __future__ import annotations

from collections.abc import Callable

from agent.asking import query, without_times
from agent.nursery import Forked
from harness import Place

COUNT = "SELECT COUNT(*) FILTER (dropped_before) AS n FROM python.batches WHERE state = 'done'"


def test_a_batch_that_a_guard_leaves_out_is_counted_and_its_values_are_read(
    fork: Callable[..., Forked], place: Place
) -> None:
    command = ("drops_batches", "--steps", "40")
    plain, job = fork(*command, watched=False), fork(*command, "--hold", PROBE_BUDGET="100%")
    result = job.result()
    assert without_times(result) == without_times(plain.result())
    [[counted]] = query(place, job.pid, COUNT)
    assert counted == result["dropped"] > 3
    sql = "SELECT DISTINCT name, nan_count > 0, reason FROM python.inputs ORDER BY name"
    assert query(place, job.pid, sql) == [["[0]", True, "dropped"], ["[1]", False, "dropped"]]


def test_losses_that_are_added_up_are_as_many_in_each_step(fork: Callable[..., Forked], place: Place) -> None:
    job = fork("drops_batches", "--kind", "summed", "--steps", "20", "--hold", PROBE_BUDGET="100%")
    assert job.result()["dropped"] == 0
    assert query(place, job.pid, f"SELECT DISTINCT n FROM ({COUNT} GROUP BY step)") == [[1]]
