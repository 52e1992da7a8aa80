"""Process rules: derive the state of a process from evidence; the first matching rule decides.

Pure: the same evidence gives the same finding. Certain states come first (ended, stopped), then causes that
keep the process from running (swap, CPU, the kernel), then what its training thread waits for, and last what
it does. A rule raises an alarm only after the run's own time limits (`stall_thresholds`). Standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from probe.base import clock
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process import stack_patterns, wording
from probe.diagnose.process.evidence import Evidence, Thread, Worker
from probe.diagnose.process.handled import with_exception
from probe.diagnose.process.pause_owner import ACTING, PAUSED
from probe.diagnose.process.progress import WARM_UP_STEPS, Progress
from probe.diagnose.process.stall_thresholds import DEFAULTS, Case, usual_quiet_s
from probe.diagnose.stall_parameters import StallThresholds
from probe.diagnose.states import ALARM, INFO, NOTICE, OK

_BACKTRACE = "probe {pid} backtrace"
_ALL_THREADS = "probe {pid} backtrace --all-threads"
_LOCALS = "probe {pid} backtrace --locals"
_NATIVE = "probe {pid} backtrace --native --all-threads"
_CPU = ("ps -o pid,ni,psr,pcpu,stat,args -p {pid}", "taskset -cp {pid}", "top -H")
"""Next commands; `{pid}` is filled in."""
_MOST_LINES = 8
_LET_IN_S = 0.25  # tolerance: both times are read at the same moment


def diagnose_process(evidence: Evidence, thresholds: StallThresholds = DEFAULTS) -> Finding:
    """The state of the process."""
    case = Case(evidence, thresholds)
    found = next(found for rule in RULES if (found := rule(case)) is not None)
    return found if evidence.handled is None else with_exception(found, evidence.handled)


def _finding(
    case: Case, state: str, severity: str, what: str, *own: str, ask: Iterable[str] = (), place: bool = True,
    gil: bool = False, said: bool = False,
) -> Finding:
    """Make a finding. Its evidence: the rule's `own` lines; the progress of training, unless `what` already
    contains it (`said`, or `since`); with `place`, the training thread; with `gil`, who holds the GIL."""
    said = said or (bool(case.since) and case.since in what)
    why = [*own, *wording.progress_lines(case.evidence, last_step=not said)]
    why += wording.thread_lines(case.evidence, case.training) if place else []
    why += wording.gil_lines(case.evidence) if gil else []
    pid = str(case.evidence.pid)
    return Finding(state, severity, what, why, [line.replace("{pid}", pid) for line in ask])


# Certain ----------------------------------------------------------------------


def _ended(case: Case) -> Finding | None:
    e = case.evidence
    if e.state is not None and e.state not in ("zombie", "dead"):
        return None
    if e.how is None and e.progress is None and e.state != "zombie" and not e.closed:
        return _finding(case, states.DEAD, NOTICE, f"no such process: {e.pid}", ask=["probe ps --all"])
    sql = "SELECT step, wall_s, loss FROM python.steps ORDER BY step DESC LIMIT 10"
    ask = [f'probe {{pid}} query "{sql}"'] if e.progress else []
    if e.closed:
        return _finding(case, states.FINISHED, OK, e.how or "finished: its recording was closed", ask=ask)
    if e.state == "zombie" and e.how is None:
        what = f"process {e.pid} has ended, but its parent has not collected its exit status (zombie)"
        return _finding(case, states.ZOMBIE, ALARM, what, ask=ask)
    what = e.how or f"process {e.pid} ended without closing its recording; what ended it is unknown"
    ask.append('probe {pid} query "SELECT reason, thread_name, func, lineno FROM python.stacks"')
    return _finding(case, states.DEAD, ALARM, what, ask=ask)


def _stopped(case: Case) -> Finding | None:
    e = case.evidence
    if e.state not in ("stopped", "traced"):
        return None
    own = f"kernel state: {e.state}"
    if e.tracer_pid is not None:
        what = f"stopped by a debugger, process {e.tracer_pid} ({e.tracer_name or 'name hidden'}){case.since}"
        ask = f"ps -o pid,user,args -p {e.tracer_pid}"
        return _finding(case, states.TRACED, ALARM, what, own, ask=[ask])
    what = f"stopped by a signal (SIGSTOP or Ctrl-Z){case.since}"
    return _finding(case, states.STOPPED, ALARM, what, own, ask=["kill -CONT {pid}"])


def _paused(case: Case) -> Finding | None:
    progress, held = case.progress, case.evidence.held
    if progress is None or progress.phase != PAUSED:
        return None
    what = f"paused by probe, between two steps, for {wording.seconds(progress.phase_s or 0.0)}"
    if held is not None:
        most = f", for at most {wording.seconds(held.for_s)}" if held.for_s is not None else ""
        since = wording.seconds(max(0.0, (clock.wall_ns() - held.since_ns) / 1e9))
        what = f"paused by probe (action {held.action_id} by {held.who}) {since} ago{most}"
    ask = ["probe {pid} resume", "probe {pid} actions"]
    return _finding(case, states.PAUSED, NOTICE, what, ask=ask, place=False)


def _acted_on(case: Case) -> Finding | None:
    progress, held = case.progress, case.evidence.held
    if progress is None or progress.phase != ACTING:
        return None
    which = "an action or a snippet"
    if held is not None:
        which = f"an action ({held.action}, {held.action_id}, by {held.who})"
    for_s = wording.seconds(progress.phase_s or 0.0)
    what = f"probe runs {which}; training has waited for it between two steps for {for_s}"
    return _finding(case, states.ACTED_ON, NOTICE, what, ask=[_BACKTRACE, "probe {pid} actions"])


def _as_usual(case: Case) -> Finding | None:
    progress = case.progress
    if progress is None or progress.usual_step_s is None or case.quiet_s is None:
        return None
    if case.quiet_s > usual_quiet_s(progress, case.thresholds):
        return None
    since_s = progress.last_step_s or 0.0
    if progress.interval is not None:
        return _finding(case, *_between_steps(progress, OK))
    if since_s > case.limit_s and progress.batches > 1:
        quiet = wording.seconds(since_s)
        what = f"probably an evaluation: {progress.batches} batches but no step for {quiet}"
        return _finding(case, states.EVALUATION, OK, what)
    lacking = _lacking_cpu(case)
    if lacking:
        return _finding(
            case, states.STARVED, NOTICE, f"training continues, but {lacking[0]}", *lacking, ask=_CPU
        )
    usual = wording.seconds(progress.usual_step_s)
    what = f"step {progress.step:,} finished {wording.seconds(since_s)} ago; a step usually takes {usual}"
    return _finding(case, states.RUNNING, OK, what, place=False, said=True)


def _between_steps(progress: Progress, severity: str) -> tuple[str, str, str]:
    """State, severity and text of a process that evaluates or saves, according to python.intervals."""
    since = wording.seconds(progress.interval_s or 0.0)
    if progress.interval == "checkpoint":
        return states.CHECKPOINT, severity, f"saving a checkpoint for {since}, after step {progress.step}"
    batches = f", {progress.batches} batches so far" if progress.batches else ""
    doing = {"prediction": "predicting", "inference": "running inference", "reading": "reading batches"}
    kind = doing.get(str(progress.interval), "evaluating")
    return states.EVALUATION, severity, f"{kind} for {since}, after step {progress.step}{batches}"


# Kept from running ------------------------------------------------------------


def _swapping(case: Case) -> Finding | None:
    e = case.evidence
    if not e.swap_bytes or (e.major_faults_per_s or 0.0) < case.thresholds.swap_faults_per_s:
        return None
    own = [f"{wording.gibibytes(e.swap_bytes)} in swap, {e.major_faults_per_s:.0f} major faults/s"]
    what = f"paging in from swap: {own[0]}{case.since}"
    own += [f"resident: {wording.gibibytes(e.rss_bytes)}"] if e.rss_bytes is not None else []
    if e.memory_limit_bytes is not None and e.memory_usage_bytes is not None:
        used, limit = wording.gibibytes(e.memory_usage_bytes), wording.gibibytes(e.memory_limit_bytes)
        own.append(f"its cgroup uses {used} of {limit}")
    sql = "SELECT t_ns, rss_bytes FROM process.memory ORDER BY t_ns DESC LIMIT 10"
    ask = ["free -h", f'probe {{pid}} query "{sql}"']
    return _finding(case, states.SWAPPING, ALARM if case.late else NOTICE, what, *own, ask=ask)


def _starved(case: Case) -> Finding | None:
    lacking = _lacking_cpu(case)
    if not lacking or case.had_cpu:
        return None
    what = f"starved, not hung: {lacking[0]}{case.since}"
    return _finding(case, states.STARVED, ALARM if case.late else NOTICE, what, *lacking, ask=_CPU)


def _lacking_cpu(case: Case) -> list[str]:
    """Lines on how the process is kept from the CPU; empty if it is not."""
    thread, limits, throttled = case.training, case.thresholds, case.evidence.throttled_ratio
    lines = []
    if thread is not None and thread.run_delay_ratio is not None and thread.cpu_ratio is not None:
        delay = thread.run_delay_ratio
        if delay >= limits.starved_window_ratio and delay >= limits.starved_ratio * thread.wanted_ratio:
            running = wording.percent(thread.cpu_ratio)
            lines.append(f"it waited for a CPU {wording.percent(delay)} of the time and ran {running}")
    wants_cpu = thread is not None and not thread.still
    if wants_cpu and throttled is not None and throttled >= limits.throttled_ratio:
        lines.append(f"its cgroup used up its CPU quota in {wording.percent(throttled)} of the periods")
    return lines


def _uninterruptible(case: Case) -> Finding | None:
    thread = case.training
    if thread is None or thread.state != "uninterruptible" or case.works:
        return None
    what = f"waits in the kernel, uninterruptibly (D state), in {thread.wchan or 'an unknown call'}"
    what += f"{wording.on(thread)}: a disk, network file system or device does not respond{case.since}"
    severity = case.waiting(sure=case.sleeps) if case.progress else (ALARM if case.sleeps else NOTICE)
    ask = ["cat /proc/{pid}/stack  (as root)", _ALL_THREADS, "dmesg | tail"]
    return _finding(case, states.UNINTERRUPTIBLE, severity, what, ask=ask)


# Waiting for ------------------------------------------------------------------


def _holds_gil(case: Case) -> Finding | None:
    threads = case.evidence.threads
    holder = next((thread for thread in threads if thread.held_gil and not thread.changed), None)
    if holder is None:
        return None
    rests = holder.cpu_ratio is not None and holder.wanted_ratio <= case.thresholds.rest_ratio
    asleep = holder.still or rests
    shut_out = asleep or any(thread.waits_for_gil for thread in threads) or _shut_out(case)
    if not shut_out or (holder.training and not asleep and _lets_in(case)):
        return None
    doing = "asleep" if asleep else "computing"
    what = f"{_named(holder)} holds the GIL in C code, {doing}, in {wording.place_of(holder.frames)}"
    alone = ALARM if asleep else NOTICE
    early = INFO if not asleep and not case.late else ""  # one long call in C, so far
    severity = alone if case.quiet_s is None else early or case.waiting(sure=asleep)
    own = [] if holder.training else wording.thread_lines(case.evidence, holder)
    ask = [_ALL_THREADS, _NATIVE]
    return _finding(case, states.HOLDS_GIL, severity, what + case.since, *own, ask=ask, gil=True)


def _shut_out(case: Case) -> bool:
    """Whether the agent's own thread cannot get the GIL."""
    p = case.progress
    if p is None or p.sample_s is None or p.sample_interval_s is None:
        return False
    return p.sample_s > case.thresholds.samples_missed * p.sample_interval_s


def _lets_in(case: Case) -> bool:
    """Whether the agent's own thread has run since the last sign of training: a Python loop releases the GIL
    every few milliseconds, a call into C does not."""
    p = case.progress
    ours = any(one.waits_for_gil for one in case.evidence.threads if one.name == "probe-agent")
    if ours and not _lacking_cpu(case):  # without a CPU the holder cannot release it either
        return False
    if p is None or p.sample_s is None or case.quiet_s is None or _shut_out(case):
        return False
    return p.sample_s < case.quiet_s - _LET_IN_S


def _checkpoint(case: Case) -> Finding | None:
    training = case.training
    writers = [] if training is None else [training]
    if training is not None and stack_patterns.lock_wait(training):  # it may wait for a thread that writes
        writers = list(case.evidence.threads)
    thread = next((one for one in writers if stack_patterns.checkpoint(one) is not None), None)
    if thread is None:
        return None
    place, caller = wording.short(stack_patterns.checkpoint(thread)), wording.place_of(thread.frames)
    what = f"writes a checkpoint in {place}, called by {caller}{case.since}"
    own: list[str] = []
    if thread is not training:
        what = f"waits for {_named(thread)}, which {what}"
        own = wording.thread_lines(case.evidence, thread)
    return _finding(
        case, states.CHECKPOINT, case.working(), what, *own, ask=["probe {pid} backtrace --native"]
    )


def _held(case: Case) -> Finding | None:
    if case.training is None or not stack_patterns.held(case.training):
        return None
    what = f"an exception ended the main thread; kept for inspection (PROBE_HOLD_S){case.since}"
    ask = [_BACKTRACE, 'probe {pid} query "SELECT type, message FROM python.exceptions"']
    return _finding(case, states.HELD, NOTICE, what, ask=ask)


def _idle(case: Case) -> Finding | None:
    e, thread = case.evidence, case.training
    if thread is None or not e.samples or case.works or thread.state == "uninterruptible":
        return None
    waits = stack_patterns.idle(thread)
    never = e.progress is None or e.progress.step is None
    if waits is None and never and e.workers and stack_patterns.waits_for_children(thread):
        waits = f"its {sum(one.role != 'resource tracker' for one in e.workers)} child processes"
    if waits is None:
        return None
    return _finding(case, states.IDLE, NOTICE, f"waits for {waits}{case.since}", *_other_threads(case))


def _data(case: Case) -> Finding | None:
    e, thread = case.evidence, case.training
    pending = e.progress is not None and e.progress.pending_s is not None
    if not (pending or (thread is not None and stack_patterns.waits_for_data(thread.frames))):
        return None
    loader = (e.progress.pending_loader if e.progress else None) or "a DataLoader"
    pending_s = (e.progress and e.progress.pending_s) or 0.0
    waits = f"has waited {wording.seconds(pending_s)}" if pending else "waits"
    workers = [
        worker for worker in e.workers
        if stack_patterns.is_data_worker(worker) or worker.state == "zombie"
    ]
    starting = [worker for worker in e.workers if worker not in workers and worker.role is None]
    culprits, sure = _culprits(case, workers)
    if thread is not None and stack_patterns.ends_workers(thread.frames):
        detail, sure, culprits = "the epoch is over and its workers are shutting down", False, workers
    elif culprits:
        first = culprits[0]
        place = wording.place_of(stack_patterns.fetching(first.frames) or first.frames)
        said = "is dead (zombie)" if first.state == "zombie" else f"is {first.state} in {place}"
        detail = f"worker {first.pid} {said}"
    elif starting:  # a spawned worker imports torch, or is not yet Python
        place = wording.place_of(starting[0].frames)
        detail, sure, culprits = f"process {starting[0].pid} is starting, in {place}", False, starting
    elif thread is not None and not workers:
        detail = f"its dataset is in {wording.place_of(stack_patterns.fetching(thread.frames))}"
        sure = not case.works and case.sleeps
    else:
        detail, sure = "all of its workers are idle", True
    busy = (not workers and case.works) or any(_busy(case, worker) for worker in culprits)
    shown = [*culprits, *(one for one in workers if one not in culprits)][:_MOST_LINES]
    return _finding(
        case, states.WAITING_FOR_DATA, case.working() if busy else case.waiting(sure=sure),
        f"{waits} for a batch of {loader}: {detail}",
        *(wording.worker_line(one, stack_patterns.fetching(one.frames)) for one in shown),
        ask=["probe {pid} backtrace --workers", "probe {pid} backtrace --workers --native --all-threads"],
    )


def _culprits(case: Case, workers: list[Worker]) -> tuple[list[Worker], bool]:
    """The workers that delay a batch, most certain first; and whether they are permanently stuck."""
    dead = [worker for worker in workers if worker.state in ("zombie", "dead")]
    stuck = [worker for worker in workers if worker.state in ("uninterruptible", "stopped", "traced")]
    others = [worker for worker in workers if worker not in dead + stuck]
    inside = [worker for worker in others if stack_patterns.fetching(worker.frames)]
    asleep = [worker for worker in inside if not _busy(case, worker)]
    busy = [worker for worker in inside if _busy(case, worker)]
    found = dead + stuck + asleep + busy
    # torch notices a dead worker by itself, within five seconds.
    return found, bool((stuck or asleep) and not dead)


def _busy(case: Case, worker: Worker) -> bool:
    """Whether it works, or would work if it got a CPU."""
    runs = bool(worker.changed) or worker.state == "running"
    return runs or (worker.cpu_ratio or 0.0) >= case.thresholds.busy_ratio


def _collective(case: Case) -> Finding | None:
    thread = case.training
    if thread is None or case.works:
        return None
    frame = stack_patterns.collective(thread.frames)
    several = (case.evidence.world_size or 1) > 1
    if frame is None and not (several and stack_patterns.in_backward(thread.frames)):
        return None
    op = frame.func if frame is not None else "backward (gradient averaging)"
    caller = next((one for one in thread.frames if one.is_user), None)
    what = f"waits for other ranks in {op}" + (f", called by {wording.short(caller)}" if caller else "")
    ask = ["probe JOB diagnose  (all ranks: which one is not in this call)", "probe ps", _NATIVE]
    return _finding(case, states.IN_COLLECTIVE, case.waiting(sure=True), what + case.since, ask=ask)


def _deadlock(case: Case) -> Finding | None:
    e = case.evidence
    waiting = [
        thread for thread in e.threads
        if thread.still and stack_patterns.mutex_wait(thread) and not stack_patterns.serves_notebook(thread)
    ]
    if len(waiting) < 2 or not any(thread.training for thread in waiting):
        return None
    places = "; ".join(f"{thread.name} in {wording.place_of(thread.frames)}" for thread in waiting)
    severity = ALARM if case.quiet_s is None else case.waiting(sure=case.sleeps)
    others = [line for one in waiting if not one.training for line in wording.thread_lines(e, one)]
    what = f"{len(waiting)} threads each wait for a lock, and none makes progress: {places}{case.since}"
    ask = ["probe {pid} backtrace --all-threads --locals", _NATIVE]
    return _finding(case, states.DEADLOCK, severity, what, *others, ask=ask, gil=True)


def _elsewhere(case: Case) -> Finding | None:
    """The training thread waits for another thread or a child process that works."""
    e, thread = case.evidence, case.training
    if thread is None or case.works:
        return None
    for other in e.threads:
        ours = str(other.name).startswith("probe-") or other is thread
        if not ours and other.changed and other.wanted_ratio >= case.thresholds.busy_ratio:
            doing = f"{_named(other)}, which is running {wording.place_of(other.frames)}"
            break
    else:
        child = next((worker for worker in e.workers if _busy(case, worker)), None)
        waits = stack_patterns.waits_for_children(thread) or stack_patterns.lock_wait(thread)
        if child is None or not waits:
            return None
        doing = f"process {child.pid} ({child.command or 'command hidden'}), which is running"
    return _finding(
        case, states.SLOW_STEP, case.slow(case.working()), f"waits for {doing}{case.since}", *_children(case),
        ask=["probe {pid} backtrace --all-threads --workers"],
    )


def _lock_wait(case: Case) -> Finding | None:
    thread = case.training
    if thread is None or case.works or not stack_patterns.lock_wait(thread):
        return None
    return _finding(
        case, states.LOCK_WAIT, case.waiting(sure=case.sleeps) if case.trains else NOTICE,
        f"waits for a lock or an event in {wording.place_of(thread.frames)}{case.since}",
        *_other_threads(case), ask=["probe {pid} backtrace --all-threads --locals", _NATIVE], gil=True,
    )


def _warm_up(case: Case) -> Finding | None:
    progress, thread = case.progress, case.training
    if progress is None or progress.usual_step_s is not None or case.late:
        return None
    done = f"{progress.steps} of the first {WARM_UP_STEPS} steps have" if progress.steps else "no step has"
    after = wording.seconds(progress.recorded_s)
    what = f"{done} finished {after} after recording began: starting, compiling or idle"
    what += f", in {wording.place_of(thread.frames)}" if thread is not None and thread.frames else ""
    return _finding(case, states.WARM_UP, INFO, what)


def _blocked(case: Case) -> Finding | None:
    e, thread = case.evidence, case.training
    if thread is None or not e.samples or case.works:
        return None
    if thread.held_gil or (thread.state != "sleeping" and not thread.still):
        return None
    call = f" in {thread.call}" if thread.call else ""
    child = ""
    if e.workers and stack_patterns.waits_for_children(thread):
        one = e.workers[0]
        child = f", for process {one.pid} ({one.command or one.state}), which is {one.state}"
    polls = "" if case.sleeps else "; it wakes now and then"
    place = wording.place_of(thread.frames)
    what = f"waits{call}{wording.on(thread)}, called by {place}{child}{polls}{case.since}"
    return _finding(
        case, states.BLOCKED, case.waiting(sure=case.sleeps) if case.trains else NOTICE, what,
        *_children(case), ask=[_LOCALS, _NATIVE], gil=True,
    )


# Busy with --------------------------------------------------------------------


def _working(case: Case) -> Finding | None:
    e, thread = case.evidence, case.training
    if thread is None or not e.samples:
        return None
    place = wording.place_of(thread.frames)
    doing = f"runs in {place}" if thread.changed else f"computes in one call, in {place}"
    own, ask = list[str](), [_BACKTRACE, _LOCALS]
    if case.quiet_s is None:
        what = f"{doing}; steps are unknown without a recording"
        return _finding(case, states.RUNNING, OK, what, ask=["probe {pid} attach"], gil=True)
    lacking = _lacking_cpu(case)
    if lacking:
        own.append(f"{lacking[0]}; but it had the CPU time of {case.thresholds.stall_steps:g} usual steps")
    frame = None if case.progress is None or case.progress.interval is not None else case.circles
    severity = case.working(moving=bool(thread.changed) and frame is None)
    if severity == ALARM or frame is not None:
        if frame is not None:
            doing = f"runs in {wording.short_with_caller(frame, thread.frames)}"
            own.insert(0, f"all {e.samples} stack samples are in {frame.func}, none in a module or backward")
        what = f"{doing} without completing a step or batch{case.since}"
        return _finding(case, states.BUSY, severity, what, *own, ask=ask, gil=True)
    if not case.trains:
        return _finding(case, states.RUNNING, OK, doing + case.since, *own, ask=ask, gil=True)
    if case.progress is not None and case.progress.interval is not None:
        return _finding(case, *_between_steps(case.progress, NOTICE), *own, ask=ask, gil=True)
    return _finding(case, states.SLOW_STEP, case.slow(NOTICE), doing + case.since, *own, ask=ask, gil=True)


def _unknown(case: Case) -> Finding:
    """No stacks: the kernel's view, and why there are none."""
    e, thread = case.evidence, case.training
    known = thread and thread.state
    doing = f"the training thread is {known}" if known else f"the process is {e.state}"
    doing += f" in {thread.call}" if thread and thread.call else ""
    severity = case.working() if case.works else case.waiting(sure=case.sleeps)
    what = f"its stacks cannot be read; according to the kernel {doing}{case.since}"
    return _finding(case, states.UNKNOWN, severity, what, ask=["probe {pid} backtrace --native"])


RULES: tuple[Callable[[Case], Finding | None], ...] = (
    _ended, _stopped, _paused, _as_usual, _acted_on, _swapping, _starved, _held, _checkpoint,
    _uninterruptible, _holds_gil, _data, _idle, _warm_up, _collective, _deadlock, _elsewhere, _lock_wait,
    _blocked, _working, _unknown,
)
"""The rules in order: the first that finds something decides; the last always finds something."""


def _named(thread: Thread) -> str:
    return f"{thread.name} ({thread.tid})"


def _other_threads(case: Case) -> list[str]:
    others = [
        one for one in case.evidence.threads
        if not one.training and not str(one.name).startswith("probe-")
        and not stack_patterns.serves_notebook(one)
    ]
    return [f"{_named(one)} is at {wording.at(one.frames)}" for one in others[:_MOST_LINES]]


def _children(case: Case) -> list[str]:
    return [wording.worker_line(one) for one in case.evidence.workers[:_MOST_LINES]]
