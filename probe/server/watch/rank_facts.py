"""The facts of this host's ranks of a job, for the verdict on the whole job.

They come from each rank's recording (rings, segments when those are gone, journals), so a rank that is
stopped, holds the GIL or is dead is known as well as a running one. Evidence on ranks without progress is
gathered from outside, all at once, which takes up to a second; no agent is called. Blocks: the server's
request threads, the watch. May import what `probe.diagnose` may.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from probe.base import clock
from probe.base.errors import RecordingError
from probe.bundle import moment
from probe.diagnose.finding import Finding
from probe.diagnose.process import stall_thresholds, wording
from probe.diagnose.process.evidence import Evidence, Frame, gather, stall_setting
from probe.diagnose.process.kernel_waits import Rested
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.process.progress import History, Progress
from probe.diagnose.process.settled import settled
from probe.diagnose.process.stack_patterns import innermost
from probe.diagnose.ranks.rank_evidence import Facts, calls_of, steps_of
from probe.diagnose.states import OK
from probe.recording.process import is_stopped
from probe.recording.segments import last_rows
from probe.server.recordings import server_journal
from probe.server.recordings.end_verdicts import verdict_of_end
from probe.server.recordings.registry import LIVE, Recorded, Registry, Status
from probe.server.watch.latest_rows import RankRows

CALLS, STEPS = 1024, 256
"""Newest rows read of python.collectives and python.steps: a step has several calls."""
_SHARED_AMONG = 64
"""Up to this many ranks, that many rows of each; of more ranks proportionally fewer, at least
`_FEWEST_ROWS`."""
_FEWEST_ROWS = 32
_SAMPLES = 16
"""Newest rows read of process.memory."""
MOST_INSPECTED = 8
"""Ranks that are inspected from outside, those that may be the cause first. Of a thousand ranks that hang,
nearly all wait in the same call, and their rows say so."""
_WAITING_INSPECTED = 2
"""Of these, at most this many ranks whose rows say that they only wait."""
_MOST_FRAMES = 3
_Rested = Callable[[Path, int | None], Rested | None]


def of_host(registry: Registry, ranks: Sequence[Recorded], rested: _Rested) -> list[Facts]:
    """Facts of these ranks; takes up to a second when some make no progress, else milliseconds. `rested`:
    `Watch.rested`, how long a training thread has rested."""
    of_each = share_of(len(ranks))
    found = [rough(registry, recorded, share=of_each) for recorded in ranks]
    here = {one.meta.rank for one in ranks if registry.status(one).state in LIVE}
    chosen = to_inspect(facts for facts in found if facts.rank in here)
    if chosen:
        by_rank = {recorded.meta.rank: recorded for recorded in ranks}

        def inspect(facts: Facts) -> Facts:
            return _inspected(registry, by_rank[facts.rank], facts, rested)

        with ThreadPoolExecutor(len(chosen), "probe-look") as pool:
            seen = {facts.rank: facts for facts in pool.map(inspect, chosen)}
        found = [seen.get(facts.rank, facts) for facts in found]
    return found


def share_of(ranks: int) -> float:
    """The share of `CALLS` and `STEPS` that is read of each rank, of this many ranks."""
    return min(1.0, _SHARED_AMONG / max(1, ranks))


def rows_of_each(ranks: int) -> tuple[int, int]:
    """How many calls and steps are read of each rank, of this many ranks."""
    return _shares(share_of(ranks))


def _shares(share: float) -> tuple[int, int]:
    calls, steps = (max(_FEWEST_ROWS, int(share * most)) for most in (CALLS, STEPS))
    return calls, steps


def rough(
    registry: Registry, recorded: Recorded, progress: Progress | None = None, share: float = 1.0,
    rows: RankRows | None = None,
) -> Facts:
    """The facts of a rank from its recording alone. `share` of `CALLS` and `STEPS` is read, unless `rows` has
    them."""
    meta, status = recorded.meta, registry.status(recorded)
    if progress is None and status.state in LIVE:
        progress = History(meta).read()
    if status.state not in LIVE and (kept := _of_bundle(recorded)) is not None:
        return kept
    facts = Facts(
        meta.rank, meta.pid, meta.host, meta.job, meta.world_size or 1, clock.wall_ns(), status.state,
        how=status.how, exit_status=status.exit_status, ended_ns=status.ended_ns,
        step=status.step if progress is None else progress.step,
        **_last_rows(recorded, share, rows),
    )
    if status.state not in LIVE:
        return _with_end(registry, recorded, status, facts)
    if progress is None:
        return facts
    thresholds = registry.stall_thresholds()
    return replace(
        facts, step=progress.step, last_step_s=progress.last_step_s, usual_step_s=progress.usual_step_s,
        quiet_s=stall_thresholds.quiet_s(progress), phase=progress.phase, phase_s=progress.phase_s,
        late_s=stall_thresholds.patience_s(stall_setting(meta), progress, thresholds),
        usual_quiet_s=stall_thresholds.usual_quiet_s(progress, thresholds),
        cpu_wait_ratio=_cpu_wait_ratio(recorded),
    )


def _cpu_wait_ratio(recorded: Recorded) -> float | None:
    """The share of the time in which the training thread waited for a CPU, over the last samples."""
    rows = last_rows(recorded.folder, recorded.meta, "process.memory", _SAMPLES)
    known = [(row["t_ns"], row["cpu_wait_ns"]) for row in rows if row.get("cpu_wait_ns") is not None]
    if len(known) < 2 or known[-1][0] <= known[0][0]:
        return None
    (began_ns, before_ns), (ended_ns, after_ns) = known[0], known[-1]
    return float((after_ns - before_ns) / (ended_ns - began_ns))


def _last_rows(recorded: Recorded, share: float, rows: RankRows | None) -> dict[str, Any]:
    """The calls and steps of the facts."""
    if rows is not None:
        return {"calls": rows.calls, "steps": rows.steps}
    calls, steps = _shares(share)
    return {
        "calls": calls_of(last_rows(recorded.folder, recorded.meta, "python.collectives", calls)),
        "steps": steps_of(last_rows(recorded.folder, recorded.meta, "python.steps", steps)),
    }


def _of_bundle(recorded: Recorded) -> Facts | None:
    """The facts of a rank from when its bundle was made; None if the recording is not in a bundle."""
    known = moment.read(recorded.folder)
    if known is None or known.facts is None:
        return None
    try:
        return Facts.from_dict(known.facts)
    except (ValueError, TypeError, KeyError) as error:
        raise RecordingError(f"{recorded.folder / moment.FILE} cannot be used: {error}") from None


def _with_end(registry: Registry, recorded: Recorded, status: Status, facts: Facts) -> Facts:
    """The facts with the rank's end: when its failure began, what it raised, where it was."""
    exception = registry.own_report(recorded.folder).exception
    raised, ended_ns = None, status.ended_ns
    if exception is not None and status.state == "failed":
        where = f" in {exception['where']}" if exception.get("where") else ""
        raised = f"{exception.get('type')}{where}: {str(exception.get('message') or '')[:500]}"
        began_ns = exception.get("t_ns")
        if began_ns is not None:
            ended_ns = min(int(began_ns), ended_ns or int(began_ns))
    return replace(
        facts, raised=raised, ended_ns=ended_ns, frame=_last_frame(recorded),
        verdict=verdict_of_end(recorded, status),
    )


def _last_frame(recorded: Recorded) -> str | None:
    """Where the rank was in the last capture in its recording."""
    found = server_journal.last_capture(recorded.folder)
    if found is None:
        return None
    threads = found[0]["threads"]
    thread = next((one for one in threads if one.get("training")), threads[0])
    return stack_line([
        Frame(frame["func"], frame["file"], frame["lineno"], bool(frame.get("is_user")))
        for frame in thread["frames"] if frame.get("frame_type") == "Python"
    ])


def stack_line(frames: Sequence[Frame]) -> str | None:
    """The innermost relevant frame and its callers: `read (data.py:88) ← main (train.py:12)`."""
    first = innermost(frames)
    if first is None:
        return None
    callers = frames[list(frames).index(first) + 1 :]
    named = [first, *(frame for frame in callers if frame.is_user and frame.func != "<module>")]
    return " ← ".join(map(wording.short, named[:_MOST_FRAMES]))


# Evidence from outside ----------------------------------------------------------


def to_inspect(ranks: Iterable[Facts]) -> list[Facts]:
    """Ranks to inspect from outside: those without progress. Those that only wait, according to their rows,
    come last, and only a few of them."""
    quiet = [facts for facts in ranks if facts.lives and not (facts.gets_on and not is_stopped(facts.pid))]
    wait = [facts for facts in quiet if _waits(facts)]
    others = [facts for facts in quiet if not _waits(facts)]
    return [*others, *wait[: _WAITING_INSPECTED if others else 2 * _WAITING_INSPECTED]][:MOST_INSPECTED]


def _waits(facts: Facts) -> bool:
    call = facts.pending
    waits = call is not None and call.source == "call" and not call.asynchronous
    return waits and not is_stopped(facts.pid)


def _inspected(registry: Registry, recorded: Recorded, facts: Facts, rested: _Rested) -> Facts:
    """The facts with a verdict on the rank alone, from evidence that takes up to a second."""
    thread, thresholds = registry.training_thread(recorded), registry.stall_thresholds()
    evidence = gather(
        recorded.meta.pid, recorded.meta, rested=rested(recorded.folder, thread), training_thread=thread,
        folder=recorded.folder, enough=partial(settled, thresholds=thresholds),
    )
    finding = diagnose_process(evidence, thresholds)
    return with_evidence(registry, recorded, facts, evidence, finding)


def with_evidence(
    registry: Registry, recorded: Recorded, facts: Facts, evidence: Evidence, verdict: Finding
) -> Facts:
    """The facts with evidence from outside, and the verdict from it."""
    if evidence.state in (None, "zombie", "dead"):  # it has just ended
        return rough(registry, recorded)
    thread = evidence.training
    frame = None if thread is None else stack_line(thread.frames)
    if verdict.severity == OK and frame is None:
        return facts
    fresh = rough(registry, recorded, evidence.progress)  # read again: it may wait in another call now
    return replace(fresh, verdict=verdict, frame=frame)
