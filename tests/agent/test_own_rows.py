"""Spans, events and tables of the job's own: what is kept of good and bad use, and that no use harms."""

from __future__ import annotations

import signal
from collections.abc import Callable

from agent.asking import query
from agent.nursery import Forked
from harness import Place, end_process
from probe.base.settings import Settings
from probe.recording import layout
from probe.server.recordings.registry import Registry
from probe.server.recordings.sealer import Sealer

SPANS = {
    "inner": [1, 0], "awaited": [1, 0], "in a step": [5, 0], "decorated": [1, 0], "outer": [1, 0],
    "fails": [1, 1],
}


def test_rows_spans_and_events_survive_sigkill_and_bad_use_costs_them_alone(
    fork: Callable[..., Forked], place: Place
) -> None:
    plain = fork("own_rows", watched=False)
    job = fork("own_rows", "--hold")
    assert job.wait_for("READY") == plain.wait_for("READY")
    assert plain.wait() == 0
    job.signal(signal.SIGKILL)
    job.wait()
    said = job.errors()
    assert [line.partition(":")[2].split(". ")[0].strip() for line in said.splitlines()] == [
        "no table of int: it is not a dataclass",
        "no table of Odd: 'odd name' cannot be the name of a table",
        "no table of Step: probe fills in 'step' itself",
        "no table of Listed: <class 'list'> is not a column type",
        "no table of Nested: the type 'Unknown' cannot be read: NameError: name 'Unknown' is not defined",
        "no table of Small: user.small is being recorded with other columns or another text",
        "probe.record did nothing: object is not declared with @probe.table",
        "user.rollout_score.tokens is BIGINT, so int becomes NULL",
    ]
    in_rings = everything(place, job.pid)
    scores, small, spans, events = in_rings
    cut = ("né" * 200).encode()[: layout.TEXT_BYTES - 3].decode(errors="ignore") + "…"
    hidden = "<redacted>"
    assert scores == [
        [0, 0.5, 3, True, "good", hidden], [0, 1.0, None, None, cut, hidden],
        [0, None, 2, True, None, hidden],
        [0, "NaN", 4, False, "a\\x00b password=<redacted>", hidden], [0, "-Infinity", 5, False, "", hidden],
        *([step + 1, float(step), step, None, None, hidden] for step in range(5)),
    ]
    assert small == [[8000, 7, 7]]  # of four threads; none of the child, nor of the compiled function
    assert {name: counts for name, *counts in spans} == SPANS
    assert [row[1:] for row in events] == [
        ["saved", "/there", 3.0, True], ["é" * 126 + "…", None, None, True], [None, None, None, True],
    ]
    server = place.server_pid()  # started by the first query, and seals what is over, too
    assert server is not None
    end_process(server)
    sealer = Sealer(Registry(place.directory), Settings(place.environ()))
    sealer.round()
    assert not sealer.failures and place.ring_files() == []
    assert everything(place, job.pid) == in_rings


def everything(place: Place, pid: int) -> list[list[list[object]]]:
    """What the program recorded itself."""
    return [
        query(place, pid, sql) for sql in (
            "SELECT step, reward, tokens, accepted, prompt, hf_token FROM user.rollout_score ORDER BY t_ns",
            "SELECT count(*), min(number), max(number) FROM user.small",
            "SELECT name, count(*), sum(failed::INT) FROM python.spans WHERE training GROUP BY name",
            "SELECT step, name, text, value, training FROM python.events ORDER BY t_ns",
        )
    ]


def test_a_program_that_starts_recording_late_keeps_what_comes_then(
    fork: Callable[..., Forked], place: Place
) -> None:
    """Before, and in a process that is never recorded, the same calls do nothing."""
    job = fork("own_rows", "--late", "--hold", watched=False)
    job.wait_for("READY")
    assert query(place, job.pid, "SELECT count(*), count(reward) FROM user.rollout_score") == [[10, 9]]
    assert query(place, job.pid, "SELECT count(*) FROM python.spans") == [[10]]
