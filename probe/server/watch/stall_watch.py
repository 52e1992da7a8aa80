"""Stall watch: notices that a training job makes no progress, and records why.

Thread `probe-watch`. It checks each living recording before it can be late, at least every three seconds:
first whether steps have ended since, and its other last rows only if not. When no step ends for longer than
the run's patience, it gathers evidence from outside (one second; the process is neither stopped nor called)
and diagnoses it. An alarm is written: the stacks to python.stacks (reason `stall`) and the verdict to
probe.verdicts, again when the picture changes and at long intervals, and one more row when training resumes.
A notice is kept in memory. A recording that disappears or cannot be read is skipped for a round.
May import numpy (through the ring reader).
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
from probe.diagnose.process import stall_thresholds, wording
from probe.diagnose.process.evidence import Evidence, gather, stall_setting
from probe.diagnose.process.kernel_waits import Rested
from probe.diagnose.process.pause_owner import PAUSED, who_holds
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.process.progress import History, Progress
from probe.diagnose.process.stack_patterns import innermost
from probe.diagnose.ranks.rank_rows import Peer, explain_wait
from probe.diagnose.states import ALARM, OK
from probe.recording import places
from probe.recording.process import is_stopped
from probe.server.recordings import server_journal
from probe.server.recordings.registry import Recorded, Registry
from probe.server.runtime.supervision import FAILURES, Supervised
from probe.server.watch import job_watch
from probe.server.watch.job_watch import JobWatch
from probe.server.watch.thread_rest import ThreadRest

_log = logging.getLogger("probe.watch")
_T = TypeVar("_T")
ROUND_S = 1.0
SHORTEST_ROUND_S = 0.1
"""Between rounds; shorter than `ROUND_S` only when a process is due earlier."""
LOOK_S = 3.0
"""The longest time between two checks of a process."""
LEAD_S = 0.9
"""The time that gathering evidence takes: started this much earlier, the verdict is there in time."""
AT_ONCE = 8
"""Processes inspected at the same time: all ranks of a host usually hang together."""
AGAIN_S, RARELY_S = 60.0, 600.0
"""The pause between inspections doubles each time, up to the first limit; up to the second for processes that
never trained. A recurring alarm is written no more often than that either."""
OFTEN = 2
"""How often the same alarm may recur before it is written less often."""
WRITE_AGAIN_S = (60.0, 600.0, 3600.0)
"""An unchanged alarm is written again when it has lasted this long."""
GOES_ON_S = 1.0
"""A process that was stalled in the last round and has resumed shows a sign of training within this time."""
_MARGIN_S = 0.02
_FROM_OUTSIDE = frozenset({states.STOPPED, states.TRACED, states.STARVED, states.SWAPPING})
"""States caused from outside: their duration says nothing about the process's own usual pauses."""


@dataclass
class _Tracked:
    """The watch's state of one recording; all but the alarm can be read again."""

    recorded: Recorded
    history: History
    stall_s: float
    rest: ThreadRest = field(default_factory=ThreadRest)
    thread: int | None = None
    """Native id of the thread whose rest is watched; None for the main one."""
    noted_thread: int | None = None
    journal_bytes: int = -1
    """The training thread that the process recorded, and the size of its journal then."""
    stopped_since_s: float | None = None
    steps: int = 0
    look_s: float = 0.0
    looked_s: float = 0.0
    """When to check it next, and when it was last checked."""
    verdict: Finding | None = None
    next_s: float = 0.0
    """It is not inspected again before it has been quiet for this long."""
    due_s: float = ROUND_S
    """Time until it may be due, if it stays quiet."""
    alarm: Finding | None = None
    alarmed_since_s: float = 0.0
    picture: tuple[object, ...] = ()
    """Picture of the last alarm that was written."""
    lasted: int = 0
    """How many of `WRITE_AGAIN_S` had passed then."""
    repeats: int = 0
    silent_until_s: float = 0.0
    """The same alarm is not written again before."""
    failure: str = ""


class _Late(NamedTuple):
    """A process that is late, and how long it had been quiet. `evidence` is None for a rank that was not
    inspected, because its rows say that it only waits for others."""

    tracked: _Tracked
    evidence: Evidence | None
    quiet_s: float


_Due = tuple[_Tracked, float]


class Watch:
    """Watches one registry's processes, on `thread`; `round` checks every process once."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._tracked: dict[Path, _Tracked] = {}
        self._jobs = JobWatch(registry)
        self._stopping = threading.Event()
        self.thread = Supervised("probe-watch", self._run, self._stopping)

    def _run(self) -> None:
        while not self._stopping.is_set():
            began_s = time.monotonic()
            self.round()
            due_s = min((tracked.due_s for tracked in self._tracked.values()), default=ROUND_S)
            wait_s = min(ROUND_S, due_s) - (time.monotonic() - began_s)
            self._stopping.wait(max(SHORTEST_ROUND_S, wait_s))

    def current(self, folder: Path) -> Finding | None:
        """The current verdict on the process recorded in `folder`; None while all is well. Any thread."""
        tracked = self._tracked.get(folder)
        return None if tracked is None else tracked.verdict

    def stall(self, folder: Path) -> Finding | None:
        """The current verdict, if it says that the process will not finish a step. Any thread."""
        found = self.current(folder)
        if found is None or found.state not in states.STALLS:
            return None
        return found if found.severity == ALARM or found.state == states.BUSY else None

    def lasting_stall(self, recorded: Recorded) -> Finding | None:
        """The same, unless the process makes progress within `GOES_ON_S`: the verdict is from the last round.
        Blocks for that long; any thread but the event loop."""
        found = self.stall(recorded.folder)
        if found is None:
            return None
        history, until_s = History(recorded.meta), time.monotonic() + GOES_ON_S
        quiet_s = 0.0
        while found is not None and time.monotonic() < until_s:
            now_quiet_s = stall_thresholds.quiet_s(history.read()) or 0.0
            if now_quiet_s < max(quiet_s, ROUND_S):  # a sign of training since the verdict
                return None
            quiet_s = now_quiet_s
            time.sleep(SHORTEST_ROUND_S)
            found = self.stall(recorded.folder)
        return found

    def rested(self, folder: Path, thread: int | None) -> Rested | None:
        """How the training thread has rested since the process became quiet, if it is watched. Any thread."""
        tracked = self._tracked.get(folder)
        if tracked is None or tracked.thread != thread:
            return None
        return tracked.rest.until(time.monotonic())

    def other_ranks(self, folder: Path) -> list[Peer]:
        """The other ranks on this host of the job recorded in `folder`. Any thread."""
        tracked = self._tracked.get(folder)
        return [] if tracked is None else self._peers(tracked)

    def round(self) -> None:
        """Check every living recording once, and inspect those without progress."""
        live = {recorded.folder: recorded for recorded in self._registry.live()}
        for folder in self._tracked.keys() - live.keys():
            gone = self._tracked.pop(folder)
            self._attempt(gone, self._jobs.ending, gone.recorded)
        due: list[_Due] = []
        for folder, recorded in live.items():
            tracked = self._tracked.get(folder)
            if tracked is None or tracked.recorded != recorded:
                tracked = _Tracked(recorded, History(recorded.meta), stall_setting(recorded.meta))
                self._tracked = {**self._tracked, folder: tracked}
            quiet_s = self._attempt(tracked, self._check_progress, tracked)
            if quiet_s is not None:
                due.append((tracked, quiet_s))
        due, waiting = self._with_their_jobs(due)
        late: list[_Late] = [_Late(tracked, None, quiet_s) for tracked, quiet_s in waiting]
        if due:
            with ThreadPoolExecutor(min(AT_ONCE, len(due)), "probe-watch") as pool:
                inspected = pool.map(lambda one: self._attempt(one[0], self._inspect, *one), due)
                late += [found for found in inspected if found is not None]
        jobs = self._diagnose_jobs(late)
        for found in late:  # after all verdicts are there: ranks wait for each other
            wanted = job_watch.key(found.tracked.recorded)
            self._attempt(found.tracked, self._settle, found, jobs.get(wanted) if wanted else None)
        self._compare(jobs)

    # Multi-rank jobs ------------------------------------------------------------

    def _with_their_jobs(self, due: list[_Due]) -> tuple[list[_Due], list[_Due]]:
        """The processes to inspect when these are late, and those of these that only wait for others: the
        cause may be a rank that is not late itself."""
        inspect = {one[0].recorded.folder: one for one in due}
        waiting: list[_Due] = []
        for wanted in {job_watch.key(tracked.recorded) for tracked, _ in due} - {None}:
            assert wanted is not None
            mine = [one for one in due if job_watch.key(one[0].recorded) == wanted]
            chosen = self._attempt(mine[0][0], self._jobs.to_inspect, wanted) or []
            if not chosen:
                continue
            for one in mine:
                if one[0].recorded not in chosen:
                    waiting.append(inspect.pop(one[0].recorded.folder))
            for recorded in chosen:
                tracked = self._tracked.get(recorded.folder)
                if tracked is not None and recorded.folder not in inspect:
                    quiet_s = stall_thresholds.quiet_s(tracked.history.read()) or 0.0
                    inspect[recorded.folder] = (tracked, quiet_s)
        return list(inspect.values()), waiting

    def _diagnose_jobs(self, late: list[_Late]) -> dict[job_watch.Key, Finding]:
        """The verdict on each multi-rank job that has late ranks."""
        found: dict[job_watch.Key, Finding] = {}
        for wanted in {job_watch.key(one.tracked.recorded) for one in late} - {None}:
            assert wanted is not None
            mine = [one for one in late if job_watch.key(one.tracked.recorded) == wanted]
            seen = {
                one.tracked.recorded.meta.rank: (one.evidence, one.tracked.verdict)
                for one in mine if one.evidence is not None and one.tracked.verdict is not None
            }
            verdict = self._attempt(mine[0].tracked, self._jobs.diagnose, wanted, seen)
            if verdict is not None:
                found[wanted] = verdict
        return found

    def _compare(self, late: Collection[job_watch.Key]) -> None:
        """Compare the ranks of the jobs that make progress."""
        jobs: dict[job_watch.Key, list[_Tracked]] = {}
        for tracked in self._tracked.values():
            wanted = job_watch.key(tracked.recorded)
            if wanted is not None:
                jobs.setdefault(wanted, []).append(tracked)
        for wanted, ranks in jobs.items():
            if wanted not in late and all(one.verdict is None for one in ranks):
                known = [(one.recorded, one.history) for one in ranks]
                self._attempt(ranks[0], self._jobs.compare, wanted, known)
        self._jobs.forget(jobs.keys())

    def _attempt(self, tracked: _Tracked, work: Callable[..., _T], *arguments: object) -> _T | None:
        """Work on one recording; an error is logged once and does not affect the others."""
        try:
            return work(*arguments)
        except FAILURES as error:
            text = f"{type(error).__name__}: {error}"
            if tracked.failure != text:
                _log.warning("%s: %s; skipped", tracked.recorded.folder, text, exc_info=error)
            tracked.failure = text
            return None

    # The check of every round -----------------------------------------------

    def _check_progress(self, tracked: _Tracked) -> float | None:
        """Seconds without a sign of training when it must be inspected, else None."""
        tracked.due_s = ROUND_S
        now_s = time.monotonic()
        calm = tracked.verdict is None and tracked.alarm is None
        if calm and (now_s < tracked.look_s or self._went_on(tracked, now_s)):
            return None
        progress = tracked.history.read()
        if progress is None:  # its rings were removed just now, or are damaged
            return None
        now_s = time.monotonic()
        quiet_s = stall_thresholds.quiet_s(progress) or 0.0
        limit_s = stall_thresholds.limit_s(tracked.stall_s, progress, self._registry.stall_thresholds())
        begin_s = _begin_s(limit_s)
        went_on = progress.steps > tracked.steps
        tracked.steps = progress.steps
        stopped = self._stopped_s(tracked, now_s) >= tracked.stall_s
        if progress.phase == PAUSED and not stopped:
            self._is_paused(tracked, progress)
            return None
        if went_on or (quiet_s < begin_s and not stopped):
            self._goes_on(tracked, progress)
        self._watch_rest(tracked, quiet_s, limit_s, now_s)
        if stopped and quiet_s < begin_s:  # stopped within a step that usually takes long
            quiet_s = begin_s
        wanted_s = max(begin_s, tracked.next_s)
        tracked.due_s, tracked.looked_s = wanted_s - quiet_s, now_s
        tracked.look_s = now_s + (_pause_s(tracked.due_s) if tracked.stopped_since_s is None else 0.0)
        return quiet_s if quiet_s >= wanted_s else None

    def _went_on(self, tracked: _Tracked, now_s: float) -> bool:
        """Whether a step has ended since the last check: then nothing else needs to be read."""
        history = tracked.history
        if (quiet_s := history.new_step_s()) is None:
            return False
        seen = tracked.stall_s, history.steps, history.usual_step_s, self._registry.stall_thresholds()
        limit_s = stall_thresholds.limit_after_s(*seen)
        tracked.due_s = _begin_s(limit_s) - min(quiet_s, now_s - tracked.looked_s)
        if tracked.due_s <= 0:  # the first check of a process that hangs
            return False
        tracked.steps, tracked.next_s, tracked.stopped_since_s = history.steps, 0.0, None
        tracked.rest.forget()
        tracked.look_s, tracked.looked_s = now_s + _pause_s(tracked.due_s), now_s
        return True

    def _watch_rest(self, tracked: _Tracked, quiet_s: float, limit_s: float, now_s: float) -> None:
        """Count the training thread's context switches while it is quiet."""
        if quiet_s < min(1.0, limit_s) / 2:
            tracked.rest.forget()
            return
        if tracked.rest.watched_since_s is None:
            tracked.thread = self._training_thread(tracked)
        pid = tracked.recorded.meta.pid
        tracked.rest.update(pid, tracked.thread or pid, now_s)

    def _training_thread(self, tracked: _Tracked) -> int | None:
        """Native id of the training thread; the journal is read again only when it has grown."""
        size = places.journals(tracked.recorded.folder)[0].stat().st_size
        if size != tracked.journal_bytes:
            tracked.noted_thread = self._registry.training_thread(tracked.recorded)
            tracked.journal_bytes = size
        return tracked.noted_thread

    def _stopped_s(self, tracked: _Tracked, now_s: float) -> float:
        """How long the process has been stopped; 0 when it is not."""
        if not is_stopped(tracked.recorded.meta.pid):
            tracked.stopped_since_s = None
            return 0.0
        tracked.stopped_since_s = tracked.stopped_since_s or now_s
        return now_s - tracked.stopped_since_s

    def _is_paused(self, tracked: _Tracked, progress: Progress) -> None:
        """The process is paused by a user: its rows show that, and it is never a stall."""
        if tracked.alarm is not None:  # it reached the end of a step, so training had resumed
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
        """Training has resumed: drop the verdict, and write a row if there was an alarm."""
        tracked.rest.forget()
        alarm, since_s = tracked.alarm, tracked.alarmed_since_s
        tracked.verdict = tracked.alarm = None
        tracked.next_s = 0.0
        if alarm is not None:
            lasted = wording.seconds(time.monotonic() - since_s)
            what = f"training again, {lasted} after the alarm ({alarm.state})"
            found = Finding(states.RUNNING_AGAIN, OK, what, [alarm.what])
            self._write(tracked, found, progress.step, None)

    # Inspection of late processes -------------------------------------------

    def _inspect(self, tracked: _Tracked, quiet_s: float) -> _Late | None:
        """Gather evidence and diagnose; None when training has resumed or the process has ended."""
        meta = tracked.recorded.meta
        thread = self._training_thread(tracked)
        if thread != tracked.thread:  # the process has only now recorded that it trains in another thread
            tracked.thread = thread
            tracked.rest.forget()
        evidence = gather(
            meta.pid, meta, history=tracked.history, rested=tracked.rest.until(time.monotonic()),
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
        if verdict.severity == OK:  # it has resumed, or does not train
            tracked.verdict = None
            tracked.next_s = quiet_s + min(max(quiet_s, 1.0), RARELY_S)
            return None
        return _Late(tracked, evidence, quiet_s)

    def _settle(self, found: _Late, of_job: Finding | None) -> None:
        """Combine a verdict with those on other ranks; write an alarm that is new, changed or has lasted."""
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
        """The verdict on a rank as part of its job, and whether another rank is the cause."""
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
        """Whether to write an alarm: its picture is new, or the same after a while. One that recurs step
        after step is written less and less often."""
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
        """Write a verdict, and before it the stacks that it refers to."""
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


def _begin_s(limit_s: float) -> float:
    """Quiet time after which evidence is gathered, so that the verdict is there when the limit is reached."""
    return limit_s - min(LEAD_S, limit_s / 2)


def _pause_s(due_s: float) -> float:
    """How long to skip a process that is due in `due_s` at the earliest: half of that time, so that it is
    watched through the other half."""
    return min(LOOK_S, due_s / 2) - ROUND_S / 2  # rounds are a second apart: the nearest one


def _picture(verdict: Finding, evidence: Evidence | None) -> tuple[object, ...]:
    """Equal for alarms that count as the same: the state and, unless caused from outside, the place."""
    if verdict.state in _FROM_OUTSIDE or evidence is None:
        return (verdict.state,)
    thread = evidence.training
    frame = None if thread is None else innermost(thread.frames)
    return verdict.state, None if frame is None else (frame.func, frame.file, frame.lineno)
