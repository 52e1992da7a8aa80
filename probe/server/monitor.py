"""Monitor: runs the recipes while jobs run, and sends what they and the watch find to who wants to know.

A task of the server's event loop. Every second it reads what was noted of each process; every
PROBE_MONITOR_INTERVAL_S, and more rarely where that takes long, it has a query worker run the recipes over
the runs that got rows since, and once more when a process has ended. What is found becomes incidents
(`run_incidents`), messages (`alerts`) and, where somebody configured that, an action on the job. A run that
cannot be judged costs itself a round. Standard library, and numpy through the ring reader.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe import clock
from probe.diagnose import recipes as formats
from probe.diagnose.incidents import OPENED, RAISED, RESOLVED, RETURNED, SEVERITIES, Judged, Seen
from probe.errors import ProbeError, RecordingError
from probe.recording import places
from probe.recording.reader import RingFile
from probe.server import access, recipes
from probe.server.alerts import Alerts, Message
from probe.server.destinations import Rule, Store, may_act
from probe.server.registry import Recorded
from probe.server.run_incidents import LATE_S, WATCHED, News, RunIncidents, as_dict, of_event

if TYPE_CHECKING:
    from probe.server.app import Service

_log = logging.getLogger("probe.monitor")
TICK_S = 1.0
COST_TIMES = 100.0
"""Rounds of all runs together take no more than a hundredth of one core."""
LONGEST_PAUSE_S = 60.0
ACT_AGAIN_S = 600.0
"""At most one automatic action on a run within this time."""
ACT_WAIT_S = 30.0
ENDED_KEPT = 200
"""Incidents of runs that have ended, which are listed on."""
GRACE_S = 60.0
"""A process that has ended is looked at for so long: how it ended is noted after it."""
_SIGNS = ("python.steps", "python.losses", "python.scalars", "python.gradients", "python.activations")
"""Rings of which a new row is worth a round."""
_WORDS = {OPENED: "", RAISED: "worse: ", RETURNED: "still there: ", RESOLVED: "over: "}


@dataclass
class _Run:
    """What the monitor remembers of one run."""

    state: RunIncidents
    due_s: float = 0.0
    marks: tuple[int, ...] = ()
    highest: dict[Path, int] = field(default_factory=dict)
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
        self._ended: deque[dict[str, Any]] = deque(maxlen=ENDED_KEPT)
        self._task: asyncio.Task[None] | None = None
        self._acting: set[asyncio.Task[None]] = set()
        self.acted: dict[tuple[str, str, str], str] = {}
        """What came of each rule the last time, by its key."""

    # From start to end ---------------------------------------------------------------

    def start(self) -> None:
        """Begin; on the event loop."""
        self._task = asyncio.ensure_future(self._go_on())

    async def stop(self) -> None:
        """End, and give up what is on its way."""
        for task in (self._task, *self._acting):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
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
            except (ProbeError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
                _log.warning("a round failed: %s", error, exc_info=error)
            await asyncio.sleep(max(0.1, TICK_S - (time.monotonic() - began_s)))

    async def tick(self) -> None:
        """Read what was noted, and run the recipes where that is due."""
        for run, news in await self._service.call(self._look):
            self._tell(run, news)
        if self._service.settings.monitor:
            for run in list(self._runs.values()):
                if time.monotonic() >= run.due_s:
                    await self._judge(run)
        await self._service.call(self._forget)

    # What was noted ------------------------------------------------------------------

    def _look(self) -> list[tuple[_Run, list[News]]]:
        """News of every process that lives or has ended lately. Blocks."""
        found: list[tuple[_Run, list[News]]] = []
        registry = self._service.registry
        for recorded in registry.processes():
            if recorded.folder in self._ignored:
                continue
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
            except (OSError, ValueError, KeyError, TypeError, RecordingError) as error:
                self._failed(run, f"{recorded.folder} cannot be read: {error}")
                continue
            if ended:
                run.ended_s[str(recorded.folder)] = time.monotonic()
                run.due_s, run.marks = 0.0, ()
            if news:
                found.append((run, news))
        return found

    def _forget(self) -> None:
        """Let go of runs whose processes have all ended and were looked at once more."""
        now_s = time.monotonic()
        for key, run in list(self._runs.items()):
            over = [now_s - run.ended_s.get(folder, now_s) > GRACE_S for folder in run.state.tailed]
            if all(over):
                self._ended.extend(self._listed(run))
                self._ignored.update(one.recorded.folder for one in run.state.tailed.values())
                del self._runs[key]
        there = {one.folder for one in self._service.registry.processes()}
        self._ignored &= there

    # Recipes ---------------------------------------------------------------------------

    async def _judge(self, run: _Run) -> None:
        """One round of recipes over a run, if it got rows since the last."""
        ranks = run.state.recorded
        marks = await self._service.call(_marks, run, ranks)
        interval_s = self._service.settings.monitor_interval_s
        if not ranks or marks == run.marks:
            run.due_s = time.monotonic() + min(interval_s, TICK_S)
            return
        run.marks = marks
        began_s, used_s = time.monotonic(), self._service.pool.cpu_s()
        try:
            outcomes = await self._outcomes(ranks)
            news = await self._service.call(run.state.judged, [_judged(one) for one in outcomes])
            self._tell(run, news)
            run.failure = ""
        except ProbeError as error:
            self._failed(run, f"the recipes were not run: {error.message}")
        cost_s = max(0.0, self._service.pool.cpu_s() - used_s)
        pause_s = min(LONGEST_PAUSE_S, COST_TIMES * cost_s * max(1, len(self._runs)))
        run.due_s = began_s + max(interval_s, pause_s)

    async def _outcomes(self, ranks: Sequence[Recorded]) -> list[formats.Outcome]:
        first = ranks[0].meta
        wanted = [
            one for one in (await self._recipes()).values()
            # What is the same on all ranks is judged where rank 0 is; other hosts have their own memory.
            if first.rank == 0 or one.scope == formats.JOB
        ]
        several = len(ranks) > 1 or (first.world_size or 1) > 1
        endpoint = first.job if several else str(first.pid)
        return await recipes.run(self._service, ranks, wanted, endpoint, background=True)

    async def _recipes(self) -> formats.Library:
        return await self._service.call(recipes.library, self._service.settings)

    def _failed(self, run: _Run, what: str) -> None:
        if run.failure != what:
            _log.warning("%s: %s", run.state.run, what)
        run.failure = what

    # What comes of it --------------------------------------------------------------------

    def _tell(self, run: _Run, news: Sequence[News]) -> None:
        """Send messages, one for each recipe and kind of event; and do what was configured."""
        groups: dict[tuple[str, str], list[News]] = {}
        for one in news:
            if one.event.tell:
                groups.setdefault((one.event.incident.recipe, one.event.kind), []).append(one)
        for same in groups.values():
            known = frozenset.intersection(*(one.known for one in same))
            self.alerts.send(message_of(same), known)
            event = same[0].event
            late = event.incident.opened_s * 1e9 < self._began_ns
            if event.kind in (OPENED, RAISED) and may_act(event.incident.severity) and not late:
                self._act(run, event.incident.recipe)

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
        from probe.server.app import act_for
        from probe.server.bodies import ActBody

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
        found = [one for run in self._runs.values() for one in self._listed(run)]
        return found + (list(self._ended) if everything else [])

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


def _marks(run: _Run, ranks: Sequence[Recorded]) -> tuple[int, ...]:
    """Changes whenever there is something new to judge. Blocks."""
    found: list[int] = [len(ranks)]
    for recorded in ranks:
        for table in _SIGNS:
            path = Path(recorded.meta.rings) / f"{table}.ring"
            with contextlib.suppress(OSError, RecordingError), RingFile(path) as ring:
                run.highest[path] = ring.highest(run.highest.get(path, 0))
                found.append(run.highest[path])
        with contextlib.suppress(OSError):
            found.append(places.journals(recorded.folder)[0].stat().st_size)
    return tuple(found)


def _judged(outcome: formats.Outcome) -> Judged:
    seen = tuple(Seen(one.subject, one.step, one.rank, one.verdict) for one in outcome.verdicts)
    return Judged(outcome.recipe.name, outcome.state, outcome.recipe.holds_s, seen)


def message_of(news: Sequence[News]) -> Message:
    """The message about events of one kind and one recipe: the worst in full, the others counted."""
    worst = max(news, key=lambda one: SEVERITIES.index(one.event.incident.severity))
    event, meta = worst.event, worst.recorded.meta
    incident, found = event.incident, of_event(event)
    what = found.what.removeprefix("over: ")
    title = f"{_WORDS[event.kind]}{meta.job}: {found.state if event.kind != RESOLVED else what}"
    lines = [what] if event.kind != RESOLVED else []
    if len(news) > 1:
        others = [one.event.incident.seen.subject for one in news if one is not worst]
        lines.append(f"and {len(others)} more: {', '.join(others[:8])}{', …' if len(others) > 8 else ''}")
    if event.kind != RESOLVED:
        lines += [*(f"why   {line}" for line in found.why), *(f"next  {line}" for line in found.next)]
    rank = "" if (meta.world_size or 1) < 2 else f", rank {meta.rank} of {meta.world_size}"
    lines.append(f"{incident.recipe}, incident {incident.id}; pid {meta.pid} on {meta.host}{rank}")
    return Message(
        incident.id, incident.recipe, incident.severity, event.kind,
        f"[{incident.severity}] {title}", "\n".join(lines), meta.run, worst.recorded.folder,
    )

