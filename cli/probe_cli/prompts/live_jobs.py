"""Polls the data of a live view: the jobs of a host, or the ranks of one job.

One request returns the processes with their figures (`live_figures`); another, less often, the verdicts. Only
uses routes that the server answers from its files, without inspecting processes or contacting agents.
`refresh` first runs in the command's main thread, then on its own thread; standard-library layers only.
"""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, NamedTuple

from probe.base.errors import ProbeError, ServerUnavailable
from probe.base.isolation import capture
from probe_cli.core.figures import known
from probe_cli.core.live_figures import UNREAD, Figures, Key, Spacing, read_figures, said, steps_per_s
from probe_cli.core.session import Session
from probe_cli.render.live_table import Row, Verdict
from probe_cli.render.process_state import state_text

_SERVER_WAIT_S = 5.0
"""Time for a server to restart, before the view reports that none answers and retries."""
_LIST_RATIO, _LONGEST_S = 0.02, 5.0
"""Largest share of the time spent waiting for the list of processes, so a long list is requested less often;
and the longest interval, because on a busy machine most of that time was spent waiting."""
_VERDICTS_S = 5.0
"""Interval of requests for verdicts; the monitor examines a job no more often."""
_WORST_FIRST = ("stalled", "dead", "failed", "stopped", "paused", "starting")
"""A job has the first of these states that any of its ranks is in."""
Processes = Callable[[Session], tuple[list[dict[str, Any]], list[str]]]


class Seen(NamedTuple):
    """The last answer: rows, notes, time (`time.monotonic`), and the problem if there is nothing newer."""

    rows: Sequence[Row] = ()
    verdict: Verdict | None = None
    """The newest verdict on any of the rows."""
    notes: Sequence[str] = ()
    at_s: float = 0.0
    problem: str = ""


class LiveJobs:
    """Polls the server; `seen` is its last answer. `processes` lists the processes of the host."""

    def __init__(self, session: Session, interval_s: float, processes: Processes) -> None:
        self.interval_s = interval_s
        self.endpoint = session.address.endpoint
        self.seen = Seen()
        self.may_act = True
        """False for a viewer, from whom the server hides the alert destinations."""
        self.failure: BaseException | None = None
        """The exception that ended the thread, if any."""
        self._session = session.beside(io.StringIO())
        self._list = processes
        self._spacing = Spacing(interval_s)
        self._figures: dict[str, dict[Key, Figures]] = {}
        self._asked_s: dict[str, float] = {}
        self._incidents: list[dict[str, Any]] = []
        self._living: set[str] = set()
        """The runs with a live rank."""
        self._listing_s = 0.0
        self._verdicts_due_s = 0.0
        self._wanted = threading.Event()
        self._over = False

    def start(self, changed: Callable[[], None]) -> None:
        """Poll on a thread until `stop`, and call `changed` after each answer."""

        def ask() -> None:
            while self.failure is None:
                self._wanted.wait(max(self.interval_s, min(self._listing_s / _LIST_RATIO, _LONGEST_S)))
                self._wanted.clear()
                if self._over:
                    return
                _, error = capture(self.refresh)
                if isinstance(error, ProbeError):
                    self._failed(error)
                else:
                    self.failure = error
                changed()

        threading.Thread(target=ask, name="asking", daemon=True).start()

    def stop(self) -> None:
        """Stop polling."""
        self._over = True
        self._wanted.set()

    def refresh_soon(self) -> None:
        """Refresh now instead of after the interval, because an action has just changed something."""
        self._wanted.set()

    def refresh(self, everything: bool = False) -> None:
        """Poll once; `everything`: also query the figures of all ended jobs. Raises the server's
        `ProbeError`."""
        if self.seen.problem:
            self._session.connect(_SERVER_WAIT_S)
        began = time.monotonic()
        found, notes = self._processes()
        self._listing_s = time.monotonic() - began
        jobs: dict[str, list[dict[str, Any]]] = {}
        for one in found:
            jobs.setdefault(str(one.get("run") or one.get("pid")), []).append(one)
        self._living = {run for run in jobs if any(one.get("ended_ns") is None for one in jobs[run])}
        due = sorted((run for run in jobs if self._due(run, jobs[run])), key=self._asked)
        fresh = [run for run in due if run not in self._asked_s]
        chosen = due if everything else fresh[:1] or (due[:1] if self._spacing.due else [])
        problem = ""
        try:
            if chosen:
                began = time.monotonic()
                try:
                    self._ask_more({run: jobs[run] for run in chosen})
                finally:
                    self._spacing.took(time.monotonic() - began)
            self._ask_verdicts()
        except ServerUnavailable:
            raise
        except ProbeError as error:  # such as a query that takes too long; steps and states are known
            problem = error.message
        for one in found:
            newest = said(one)
            if newest is not None and one.get("ended_ns") is None:
                self._figures.setdefault(str(one["run"]), {})[one["rank"], one["pid"]] = newest
        rows = [self._rank(one) for one in found] if self.endpoint else self._jobs(jobs)
        self.seen = Seen(rows, self._newest(self._living), notes, time.monotonic(), problem)

    def _ask_more(self, jobs: Mapping[str, Sequence[dict[str, Any]]]) -> None:
        """Query the figures of these jobs."""
        for run, ranks in jobs.items():
            self._asked_s[run] = time.time()
            steps = [int(one["step"]) for one in ranks if one.get("step") is not None]
            endpoint = self.endpoint if self.endpoint.startswith("/") else run
            self._figures[run] = read_figures(self._session, endpoint, min(steps, default=0))

    def _ask_verdicts(self) -> None:
        if time.monotonic() < self._verdicts_due_s:
            return
        self._verdicts_due_s = time.monotonic() + _VERDICTS_S
        answer = self._session.request("GET", "/v1/monitor")
        self._incidents = list(answer.get("incidents") or ())
        self.may_act = answer.get("destinations") is not None

    def _failed(self, error: ProbeError) -> None:
        if isinstance(error, ServerUnavailable):
            self._session.forget_server()
        self.seen = self.seen._replace(problem=error.message)

    def _processes(self) -> tuple[list[dict[str, Any]], list[str]]:
        if not self.endpoint:
            return self._list(self._session)
        answer = self._session.request("GET", "/v1/ranks", {"endpoint": self.endpoint, "figures": "1"})
        found = [one for one in answer.get("ranks") or () if isinstance(one, dict)]
        return found, [f"missing: {one}" for one in answer.get("missing") or ()]

    def _asked(self, run: str) -> float:
        return self._asked_s.get(run, 0.0)

    def _due(self, run: str, ranks: Sequence[Mapping[str, Any]]) -> bool:
        """Whether the run's figures need a query: once after its end, when they no longer change; and always
        if an older server does not send the figures of live ranks."""
        if ranks[0].get("run") is None:  # waits for torch and is not recorded yet
            return False
        if any(one.get("ended_ns") is None and "figures" not in one for one in ranks):
            return True
        ended_ns = max(one.get("ended_ns") or 0 for one in ranks)
        return ended_ns > 0 and self._asked(run) * 1e9 < ended_ns + 1e9

    # Rows ---------------------------------------------------------------------

    def _jobs(self, jobs: Mapping[str, Sequence[dict[str, Any]]]) -> list[Row]:
        """One row per job, live jobs first, in the order of their start."""
        names = [_name(ranks) for ranks in jobs.values()]
        rows = []
        for (run, ranks), name in zip(jobs.items(), names, strict=True):
            attempt = max(one.get("attempt") or 0 for one in ranks)
            ranks = [one for one in ranks if (one.get("attempt") or 0) == attempt]
            alive = [one for one in ranks if one.get("ended_ns") is None]
            lead = min(alive or ranks, key=lambda one: one.get("rank") or 0)
            endpoint = name if names.count(name) == 1 else run
            row = self._row(lead, (run,), name, endpoint, endpoint)
            memory = [found for one in alive if (found := self._of(one).memory_bytes) is not None]
            states = {str(one.get("state")): state_text(one) for one in ranks}
            worst = next((states[word] for word in _WORST_FIRST if word in states), row.state)
            rows.append(row._replace(
                ranks=(len(alive), len(ranks)), state=worst, memory_bytes=max(memory, default=None),
                verdict=self._newest({run}),
            ))
        return sorted(rows, key=lambda row: not row.lives)

    def _rank(self, one: dict[str, Any]) -> Row:
        given = self.endpoint.partition("/")[0]
        job = str(one.get("run")) if not given or given.isdigit() else given
        return self._row(one, (one.get("run"), one.get("rank")), known(one.get("rank")),
                         f"{job}/{one.get('rank')}", job)

    def _row(self, one: dict[str, Any], key: tuple[Any, ...], name: str, endpoint: str, job: str) -> Row:
        found, lives = self._of(one), one.get("ended_ns") is None
        return Row(
            key, name, endpoint, job, (int(lives), 1), one, state_text(one), lives,
            steps_per_s(found, one.get("last_step_s")) if lives else None, found,
            found.memory_bytes if lives else None,
            self._newest({str(one.get("run"))}, one.get("rank")),
        )

    def _of(self, one: Mapping[str, Any]) -> Figures:
        rank, pid = one.get("rank"), one.get("pid")
        known_ones = self._figures.get(str(one.get("run")), {})
        return UNREAD if rank is None or pid is None else known_ones.get((rank, pid), UNREAD)

    def _newest(self, runs: Set[str], rank: int | None = None) -> Verdict | None:
        """The newest open verdict on the live ones of these runs, or on one rank; severity `info` only if
        there is no other."""
        found = [
            Verdict(str(one["severity"]), one.get("rank"), str(one["what"]), int(one["opened_ns"]))
            for one in self._incidents
            if one.get("run") in runs & self._living and (rank is None or one.get("rank") == rank)
        ]
        return max(found, key=lambda one: (one.severity != "info", one.opened_ns), default=None)


def _name(ranks: Sequence[Mapping[str, Any]]) -> str:
    first = ranks[0]
    return str(first.get("name") or first.get("job") or f"pid {first.get('pid')}")
