"""A training at which snippets are thrown, and what it must be at its end: as if nobody had asked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from agent.asking import ask, tell, without_times
from agent.nursery import Forked, Nursery, forked
from harness import PATIENCE_S, Place

PROGRAM = "draws_from_everything"
PACE = ("--pace-ms", "15")
"""A boundary comes 60 times a second; and no minute of training is to be done again for a comparison."""


def snippet(place: Place, pid: int, code: str, **wanted: Any) -> dict[str, Any]:
    """The agent's answer to a snippet: 30 s to wait for a boundary and 10 s to run unless `wanted`."""
    body = {"code": code, "timeout_s": 10.0, "wait_s": 30.0, **wanted}
    answer: dict[str, Any] = ask(place, pid, "POST", "/v1/eval", body, PATIENCE_S)
    return answer


@contextlib.contextmanager
def undisturbed(nursery: Nursery, place: Place, **environ: str) -> Iterator[Forked]:
    """A job that trains during the block; afterwards its losses, weights, buffers, random states and
    modes are those of one without probe that made as many steps."""
    with forked(nursery, place, (PROGRAM, "--forever", *PACE, "--hold"), **environ) as [job]:
        job.wait_for("READY")
        yield job
        tell(job)
        disturbed = without_times(job.result())
        ended = (job.let_go(), job.errors())
        assert ended == (0, ""), ended
    plain = alone(nursery, place, disturbed["steps"])
    for name, value in plain.items():
        assert disturbed[name] == value, first_difference(name, disturbed[name], value)


def first_difference(name: str, disturbed: Any, plain: Any) -> str:
    """Where two results part, for who reads of a failure."""
    if isinstance(plain, dict):
        parts = [(key, disturbed.get(key), plain[key]) for key in plain if disturbed.get(key) != plain[key]]
        return f"{name}: {parts}"
    if isinstance(plain, list):
        places = [place for place, one in enumerate(plain) if disturbed[place : place + 1] != [one]]
        return f"{name} of {len(plain)}: from {places[:1]}, {len(places)} differ"
    return f"{name}: {disturbed} and not {plain}"


def alone(nursery: Nursery, place: Place, steps: int) -> dict[str, Any]:
    """The result of so many steps without probe."""
    with forked(nursery, place, (PROGRAM, "--steps", str(steps)), watched=False) as [job]:
        return without_times(job.result())
