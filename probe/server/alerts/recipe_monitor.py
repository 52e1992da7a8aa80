"""Monitor: runs the recipes while jobs run, and sends what they and the watch find to who wants to know.

A task of the server's event loop. Every second it reads what was noted of each process, and the last rows of
each run. It has a query worker run the recipes over the runs that got rows since: every
PROBE_MONITOR_INTERVAL_S, and more rarely as far as that takes more than a hundredth of a core, but at once
where there is a sign that something began (`triggers`) and once more when a process has ended. What is found
becomes incidents (`run_incidents`), messages (`alerts`) and, where somebody configured that, an action on the
job. A run that cannot be judged costs itself a round. Standard library, and numpy through the ring reader.
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
from probe.diagnose.finding import SEVERITIES, severity_level
from probe.diagnose.incidents import OPENED, RAISED, RESOLVED, RETURNED, Incident
from probe.diagnose.recipes.library import Library, installed
from probe.diagnose.recipes.recipe import JOB, Check
from probe.recording import places
from probe.server.alerts.alerts import Alerts, Message
from probe.server.alerts.destinations import Rule, Store, may_act
from probe.server.alerts.run_incidents import LATE_S, WATCHED, News, RunIncidents, as_dict, of_event
from probe.server.alerts.triggers import Triggers
from probe.server.answers import recipe_runs
from probe.server.hosts.dispatch import act_for
from probe.server.recordings.registry import Recorded
from probe.server.runtime import access, supervision
from probe.server.runtime.request_bodies import ActBody
from probe.server.runtime.supervision import FAILURES
from probe.server.service import Service

_log = logging.getLogger("probe.monitor")
TICK_S = 1.0
COST_RATIO = 0.01
"""Rounds of all runs together take no more of one core, in the long run."""
CREDIT_S, RESERVE_S, DEBT_S = 3.0, 1.0, 1.0
"""Processor time that may be used ahead, how much of that is kept for rounds after a sign, and how much these
may borrow: paid back by those that are not urgent."""
ACT_AGAIN_S = 600.0
"""At most one automatic action on a run within this time."""
ACT_WAIT_S = 30.0
ENDED_KEPT = 200
"""Incidents of runs that have ended, which are listed on."""
GRACE_S = 60.0
"""A process that has ended is looked at for so long: how it ended is noted after it."""
_WORDS = {OPENED: "", RAISED: "worse: ", RETURNED: "still there: ", RESOLVED: "over: "}


@dataclass
class _Run:
    """What the monitor remembers of one run."""

    state: RunIncidents
    triggers: dict[Path, Triggers] = field(default_factory=dict)
    judged_s: float = -math.inf
    """When its last round began; before the first one long ago, also on a host that has just started."""
    judged_rows: int = -1
    urgent: bool = True
    """Something began, or ended: the next round is not put off."""
    ended_s: dict[str, float] = field(default_factory=dict)
    """When each process that has ended was seen to have."""
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
        self._follows: dict[str, list[str]] = {}
        """Of each recipe those of which its finding is a consequence."""
        self._credit_s = CREDIT_S
        self._counted_s = time.monotonic()
        self._over: deque[dict[str, Any]] = deque(maxlen=ENDED_KEPT)
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._acting: set[asyncio.Task[None]] = set()
        self.acted: dict[tuple[str, str, str], str] = {}
        """What came of each rule the last time, by its key."""

    # From start to end ---------------------------------------------------------------

    def start(self) -> None:
        """Begin, on the event loop; a task that fails is noted and begun again."""
        self._task = asyncio.ensure_future(self._go_on())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            supervision.note("the monitor", task.exception())
            asyncio.get_running_loop().call_later(supervision.FIRST_PAUSE_S, self._begin_again)

    def _begin_again(self) -> None:
        if not self._stopped:
            self.start()

    async def stop(self) -> None:
        """End, and give up what is on its way."""
        self._stopped = True
        tasks = [task for task in (self._task, *self._acting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.alerts.close()

    @property
    def busy(self) -> bool:
        """Whether the server is needed for what is on its way."""
        return self.alerts.busy or bool(self._acting)

    async def _go_on(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                await self.tick()
            except FAILURES as error:
                supervision.note("the monitor", error)
            await asyncio.sleep(max(0.1, TICK_S - (time.monotonic() - began_s)))

    async def tick(self) -> None:
        """Read what was noted, and run the recipes where that is due."""
        for run, news in await self._service.call(self._look):
            self._tell(run, news)
        if self._service.settings.monitor:
            for run in sorted(self._runs.values(), key=lambda run: run.judged_s):
                if self._is_due(run):
                    await self._judge(run)
        await self._service.call(self._forget)

    # What was noted ------------------------------------------------------------------

    def _look(self) -> list[tuple[_Run, list[News]]]:
        """News of every process that lives or has ended lately. Blocks."""
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
                news, ended = run.state.look(registry, recorded)
            except FAILURES as error:
                self._failed(run, f"{recorded.folder} cannot be read: {error}")
                continue
            if ended:
                run.ended_s[str(recorded.folder)] = time.monotonic()
                run.urgent, run.judged_rows = True, -1
            if news:
                found.append((run, news))
        for run in self._runs.values():
            run.urgent |= _signs(run)
        return found

    def _processes(self) -> list[Recorded]:
        """The processes that are looked at. New ones are looked for as often as that costs next to nothing:
        there may be thousands of old recordings."""
        now_s, began_s = time.monotonic(), time.thread_time()
        if now_s >= self._scan_due_s:
            every = self._service.registry.processes()
            self._ignored &= {one.folder for one in every}
            self._scanned = [one for one in every if one.folder not in self._ignored]
            self._scan_due_s = now_s + (time.thread_time() - began_s) / COST_RATIO
        return self._scanned

    def _forget(self) -> None:
        """Let go of runs whose processes have all ended and were looked at once more."""
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
        """Whether a round is to be made now: there are new rows, and there is time for it."""
        now_s = time.monotonic()
        earned_s = (now_s - self._counted_s) * COST_RATIO
        self._credit_s, self._counted_s = min(CREDIT_S, self._credit_s + earned_s), now_s
        ended = run.judged_rows < 0 and run.judged_s > -math.inf
        waited = now_s - run.judged_s >= self._service.settings.monitor_interval_s
        if _rows(run) == run.judged_rows or not (waited or ended):
            return False
        return ended or self._credit_s > (-DEBT_S if run.urgent else RESERVE_S)

    async def _judge(self, run: _Run) -> None:
        """One round of recipes over a run."""
        ranks = run.state.recorded
        if not ranks:
            return
        urgent, run.urgent = run.urgent, False
        run.judged_rows, run.judged_s = _rows(run), time.monotonic()
        used_s = self._service.pool.cpu_s()
        try:
            checks = await self._check(ranks, background=not urgent)
            news = await self._service.call(run.state.take_round, checks)
            self._tell(run, news)
            run.failure = ""
        except ProbeError as error:
            self._failed(run, f"the recipes were not run: {error.message}")
        self._credit_s -= max(0.0, self._service.pool.cpu_s() - used_s)

    async def _check(self, ranks: Sequence[Recorded], *, background: bool) -> list[Check]:
        first = ranks[0].meta
        wanted = [
            one for one in (await self._recipes()).values()
            # What is the same on all ranks is judged where rank 0 is; other hosts have their own memory.
            if first.rank == 0 or one.scope == JOB
        ]
        several = len(ranks) > 1 or (first.world_size or 1) > 1
        endpoint = first.job if several else str(first.pid)
        return await recipe_runs.run_here(self._service, ranks, wanted, endpoint, background=background)

    async def _recipes(self) -> Library:
        library = await self._service.call(installed, self._service.settings.recipes)
        self._follows = {recipe.name: recipe.follows for recipe in library.values()}
        return library

    def _failed(self, run: _Run, what: str) -> None:
        if run.failure != what:
            _log.warning("%s: %s", run.state.run, what)
        run.failure = what

    # What comes of it --------------------------------------------------------------------

    def _tell(self, run: _Run, news: Sequence[News]) -> None:
        """Send messages, one for each recipe and kind of event; and do what was configured. What follows
        from something else that is told, and is no worse, is not told beside it."""
        groups: dict[tuple[str, str], list[News]] = {}
        for one in news:
            if one.event.tell:
                groups.setdefault((one.event.incident.recipe, one.event.kind), []).append(one)
        for same in groups.values():
            event = same[0].event
            if not self._follows_open(run, event.incident):
                known = frozenset.intersection(*(one.known for one in same))
                self.alerts.send(message_of(same), known)
            late = event.incident.opened_s * 1e9 < self._began_ns
            if event.kind in (OPENED, RAISED) and may_act(event.incident.severity) and not late:
                self._act(run, event.incident.recipe)

    def _follows_open(self, run: _Run, incident: Incident) -> bool:
        """Whether an incident is a consequence of another one that is open and as bad."""
        causes = self._follows.get(incident.recipe, [])
        worse = SEVERITIES[severity_level(incident.severity):]
        return any(one.recipe in causes and one.severity in worse for one in run.state.incidents.open())

    def _act(self, run: _Run, recipe: str) -> None:
        """What is to be done when `recipe` opens an incident in this run."""
        for rule in self.store.kept.rules:
            if rule.run != run.state.run or rule.recipe != recipe:
                continue
            now_s = time.monotonic()
            if run.acted_s is not None and now_s - run.acted_s < ACT_AGAIN_S:
                self.acted[rule.key] = "not done: another was done in the last ten minutes"
                continue
            run.acted_s = now_s
            task = asyncio.ensure_future(self._do(rule))
            self._acting.add(task)
            task.add_done_callback(self._acting.discard)

    async def _do(self, rule: Rule) -> None:
        """One action, the way that everybody's takes: between two steps, on all ranks, audited by the job."""
        caller = access.Caller(os.getuid(), os.getpid(), "unix", access.MONITOR)
        body = ActBody(
            endpoint=rule.run, action=rule.action, arguments=rule.arguments, now=rule.now, wait_s=ACT_WAIT_S
        )
        try:
            answer = await act_for(self._service, body, caller)
            self.acted[rule.key] = str(answer.get("what") or "done")
        except ProbeError as error:
            self.acted[rule.key] = f"not done: {error.message}"
        _log.info("%s: %s: %s: %s", rule.job, rule.recipe, rule.words, self.acted[rule.key])

    # What there is ---------------------------------------------------------------------

    def listed(self, everything: bool = False) -> list[dict[str, Any]]:
        """Open incidents, of all runs: those that live and, with `everything`, those that have ended."""
        found = [one for run in list(self._runs.values()) for one in self._listed(run)]
        return found + (list(self._over) if everything else [])

    def _listed(self, run: _Run) -> list[dict[str, Any]]:
        ranks = run.state.recorded
        return [
            as_dict(one, run.state.own.get(one.id, ranks[0]), lives=run.state.lives)
            for one in run.state.incidents.open() if ranks
        ]

    async def names(self) -> frozenset[str]:
        """What an incident may be named after: recipes, and what the watch finds."""
        return WATCHED | frozenset(await self._recipes())


def _is_recent(recorded: Recorded) -> bool:
    """Whether something was noted of a process lately: it has just ended, or ended while no server was."""
    now_s = time.time()
    for path in places.journals(recorded.folder):
        with contextlib.suppress(OSError):
            if now_s - path.stat().st_mtime < LATE_S:
                return True
    return False


def _signs(run: _Run) -> bool:
    """Whether something began in a run: on its lowest rank, which is the one that is judged first. Blocks."""
    ranks = run.state.recorded
    if not ranks:
        return False
    return run.triggers.setdefault(ranks[0].folder, Triggers()).look(ranks[0])


def _rows(run: _Run) -> int:
    """Rows there are to judge, as of the last look."""
    return sum(one.rows for one in run.triggers.values())


def message_of(news: Sequence[News]) -> Message:
    """The message about events of one kind and one recipe: the worst in full, the others counted."""
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

