"""Watch: notices by itself that a training job does not get on, and writes down why.

Thread `probe-watch`, started by the server. Once a second it reads the last rows of each living
recording: that is all while steps come. Where none comes for longer than the run's patience it gathers
evidence from outside (a second, nothing is stopped or asked), has it judged, and keeps an alarm: the
stacks in python.stacks (reason `stall`), the verdict in probe.verdicts, again when the picture changes or
rarely; and one more row when training goes on. A notice is remembered for who asks, not written. A
recording that vanishes or cannot be read costs itself a round. May import numpy (through the ring reader).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from probe.base import clock
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process import kernel_waits, stall_thresholds, wording
from probe.diagnose.process.evidence import Evidence, gather, stall_setting
from probe.diagnose.process.pause_owner import PAUSED, who_holds
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.process.progress import History, Progress
from probe.diagnose.process.stack_patterns import innermost
from probe.diagnose.ranks.rank_rows import Peer, explain_wait
from probe.diagnose.states import ALARM, OK
from probe.recording import places
from probe.recording.process import life
from probe.server.recordings import server_journal
from probe.server.recordings.registry import Recorded, Registry
from probe.server.runtime.supervision import FAILURES, Supervised
from probe.server.watch import job_watch
from probe.server.watch.job_watch import JobWatch

_log = logging.getLogger("probe.watch")
_T = TypeVar("_T")
ROUND_S = 1.0
SHORTEST_ROUND_S = 0.1
"""Between rounds; shorter only when somebody is due before."""
LEAD_S = 0.9
"""Evidence takes so long to gather: begun so much earlier, the verdict is there when the step is late."""
AT_ONCE = 8
"""Processes looked at at the same time: all ranks of a host usually hang together."""
AGAIN_S, RARELY_S = 60.0, 600.0
"""Looks become rarer the longer it lasts: the pause doubles each time up to the first, and up to the second
for what never trained. An alarm that comes back is written no more often than that either."""
OFTEN = 2
"""So often the same alarm may come back before it is written more rarely."""
WRITE_AGAIN_S = (60.0, 600.0, 3600.0)
"""An alarm that stays as it is is written again when it has lasted so long."""
_MARGIN_S = 0.02
_FROM_OUTSIDE = frozenset({states.STOPPED, states.TRACED, states.STARVED, states.SWAPPING})
"""Done to a process: how long it lasted says nothing of how long its own pauses are."""


@dataclass
class _Rest:
    """How long a thread has slept without a break, from its count of context switches."""

    watched_since_s: float | None = None
    still_since_s: float = 0.0
    switches: int | None = None

    def look(self, pid: int, tid: int, now_s: float) -> None:
        """Count once more."""
        switches = kernel_waits.switches(pid, tid)
        if self.watched_since_s is None:
            self.watched_since_s = self.still_since_s = now_s
        if switches is None or switches != self.switches:
            self.still_since_s = now_s
        self.switches = switches

    def forget(self) -> None:
        """It does not rest: begin anew."""
        self.watched_since_s = self.switches = None

    def seconds(self, now_s: float) -> tuple[float, float] | None:
        """Asleep, and watched."""
        if self.watched_since_s is None:
            return None
        return now_s - self.still_since_s, now_s - self.watched_since_s


@dataclass
class _Tracked:
    """What the watch remembers of one recording; all but the alarm can be read again."""

    recorded: Recorded
    history: History
    stall_s: float
    rest: _Rest = field(default_factory=_Rest)
    thread: int | None = None
    """Native id of the thread whose rest is watched; None for the main one."""
    noted_thread: int | None = None
    journal_bytes: int = -1
    """Which thread trains, as the process noted it, and how long its journal was then."""
    stopped_since_s: float | None = None
    steps: int = 0
    verdict: Finding | None = None
    next_s: float = 0.0
    """Not looked at again before it has been quiet for so long."""
    due_s: float = ROUND_S
    """Time until it may be due, if it stays quiet."""
    alarm: Finding | None = None
    alarmed_since_s: float = 0.0
    picture: tuple[object, ...] = ()
    """Of the last alarm that was written."""
    lasted: int = 0
    """How many of WRITE_AGAIN_S had passed then."""
    repeats: int = 0
    silent_until_s: float = 0.0
    """The same alarm, come back, is not written before."""
    failure: str = ""


class _Seen(NamedTuple):
    """A process that is late, and how long it had been quiet. `evidence` is None for a rank whose rows alone
    say that it only waits for others: it was not looked at longer."""

    tracked: _Tracked
    evidence: Evidence | None
    quiet_s: float


_Due = tuple[_Tracked, float]


class Watch:
    """Watches one registry's processes; `start` and `stop` its thread, `round` one look at everything."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._tracked: dict[Path, _Tracked] = {}
        self._jobs = JobWatch(registry)
        self._stopping = threading.Event()
        self._thread = Supervised("probe-watch", self.run, self._stopping)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, wait_s: float) -> None:
        """Ask the thread to end after its round; wait at most `wait_s`."""
        self._stopping.set()
        self._thread.join(wait_s)

    def run(self) -> None:
        """The thread's loop."""
        while not self._stopping.is_set():
            began_s = time.monotonic()
            self.round()
            due_s = min((tracked.due_s for tracked in self._tracked.values()), default=ROUND_S)
            wait_s = min(ROUND_S, due_s) - (time.monotonic() - began_s)
            self._stopping.wait(max(SHORTEST_ROUND_S, wait_s))

    def current(self, folder: Path) -> Finding | None:
        """What is to be said of the process recorded in `folder`; None while all is well. Any thread."""
        tracked = self._tracked.get(folder)
        return None if tracked is None else tracked.verdict

    def other_ranks(self, folder: Path) -> list[Peer]:
        """The other ranks here of the job that is recorded in `folder`. Any thread."""
        tracked = self._tracked.get(folder)
        return [] if tracked is None else self._peers(tracked)

    def round(self) -> None:
        """Look at every living recording once, and longer at those that do not get on."""
        live = {recorded.folder: recorded for recorded in self._registry.live()}
        for folder in self._tracked.keys() - live.keys():
            gone = self._tracked.pop(folder)
            self._attempt(gone, self._jobs.ending, gone.recorded)
        due: list[tuple[_Tracked, float]] = []
        for folder, recorded in live.items():
            tracked = self._tracked.get(folder)
            if tracked is None or tracked.recorded != recorded:
                tracked = _Tracked(recorded, History(recorded.meta), stall_setting(recorded.meta))
                self._tracked = {**self._tracked, folder: tracked}
            quiet_s = self._attempt(tracked, self._look, tracked)
            if quiet_s is not None:
                due.append((tracked, quiet_s))
        due, waiting = self._with_their_jobs(due)
        seen: list[_Seen] = [_Seen(tracked, None, quiet_s) for tracked, quiet_s in waiting]
        if due:
            with ThreadPoolExecutor(min(AT_ONCE, len(due)), "probe-watch") as pool:
                looked = pool.map(lambda one: self._attempt(one[0], self._examine, *one), due)
                seen += [found for found in looked if found is not None]
        jobs = self._judge_jobs(seen)
        for found in seen:  # once all verdicts are there: a rank is waited for by another
            wanted = job_watch.key(found.tracked.recorded)
            self._attempt(found.tracked, self._settle, found, jobs.get(wanted) if wanted else None)
        self._compare(jobs)

    # Jobs of several ranks ----------------------------------------------------

    def _with_their_jobs(self, due: list[_Due]) -> tuple[list[_Due], list[_Due]]:
        """What is to be looked at longer when these are late, and which of them only wait for others: the
        cause may be a rank that is not late itself."""
        looks = {one[0].recorded.folder: one for one in due}
        waiting: list[_Due] = []
        for wanted in {job_watch.key(tracked.recorded) for tracked, _ in due} - {None}:
            assert wanted is not None
            mine = [one for one in due if job_watch.key(one[0].recorded) == wanted]
            chosen = self._attempt(mine[0][0], self._jobs.to_look_at, wanted) or []
            if not chosen:
                continue
            for one in mine:
                if one[0].recorded not in chosen:
                    waiting.append(looks.pop(one[0].recorded.folder))
            for recorded in chosen:
                tracked = self._tracked.get(recorded.folder)
                if tracked is not None and recorded.folder not in looks:
                    quiet_s = stall_thresholds.quiet_s(tracked.history.read()) or 0.0
                    looks[recorded.folder] = (tracked, quiet_s)
        return list(looks.values()), waiting

    def _judge_jobs(self, seen: list[_Seen]) -> dict[job_watch.Key, Finding]:
        """The verdict on each job of several ranks of which some are late."""
        found: dict[job_watch.Key, Finding] = {}
        for wanted in {job_watch.key(one.tracked.recorded) for one in seen} - {None}:
            assert wanted is not None
            mine = [one for one in seen if job_watch.key(one.tracked.recorded) == wanted]
            looked = {
                one.tracked.recorded.meta.rank: (one.evidence, one.tracked.verdict)
                for one in mine if one.evidence is not None and one.tracked.verdict is not None
            }
            verdict = self._attempt(mine[0].tracked, self._jobs.diagnose, wanted, looked)
            if verdict is not None:
                found[wanted] = verdict
        return found

    def _compare(self, late: Collection[job_watch.Key]) -> None:
        """Compare the ranks of the jobs that get on."""
        jobs: dict[job_watch.Key, list[_Tracked]] = {}
        for tracked in self._tracked.values():
            wanted = job_watch.key(tracked.recorded)
            if wanted is not None:
                jobs.setdefault(wanted, []).append(tracked)
        for wanted, ranks in jobs.items():
            if wanted not in late and all(one.verdict is None for one in ranks):
                self._attempt(ranks[0], self._jobs.compare, wanted, [one.recorded for one in ranks])
        self._jobs.forget(jobs.keys())

    def _attempt(self, tracked: _Tracked, look: Callable[..., _T], *arguments: object) -> _T | None:
        """One look at one recording; what goes wrong is logged once and costs the others nothing."""
        try:
            return look(*arguments)
        except FAILURES as error:
            text = f"{type(error).__name__}: {error}"
            if tracked.failure != text:
                _log.warning("%s: %s; not looked at", tracked.recorded.folder, text, exc_info=error)
            tracked.failure = text
            return None

    # The cheap look ---------------------------------------------------------

    def _look(self, tracked: _Tracked) -> float | None:
        """Seconds without a sign of training when it is to be looked at longer, else None."""
        tracked.due_s = ROUND_S
        progress = tracked.history.read()
        if progress is None:  # its rings were removed this instant, or are damaged
            return None
        now_s = time.monotonic()
        quiet_s = stall_thresholds.quiet_s(progress) or 0.0
        limit_s = stall_thresholds.limit_s(tracked.stall_s, progress, self._registry.stall_thresholds())
        begin_s = limit_s - min(LEAD_S, limit_s / 2)
        went_on = progress.steps > tracked.steps
        tracked.steps = progress.steps
        stopped = self._stopped_s(tracked, now_s) >= tracked.stall_s
        if progress.phase == PAUSED and not stopped:
            self._is_paused(tracked, progress)
            return None
        if went_on or (quiet_s < begin_s and not stopped):
            self._goes_on(tracked, progress)
        self._watch_rest(tracked, quiet_s, limit_s, now_s)
        if stopped and quiet_s < begin_s:  # it stops between two steps that are long anyway
            quiet_s = begin_s
        wanted_s = max(begin_s, tracked.next_s)
        tracked.due_s = wanted_s - quiet_s
        return quiet_s if quiet_s >= wanted_s else None

    def _watch_rest(self, tracked: _Tracked, quiet_s: float, limit_s: float, now_s: float) -> None:
        """Count the training thread's context switches while it is quiet."""
        if quiet_s < min(1.0, limit_s) / 2:
            tracked.rest.forget()
            return
        if tracked.rest.watched_since_s is None:
            tracked.thread = self._training_thread(tracked)
        pid = tracked.recorded.meta.pid
        tracked.rest.look(pid, tracked.thread or pid, now_s)

    def _training_thread(self, tracked: _Tracked) -> int | None:
        """Native id of the thread that trains; the journal is read again only when it has grown."""
        size = places.journals(tracked.recorded.folder)[0].stat().st_size
        if size != tracked.journal_bytes:
            tracked.noted_thread = self._registry.training_thread(tracked.recorded)
            tracked.journal_bytes = size
        return tracked.noted_thread

    def _stopped_s(self, tracked: _Tracked, now_s: float) -> float:
        """How long the process has been stopped; 0 when it is not."""
        process = life(tracked.recorded.meta.pid)
        if process is None or process.state not in "Tt":
            tracked.stopped_since_s = None
            return 0.0
        tracked.stopped_since_s = tracked.stopped_since_s or now_s
        return now_s - tracked.stopped_since_s

    def _is_paused(self, tracked: _Tracked, progress: Progress) -> None:
        """Held because somebody asked for it: known without a longer look, and no stall however long."""
        if tracked.alarm is not None:  # it came to the end of a step, and so it went on
            self._goes_on(tracked, progress)
        tracked.rest.forget()
        tracked.next_s = 0.0
        if tracked.verdict is None or tracked.verdict.state != states.PAUSED:
            meta, folder = tracked.recorded.meta, tracked.recorded.folder
            tracked.verdict = diagnose_process(
                Evidence(
                    meta.pid, tracked.stall_s, state="sleeping", progress=progress,
                    held=who_holds(folder, PAUSED),
                )
            )

    def _goes_on(self, tracked: _Tracked, progress: Progress) -> None:
        """Training goes on: forget the verdict, and say so where there was an alarm."""
        tracked.rest.forget()
        alarm, since_s = tracked.alarm, tracked.alarmed_since_s
        tracked.verdict = tracked.alarm = None
        tracked.next_s = 0.0
        if alarm is not None:
            lasted = wording.seconds(time.monotonic() - since_s)
            what = f"goes on {lasted} after the alarm ({alarm.state})"
            found = Finding(states.RUNNING_AGAIN, OK, what, [alarm.what])
            self._write(tracked, found, progress.step, None)

    # The long look ----------------------------------------------------------

    def _examine(self, tracked: _Tracked, quiet_s: float) -> _Seen | None:
        """Gather and judge; None when it went on or ended meanwhile."""
        meta = tracked.recorded.meta
        thread = self._training_thread(tracked)
        if thread != tracked.thread:  # the process noted only now that it trains in another one
            tracked.thread = thread
            tracked.rest.forget()
        evidence = gather(
            meta.pid, meta, history=tracked.history, rested=tracked.rest.seconds(time.monotonic()),
            training_thread=tracked.thread, folder=tracked.recorded.folder,
        )
        thresholds = self._registry.stall_thresholds()
        limit_s = stall_thresholds.limit_s(tracked.stall_s, evidence.progress, thresholds)
        early_s = limit_s - (stall_thresholds.quiet_s(evidence.progress) or 0.0)
        if 0 <= early_s <= LEAD_S and not self._stopping.wait(early_s + _MARGIN_S):
            evidence = replace(evidence, progress=tracked.history.read())
        if evidence.state in (None, "zombie", "dead"):  # how it ended is for the exit watch
            return None
        tracked.verdict = verdict = diagnose_process(evidence, thresholds)
        quiet_s = max(quiet_s, stall_thresholds.quiet_s(evidence.progress) or 0.0)
        if verdict.severity == OK:  # it went on, or is none that trains
            tracked.verdict = None
            tracked.next_s = quiet_s + min(max(quiet_s, 1.0), RARELY_S)
            return None
        return _Seen(tracked, evidence, quiet_s)

    def _settle(self, found: _Seen, of_job: Finding | None) -> None:
        """See a verdict beside those on other ranks; write an alarm that is new, changed or has lasted."""
        tracked, evidence, quiet_s = found
        progress = tracked.history.read() if evidence is None else evidence.progress
        step = None if progress is None else progress.step
        verdict, is_victim = self._in_its_job(tracked, step, of_job)
        if verdict is None:
            return
        tracked.verdict = verdict
        tracked.history.disregard_next = verdict.state in _FROM_OUTSIDE
        tracked.next_s = quiet_s + min(max(quiet_s, 1.0), AGAIN_S)
        if verdict.severity != ALARM:
            thresholds = self._registry.stall_thresholds()
            bound_s = stall_thresholds.patience_s(tracked.stall_s, progress, thresholds)
            for mark_s in (bound_s, bound_s * thresholds.unsure_factor):
                if quiet_s < mark_s:
                    tracked.next_s = min(tracked.next_s, mark_s + _MARGIN_S)
            return
        now_s = time.monotonic()
        if self._is_news(tracked, _picture(verdict, evidence), quiet_s, now_s):
            if tracked.alarm is None:
                tracked.alarmed_since_s = now_s
            tracked.alarm = verdict
            self._write(tracked, job_watch.as_row(verdict) if is_victim else verdict, step, evidence)

    def _in_its_job(
        self, tracked: _Tracked, step: int | None, of_job: Finding | None
    ) -> tuple[Finding | None, bool]:
        """The verdict on a rank as part of its job, and whether another one is the cause."""
        own = tracked.verdict
        if of_job is None or not of_job.culprits:
            return (None if own is None else explain_wait(own, step, self._peers(tracked))), False
        rank = tracked.recorded.meta.rank
        if rank == of_job.culprits[0]:
            state = of_job.state
            again = state in job_watch.MISMATCHES and job_watch.is_written(tracked.recorded, state)
            return of_job, again
        if own is not None and own.state != states.IN_COLLECTIVE:
            return own, rank not in of_job.culprits and own.severity == ALARM
        verdict = job_watch.victim(own, of_job)
        known = {recorded.meta.rank for recorded in self._jobs.members(job_watch.key(tracked.recorded))}
        here = [peer.rank for peer in self._peers(tracked)]
        alone = not known & set(of_job.culprits) and rank < min(here, default=rank + 1)
        return (of_job if alone else verdict), not alone

    def _peers(self, tracked: _Tracked) -> list[Peer]:
        """The other ranks of the same run on this host."""
        ours = tracked.recorded.meta
        return [
            Peer(meta.rank, meta.pid, other.history.last_step, other.verdict)
            for other in list(self._tracked.values())
            if (meta := other.recorded.meta).run == ours.run
            and meta.attempt == ours.attempt and meta.rank != ours.rank
        ]

    def _is_news(
        self, tracked: _Tracked, picture: tuple[object, ...], quiet_s: float, now_s: float
    ) -> bool:
        """Whether an alarm is to be written: a new picture, or the same one after a while. One that comes
        back again and again, step after step, is written more and more rarely."""
        lasted = sum(quiet_s >= mark_s for mark_s in WRITE_AGAIN_S)
        same = picture == tracked.picture
        if same and tracked.alarm is not None and lasted <= tracked.lasted:
            return False
        if same and tracked.alarm is None and now_s < tracked.silent_until_s:
            return False
        tracked.repeats = min(tracked.repeats + 1, 8) if same else 0
        if tracked.repeats >= OFTEN:
            tracked.silent_until_s = now_s + min(RARELY_S, AGAIN_S * 2 ** (tracked.repeats - OFTEN))
        tracked.picture, tracked.lasted = picture, lasted
        return True

    def _write(
        self, tracked: _Tracked, verdict: Finding, step: int | None, evidence: Evidence | None
    ) -> None:
        """Keep a verdict, and the stacks it was made from before it: who reads it finds them."""
        recorded = tracked.recorded
        capture_id = None
        if evidence is not None and evidence.capture is not None:
            progress = evidence.progress
            capture = {
                **evidence.capture, "step": step if progress is None else progress.steps,
                "phase": None if progress is None else progress.phase,
            }
            if server_journal.note_capture(recorded.folder, capture, "stall"):
                capture_id = str(capture["capture_id"])
        row = verdict.row(clock.wall_ns(), step, capture_id)
        server_journal.note_rows(recorded.folder, "probe.verdicts", [row])
        _log.info("%s (pid %d): %s: %s", recorded.name, recorded.meta.pid, verdict.state, verdict.what)


def _picture(verdict: Finding, evidence: Evidence | None) -> tuple[object, ...]:
    """What makes two alarms the same: the state and, unless it came from outside, the place."""
    if verdict.state in _FROM_OUTSIDE or evidence is None:
        return (verdict.state,)
    thread = evidence.training
    frame = None if thread is None else innermost(thread.frames)
    return verdict.state, None if frame is None else (frame.func, frame.file, frame.lineno)
