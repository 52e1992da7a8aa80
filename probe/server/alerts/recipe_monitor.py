"""Monitor: runs the recipes while jobs run, and sends alerts about their findings and those of the watch.

A task of the server's event loop. Every second it reads the server's journal of each process and the last
rows of each run. Recipes run in a query worker over the runs that have new rows: every
PROBE_MONITOR_INTERVAL_S, less often if that takes more than a hundredth of a core, at once on a sign of
trouble (`triggers`), and once more when a process has ended. Findings become incidents (`run_incidents`),
messages (`alerts`) and, if configured, actions on the job. A run that cannot be read is skipped for a round.
Standard library, and numpy through the ring reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probe.base import clock
from probe.base.errors import ProbeError
from probe.diagnose.explanations import explanations
from probe.diagnose.finding import SEVERITIES, Finding, severity_level
from probe.diagnose.incidents import OPENED, RAISED, RESOLVED, RETURNED, Incident
from probe.diagnose.recipes.library import Library, installed
from probe.diagnose.recipes.recipe import FOUND, JOB, Check
from probe.recording import places
from probe.server.alerts.alerts import Alerts, Message
from probe.server.alerts.destinations import Rule, Store, may_act
from probe.server.alerts.run_incidents import LATE_S, WATCHED, News, RunIncidents, as_dict, of_event
from probe.server.alerts.triggers import SpikeThresholds, Triggers, spike_thresholds
from probe.server.answers import recipe_runs
from probe.server.hosts import dispatch, fanout
from probe.server.recordings.registry import Recorded
from probe.server.runtime import access, supervision
from probe.server.runtime.request_bodies import ActBody
from probe.server.runtime.supervision import FAILURES
from probe.server.service import Service

_log = logging.getLogger("probe.monitor")
TICK_S = 1.0
COST_RATIO = 0.01
"""Share of one core that the rounds of all runs may use, in the long run."""
CREDIT_S, RESERVE_S, DEBT_S = 3.0, 1.0, 1.0
"""CPU time that can be saved up, how much of it is reserved for urgent rounds, and how much these may
overdraw."""
ACT_AGAIN_S = 600.0
"""At most one automatic action on a run within this time."""
ACT_WAIT_S = 30.0
ENDED_KEPT = 200
"""Incidents of ended runs that stay listed."""
GRACE_S = 60.0
"""How long an ended process is still read: the record of its end follows later."""
_WORDS = {OPENED: "", RAISED: "worse: ", RETURNED: "still there: ", RESOLVED: "over: "}


@dataclass
class _Run:
    """The monitor's state of one run."""

    state: RunIncidents
    triggers: dict[Path, Triggers] = field(default_factory=dict)
    checked_s: float = -math.inf
    """When its last round started."""
    checked_rows: int = -1
    urgent: bool = True
    """There is a sign of trouble, or a process ended: the next round is not postponed."""
    ended_s: dict[str, float] = field(default_factory=dict)
    """When each ended process was noticed to have ended."""
    acted_s: float | None = None
    failure: str = ""


class Monitor:
    """The monitor of one server; `start` and `stop` its task."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.store = Store(service.registry.directory)
        self.alerts = Alerts(service.settings, self.store)
        self._began_ns = clock.wall_ns()
        self._runs: dict[tuple[str, int], _Run] = {}
        self._ignored: set[Path] = set()
        self._scanned: list[Recorded] = []
        self._scan_due_s = 0.0
        self._library = Library()
        """The recipes of the last round."""
        self._spikes: SpikeThresholds | None = None
        """Set by the first round, which does not wait for a trigger."""
        self._credit_s = CREDIT_S
        self._counted_s = time.monotonic()
        self._over: deque[dict[str, Any]] = deque(maxlen=ENDED_KEPT)
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._acting: set[asyncio.Task[None]] = set()
        self.acted: dict[tuple[str, str, str], str] = {}
        """The last outcome of each rule, by its key."""

    # Start and end -------------------------------------------------------------------

    def start(self) -> None:
        """Start on the event loop; a task that fails is logged and restarted."""
        if not self._stopped:
            self._task = asyncio.ensure_future(self._run())
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            supervision.note("the monitor", task.exception())
            asyncio.get_running_loop().call_later(supervision.FIRST_PAUSE_S, self.start)

    async def stop(self) -> None:
        """End, and cancel messages and actions in progress."""
        self._stopped = True
        await supervision.end_tasks(task for task in (self._task, *self._acting) if task is not None)
        await self.alerts.close()

    @property
    def busy(self) -> bool:
        """Whether messages or actions are in progress."""
        return self.alerts.busy or bool(self._acting)

    async def _run(self) -> None:
        while not self._stopped:
            began_s = time.monotonic()
            try:
                await self.tick()
            except FAILURES as error:
                supervision.note("the monitor", error)
            await asyncio.sleep(max(0.1, TICK_S - (time.monotonic() - began_s)))

    async def tick(self) -> None:
        """Read the journals, and run the recipes where that is due."""
        for run, news in await self._service.call(self._read_journals):
            self._report(run, news)
        if self._service.settings.monitor:
            for run in sorted(self._runs.values(), key=lambda run: run.checked_s):
                if self._is_due(run):
                    await self._check_run(run)
        await self._service.call(self._forget)

    # Journals ------------------------------------------------------------------------

    def _read_journals(self) -> list[tuple[_Run, list[News]]]:
        """News of every process that lives or has ended recently. Blocks."""
        found: list[tuple[_Run, list[News]]] = []
        registry = self._service.registry
        for recorded in self._processes():
            key = (recorded.meta.run, recorded.meta.attempt)
            run = self._runs.get(key)
            known = run is not None and str(recorded.folder) in run.state.tailed
            if not known and not registry.lives(recorded) and not _is_recent(recorded):
                self._ignored.add(recorded.folder)
                continue
            if run is None:
                run = self._runs[key] = _Run(RunIncidents(*key, self._began_ns))
            try:
                news, ended = run.state.read_news(registry, recorded)
            except FAILURES as error:
                self._failed(run, f"{recorded.folder} cannot be read: {error}")
                continue
            if ended:
                run.ended_s[str(recorded.folder)] = time.monotonic()
                run.urgent, run.checked_rows = True, -1
            if news:
                found.append((run, news))
        for run in self._runs.values():
            for recorded in run.state.recorded[:1]:  # the lowest rank, which recipes about one rank check
                triggers = run.triggers.setdefault(recorded.folder, Triggers())
                run.urgent |= triggers.check(recorded, self._spikes)
        return found

    def _processes(self) -> list[Recorded]:
        """The processes to read. The search for new ones uses at most a hundredth of a core: there may be
        thousands of old recordings."""
        now_s, began_s = time.monotonic(), time.thread_time()
        if now_s >= self._scan_due_s:
            every = self._service.registry.processes()
            self._ignored &= {one.folder for one in every}
            self._scanned = [one for one in every if one.folder not in self._ignored]
            self._scan_due_s = now_s + (time.thread_time() - began_s) / COST_RATIO
        return self._scanned

    def _forget(self) -> None:
        """Drop runs whose processes have all ended and had their last round."""
        now_s = time.monotonic()
        for key, run in list(self._runs.items()):
            over = [now_s - run.ended_s.get(folder, now_s) > GRACE_S for folder in run.state.tailed]
            if all(over):
                self._over.extend(self._listed(run))
                gone = {one.recorded.folder for one in run.state.tailed.values()}
                self._ignored |= gone
                self._scanned = [one for one in self._scanned if one.folder not in gone]
                del self._runs[key]

    # Recipes ---------------------------------------------------------------------------

    def _is_due(self, run: _Run) -> bool:
        """Whether to run a round now: there are new rows, and CPU time for it."""
        now_s = time.monotonic()
        earned_s = (now_s - self._counted_s) * COST_RATIO
        self._credit_s, self._counted_s = min(CREDIT_S, self._credit_s + earned_s), now_s
        ended = run.checked_rows < 0 and run.checked_s > -math.inf
        waited = now_s - run.checked_s >= self._service.settings.monitor_interval_s
        if _rows(run) == run.checked_rows or not (waited or ended):
            return False
        return ended or self._credit_s > (-DEBT_S if run.urgent else RESERVE_S)

    async def _check_run(self, run: _Run) -> None:
        """One round of recipes over a run."""
        ranks = run.state.recorded
        if not ranks:
            return
        urgent, run.urgent = run.urgent, False
        run.checked_rows, run.checked_s = _rows(run), time.monotonic()
        used_s = self._service.pool.cpu_s()
        try:
            checks = await self._check(ranks, background=not urgent)
            news = await self._service.call(run.state.take_round, checks)
            self._report(run, news)
            run.failure = ""
        except ProbeError as error:
            self._failed(run, f"the recipes could not run: {error.message}")
        self._credit_s -= max(0.0, self._service.pool.cpu_s() - used_s)

    async def _check(self, ranks: Sequence[Recorded], *, background: bool) -> list[Check]:
        first = ranks[0].meta
        wanted = [
            one for one in (await self._recipes()).values()
            # Recipes about one rank run where rank 0 is; recipes about the job's ranks run on every host.
            if first.rank == 0 or one.scope == JOB
        ]
        several = len(ranks) > 1 or (first.world_size or 1) > 1
        endpoint = first.job if several else str(first.pid)
        ran = await recipe_runs.run_recipes(
            self._service, fanout.Found(list(ranks), endpoint, whole=len(ranks) > 1), wanted, endpoint,
            access.Caller(None, None, "unix", access.OWNER), scope="host",
            timeout_s=recipe_runs.BACKGROUND_S, background=background,
        )
        return ran.checks

    async def _recipes(self) -> Library:
        library = await self._service.call(installed, self._service.settings.recipes)
        self._library = library
        self._spikes = spike_thresholds(library)
        return library

    def _failed(self, run: _Run, what: str) -> None:
        if run.failure != what:
            _log.warning("%s: %s", run.state.run, what)
        run.failure = what

    # Messages and actions ------------------------------------------------------------------

    def _report(self, run: _Run, news: Sequence[News]) -> None:
        """Send messages, one for each recipe and kind of event, and run the configured actions. There is no
        message about a consequence of an open incident that is as bad."""
        groups: dict[tuple[str, str], list[News]] = {}
        for one in news:
            if one.event.tell:
                groups.setdefault((one.event.incident.recipe, one.event.kind), []).append(one)
        for same in groups.values():
            event = same[0].event
            if not self._is_explained(run, event.incident):
                known = frozenset.intersection(*(one.known for one in same))
                self.alerts.send(message_of(same), known)
            late = event.incident.opened_s * 1e9 < self._began_ns
            if event.kind in (OPENED, RAISED) and may_act(event.incident.severity) and not late:
                self._act(run, event.incident.recipe)

    def _is_explained(self, run: _Run, incident: Incident) -> bool:
        """Whether an incident is a consequence of another open one that is as bad."""
        cause = self._explanations(run).get(incident.recipe)
        worse = SEVERITIES[severity_level(incident.severity):]
        return any(one.recipe == cause and one.severity in worse for one in run.state.incidents.open())

    def _explanations(self, run: _Run) -> dict[str, str]:
        """The cause of each open incident that is a consequence of another, by recipe."""
        findings: dict[str, list[Finding]] = {}
        for one in run.state.incidents.open():
            findings.setdefault(one.recipe, []).append(one.finding)
        return explanations(
            Check(recipe, FOUND, findings[name]) for name, recipe in self._library.items() if name in findings
        )

    def _act(self, run: _Run, recipe: str) -> None:
        """Run the actions that are configured for an incident of `recipe` in this run."""
        for rule in self.store.config.rules:
            if rule.run != run.state.run or rule.recipe != recipe:
                continue
            now_s = time.monotonic()
            if run.acted_s is not None and now_s - run.acted_s < ACT_AGAIN_S:
                self.acted[rule.key] = "not done: another action ran in the last ten minutes"
                continue
            run.acted_s = now_s
            task = asyncio.ensure_future(self._do(rule))
            self._acting.add(task)
            task.add_done_callback(self._acting.discard)

    async def _do(self, rule: Rule) -> None:
        """Run one action as if a user had sent it: between two steps, on all ranks, recorded by the job."""
        caller = access.Caller(os.getuid(), os.getpid(), "unix", access.MONITOR)
        body = ActBody(
            endpoint=rule.run, action=rule.action, arguments=rule.arguments, now=rule.now, wait_s=ACT_WAIT_S
        )
        try:
            answer = await dispatch.act(self._service, body, caller)
            self.acted[rule.key] = str(answer.get("what") or "done")
        except ProbeError as error:
            self.acted[rule.key] = f"not done: {error.message}"
        _log.info("%s: %s: %s: %s", rule.job, rule.recipe, rule.words, self.acted[rule.key])

    # Open incidents --------------------------------------------------------------------

    def listed(self, everything: bool = False) -> list[dict[str, Any]]:
        """Open incidents of all living runs and, with `everything`, of ended ones."""
        found = [one for run in list(self._runs.values()) for one in self._listed(run)]
        return found + (list(self._over) if everything else [])

    def _listed(self, run: _Run) -> list[dict[str, Any]]:
        ranks = run.state.recorded
        causes = self._explanations(run)
        return [
            {**as_dict(one, run.state.own.get(one.id, ranks[0]), lives=run.state.lives),
             "explained_by": causes.get(one.recipe)}
            for one in run.state.incidents.open() if ranks
        ]

    async def names(self) -> frozenset[str]:
        """The names that incidents can have: recipes, and states that the watch reports."""
        return WATCHED | frozenset(await self._recipes())


def _is_recent(recorded: Recorded) -> bool:
    """Whether its journals are recent: it has just ended, or ended while no server was running."""
    now_s = time.time()
    for path in places.journals(recorded.folder):
        with contextlib.suppress(OSError):
            if now_s - path.stat().st_mtime < LATE_S:
                return True
    return False


def _rows(run: _Run) -> int:
    """The number of rows at the last check of its triggers."""
    return sum(one.rows for one in run.triggers.values())


def message_of(news: Sequence[News]) -> Message:
    """The message about events of one kind and one recipe: the worst in full, and how many others."""
    worst = max(news, key=lambda one: severity_level(one.event.incident.severity))
    event, meta = worst.event, worst.recorded.meta
    incident, found = event.incident, of_event(event)
    what = found.what.removeprefix("over: ")
    title = f"{_WORDS[event.kind]}{meta.job}: {found.state if event.kind != RESOLVED else what}"
    lines = [what] if event.kind != RESOLVED else []
    if len(news) > 1:
        others = [one.event.incident.finding.subject for one in news if one is not worst]
        lines.append(f"and {len(others)} more: {', '.join(others[:8])}{', …' if len(others) > 8 else ''}")
    if event.kind != RESOLVED:
        lines += [*(f"why   {line}" for line in found.why), *(f"next  {line}" for line in found.next)]
    rank = "" if (meta.world_size or 1) < 2 else f", rank {meta.rank} of {meta.world_size}"
    lines.append(f"{incident.recipe}, incident {incident.id}; pid {meta.pid} on {meta.host}{rank}")
    return Message(
        incident.id, incident.recipe, incident.severity, event.kind,
        f"[{incident.severity}] {title}", "\n".join(lines), meta.run, worst.recorded.folder,
    )

