"""The facts of this host's ranks of a job, for the verdict on the whole job.

Read from what every rank left in its recording (rings, segments when those are gone, journals), so a rank
that is stopped, holds the GIL or is dead is known as well as one that runs. Ranks whose steps do not come
are looked at from outside for about a second, all at once; no rank is asked anything. Blocks: the server's
request threads, the watch. May import what `probe.diagnose` may.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

from probe.base import clock
from probe.diagnose.finding import Finding
from probe.diagnose.process import stall_thresholds, wording
from probe.diagnose.process.evidence import Evidence, Frame, gather, stall_setting
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.process.progress import History, Progress
from probe.diagnose.process.stack_patterns import innermost
from probe.diagnose.ranks.rank_evidence import Facts, calls_of, steps_of
from probe.diagnose.states import OK
from probe.recording import places
from probe.recording.captures import last_capture
from probe.recording.journal import read_journal
from probe.recording.process import life
from probe.recording.segments import last_rows
from probe.server.recordings.end_verdicts import verdict_of_end
from probe.server.recordings.registry import LIVE, Recorded, Registry, Status

CALLS, STEPS = 1024, 256
"""Last rows of python.collectives and python.steps that are looked at: a step has several calls."""
_SHARED_AMONG = 64
"""So many ranks have that many; of more ranks each has fewer, but for a few."""
_FEWEST_ROWS = 32
MOST_LOOKS = 8
"""Ranks that are looked at longer: the ones that may be the cause first. Of a thousand ranks that hang,
nearly all wait in the same call, and their rows say so."""
_SECOND_LOOKS = 2
"""…and so many of those whose rows say that they only wait."""
_MOST_FRAMES = 3


def of_host(registry: Registry, ranks: Sequence[Recorded]) -> list[Facts]:
    """Facts of these ranks; takes about a second when some of them do not get on, else milliseconds."""
    of_each = share_of(len(ranks))
    found = [rough(registry, recorded, share=of_each) for recorded in ranks]
    chosen = to_look_at(found)
    if chosen:
        by_rank = {recorded.meta.rank: recorded for recorded in ranks}

        def look(facts: Facts) -> Facts:
            return looked_at(registry, by_rank[facts.rank], facts)

        with ThreadPoolExecutor(len(chosen), "probe-look") as pool:
            seen = {facts.rank: facts for facts in pool.map(look, chosen)}
        found = [seen.get(facts.rank, facts) for facts in found]
    return found


def share_of(ranks: int) -> float:
    """Of the last rows that could be looked at, how many are when there are so many ranks."""
    return min(1.0, _SHARED_AMONG / max(1, ranks))


def rough(
    registry: Registry, recorded: Recorded, progress: Progress | None = None, share: float = 1.0
) -> Facts:
    """What the recording alone says of a rank; `share` of the last rows that could be looked at."""
    calls, steps = (max(_FEWEST_ROWS, int(share * most)) for most in (CALLS, STEPS))
    meta, status = recorded.meta, registry.status(recorded)
    if progress is None and status.state in LIVE:
        progress = History(meta).read()
    facts = Facts(
        meta.rank, meta.pid, meta.host, meta.job, meta.world_size or 1, clock.wall_ns(), status.state,
        how=status.how, exit_status=status.exit_status, ended_ns=status.ended_ns,
        step=status.step if progress is None else progress.step,
        calls=calls_of(last_rows(recorded.folder, meta, "python.collectives", calls)),
        steps=steps_of(last_rows(recorded.folder, meta, "python.steps", steps)),
    )
    if status.state not in LIVE:
        return _of_the_ended(registry, recorded, status, facts)
    if progress is None:
        return facts
    thresholds = registry.stall_thresholds()
    return replace(
        facts, step=progress.step, last_step_s=progress.last_step_s, usual_step_s=progress.usual_step_s,
        quiet_s=stall_thresholds.quiet_s(progress), phase=progress.phase, phase_s=progress.phase_s,
        late_s=stall_thresholds.patience_s(stall_setting(meta), progress, thresholds),
        usual_quiet_s=stall_thresholds.usual_quiet_s(progress, thresholds),
    )


def _of_the_ended(registry: Registry, recorded: Recorded, status: Status, facts: Facts) -> Facts:
    """How a rank ended: when its end began to show, what it raised, where it was."""
    told = registry.told(recorded.folder)
    raised, ended_ns = None, status.ended_ns
    if told.exception is not None and status.state == "failed":
        exception = told.exception
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
    """Where the rank was in the last capture that its recording holds."""
    rows = (
        row
        for record in chain.from_iterable(map(read_journal, places.journals(recorded.folder)))
        if record.get("table") == "python.stacks"
        for row in record["rows"]
    )
    found = last_capture(rows)
    if found is None:
        return None
    threads = found[0]["threads"]
    thread = next((one for one in threads if one.get("training")), threads[0])
    return stack_line([
        Frame(frame["func"], frame["file"], frame["lineno"], bool(frame.get("is_user")))
        for frame in thread["frames"] if frame.get("frame_type") == "Python"
    ])


def stack_line(frames: Sequence[Frame]) -> str | None:
    """The frame to name and its callers on one line: `read (data.py:88) ← main (train.py:12)`."""
    first = innermost(frames)
    if first is None:
        return None
    callers = frames[list(frames).index(first) + 1 :]
    named = [first, *(frame for frame in callers if frame.is_user and frame.func != "<module>")]
    return " ← ".join(map(wording.short, named[:_MOST_FRAMES]))


# A longer look ----------------------------------------------------------------


def to_look_at(ranks: Iterable[Facts]) -> list[Facts]:
    """Ranks to be looked at longer: those whose steps do not come. Those that only wait, as their rows say,
    come last, and few of them."""
    quiet = [facts for facts in ranks if facts.lives and not _gets_on(facts)]
    wait = [facts for facts in quiet if _waits(facts)]
    others = [facts for facts in quiet if not _waits(facts)]
    return [*others, *wait[: _SECOND_LOOKS if others else 2 * _SECOND_LOOKS]][:MOST_LOOKS]


def _gets_on(facts: Facts) -> bool:
    process = life(facts.pid)
    return facts.gets_on and not (process is not None and process.state in "Tt")


def _waits(facts: Facts) -> bool:
    call = facts.pending
    process = life(facts.pid)
    stopped = process is not None and process.state in "Tt"
    return call is not None and call.source == "call" and not call.asynchronous and not stopped


def looked_at(registry: Registry, recorded: Recorded, facts: Facts) -> Facts:
    """The facts with a verdict on the rank alone, from about a second's look from outside."""
    evidence = gather(
        recorded.meta.pid, recorded.meta, training_thread=registry.training_thread(recorded),
        folder=recorded.folder,
    )
    finding = diagnose_process(evidence, registry.stall_thresholds())
    return with_evidence(registry, recorded, facts, evidence, finding)


def with_evidence(
    registry: Registry, recorded: Recorded, facts: Facts, evidence: Evidence, verdict: Finding
) -> Facts:
    """The facts with what somebody found who looked at the rank longer."""
    if evidence.state in (None, "zombie", "dead"):  # it ended meanwhile
        return rough(registry, recorded)
    thread = evidence.training
    frame = None if thread is None else stack_line(thread.frames)
    if verdict.severity == OK and frame is None:
        return facts
    fresh = rough(registry, recorded, evidence.progress)  # the rows of now: what it waits in may be new
    return replace(fresh, verdict=verdict, frame=frame)
