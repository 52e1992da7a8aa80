"""What `probe top` and the open page ask again and again: nothing of the job, no query, and the truth."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from probe.client.transport import UnixTransport
from probe.diagnose import recent_steps
from probe.recording import places
from probe.recording.layout import NULL_DOUBLE
from probe_cli.commands.ps import known_processes
from probe_cli.core.live_figures import read_figures, said
from probe_cli.core.session import Session
from probe_cli.main import dispatch
from probe_cli.prompts.live_jobs import LiveJobs
from server.beside import Beside, Writer

ROUND = "/v1/ranks?endpoint=gpt&rank=0&amount=tokens&since="
"""What the page asks every two seconds (`run.js`); and the monitor, every eight."""


class Counting(UnixTransport):
    """Asks the server, and remembers which routes."""

    asked: list[str]

    def request(self, method: str, target: str, body: object, timeout_s: float) -> Any:
        self.asked.append(target.partition("?")[0])
        return super().request(method, target, body, timeout_s)


@pytest.fixture
def session(beside: Beside) -> Callable[[str], tuple[Session, list[str]]]:
    """A session on an endpoint, and the routes that it asks."""

    def start(endpoint: str) -> tuple[Session, list[str]]:
        transport = Counting(places.server_socket(beside.directory))
        transport.asked = []
        environ = {"PROBE_DIR": str(beside.directory)}
        found = Session(environ, io.StringIO(), io.StringIO(), io.StringIO(), dispatch, transport)
        found.named = endpoint
        return found, transport.asked

    return start


def listed(session: Session) -> Any:
    """As the live view lists the processes of a host."""
    return known_processes(session, figures=True)


def test_watching_asks_nothing_of_the_job_and_runs_no_query(
    beside: Beside, record: Callable[..., Writer], session: Callable[[str], tuple[Session, list[str]]]
) -> None:
    writer = record(job="gpt")
    beside.start(PROBE_MONITOR="0")
    writer.tell("write 40")
    before = writer.tell("asked")
    for endpoint, route in (("gpt", "/v1/ranks"), ("", "/v1/processes")):
        own, asked = session(endpoint)
        jobs = LiveJobs(own, 1.0, listed)
        for _ in range(3):
            writer.tell("write 10")
            jobs.refresh()
            [row] = jobs.seen.rows
            assert row.figures.loss == 1 / (row.process["step"] + 1), "what the job wrote last"
        assert asked == [route, "/v1/monitor", route, route], "one request each time, the verdicts rarely"
    drawn = 0
    for _ in range(3):
        writer.tell("write 10")
        [rank] = beside.call("GET", f"{ROUND}{drawn}")["ranks"]
        assert rank["since"]["first_step"] == drawn + 1
        drawn = rank["since"]["step"]
    beside.call("GET", "/v1/monitor?endpoint=gpt")
    assert drawn == writer.steps() - 1
    assert writer.tell("asked") == before, "the agent was asked"
    beside.call("GET", f"/v1/backtrace?endpoint={writer.pid}")
    assert writer.tell("asked") != before, "what does ask is seen"


def test_the_figures_beside_a_state_are_those_of_a_query(
    beside: Beside, record: Callable[..., Writer], session: Callable[[str], tuple[Session, list[str]]]
) -> None:
    writer = record(job="gpt")
    beside.start(PROBE_MONITOR="0")
    own, _ = session("gpt")
    for more in ("write 300", "strange", "write 3"):
        writer.tell(more)
        [rank] = beside.call("GET", "/v1/ranks?endpoint=gpt&figures=1")["ranks"]
        shown, [queried] = said(rank), read_figures(own, "gpt", rank["step"]).values()
        assert shown is not None
        assert (shown.shares, shown.memory_bytes) == (queried.shares, queried.memory_bytes)
        for ours, theirs in ((shown.loss, queried.loss), (shown.step_s, queried.step_s)):
            assert ours == pytest.approx(theirs, nan_ok=True), more
        assert shown.curve == pytest.approx(queried.curve), more
        assert len(shown.curve) == recent_steps.PARTS
    [rank] = beside.call("GET", f"{ROUND}299")["ranks"]
    together = rank["since"]
    assert (together["first_step"], together["step"], together["bad"]) == (300, 306, 3)
    assert together["loss"] == pytest.approx([1 / 307, (1 / 305 + 1 / 306 + 1 / 307) / 3, 1 / 305])
    assert together["rate"] == pytest.approx([51_200] * 3) and together["grad_norm"] is None
    noted = rank["noted"]
    [rank] = beside.call("GET", f"{ROUND}306")["ranks"]
    assert rank["since"] is None and rank["noted"] == noted, "nothing is new"
    writer.exit()
    [rank] = beside.call("GET", "/v1/ranks?endpoint=gpt&figures=1&rank=0")["ranks"]
    assert not {"figures", "since"} & rank.keys(), "of what has ended a query is asked, once"


def test_shares_are_those_of_timed_steps_and_what_was_not_measured_is_none() -> None:
    columns = ["wall_s", "loss", "rss_bytes", "forward_s", "backward_s", "comm_s", "shadow", "sampled"]
    rows = np.zeros(3, [(name, "i1" if name in ("shadow", "sampled") else "f8") for name in columns])
    rows["loss"] = rows["comm_s"] = rows["rss_bytes"] = NULL_DOUBLE
    rows["wall_s"], rows["forward_s"], rows["backward_s"] = 4.0, [1.0, 9.0, 1.0], [3.0, 9.0, 3.0]
    rows["sampled"][1] = 1
    assert recent_steps.figures(rows) == {
        "loss": None, "curve": [None], "step_s": 4.0, "shares": {"forward": 0.25, "backward": 0.75},
        "memory_bytes": None,
    }
    assert recent_steps.figures(rows[:0]) is None and recent_steps.together(rows[:0], "1") is None
