"""Numbers and names arrive as they were, or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable

from agent.asking import ask, query, without_times
from agent.nursery import Forked
from harness import Place


def test_odd_numbers_and_names_are_kept_as_they_are(fork: Callable[..., Forked], place: Place) -> None:
    plain, job = fork("odd_numbers", watched=False), fork("odd_numbers", "--hold")
    result = job.result()
    assert without_times(result) == without_times(plain.result())
    losses = [float.fromhex(loss) for loss in result["losses"]]
    rows = query(place, job.pid, "SELECT loss::VARCHAR, finite FROM python.losses ORDER BY step")
    for (text, finite), loss in zip(rows, losses, strict=True):
        assert float(text).hex() == loss.hex() and finite == math.isfinite(loss)
    # A loss is a mean, and a mean has no negative zero; a value that is logged may be one.
    means = ["0.0" if text == "-0.0" else text for text, _ in rows]
    assert query(place, job.pid, "SELECT loss::VARCHAR FROM python.steps ORDER BY step") == [
        [text] for text in means
    ]
    values = "SELECT name, list(value::VARCHAR ORDER BY step) FROM python.scalars GROUP BY name"
    logged = query(place, job.pid, values)
    expected = {
        "plain", " ", "two\nlines", "nul\0inside", "\\ud800 alone", "'; DROP TABLE python.scalars; --",
        "é" * 1999 + "…",
    }
    assert {name for name, _ in logged} == expected
    for name, values in logged:
        assert (name, ["0.0" if text == "-0.0" else text for text in values]) == (name, means)
    assert list(ask(place, job.pid, "GET", "/v1/health")["failures"]) == ["log"]
    place.failures_expected = True
    # What is no number is a line of its own on stderr, the first time alone.
    said = "probe: log failed and will not be reported again: "
    said += "OverflowError: int too large to convert to float\n"
    assert (job.let_go(), job.errors()) == (0, said)
