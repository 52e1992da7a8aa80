"""From evidence on one process to its state, by rules in a fixed order: the first that fits decides.

Pure: the same evidence gives the same finding. What is certain comes first (ended, stopped), then what
is done to the process (swap, CPU, the kernel), then what its training thread is waiting for, and last
what it is busy with. A rule says `alarm` only beyond the run's own patience (`patience`). Standard
library only.
"""

from __future__ import annotations

from collections.abc import Callable

from probe.base import clock
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process import stack_patterns, wording
from probe.diagnose.process.evidence import Evidence, Worker
from probe.diagnose.process.pause_owner import ACTING, PAUSED
from probe.diagnose.process.progress import WARM_UP_STEPS
from probe.diagnose.process.stall_thresholds import DEFAULTS, Case, usual_quiet_s
from probe.diagnose.stall_parameters import StallThresholds
from probe.diagnose.states import ALARM, NOTICE, OK


def diagnose_process(e: Evidence, thresholds: StallThresholds = DEFAULTS) -> Finding:
    """What state the process is in."""
    case = Case(e, thresholds)
    for rule in RULES:
        found = rule(case)
        if found is not None:
            return found
    return _unknown(case)


# Certain ----------------------------------------------------------------------


def _ended(c: Case) -> Finding | None:
    e = c.e
    if e.state is not None and e.state not in ("zombie", "dead"):
        return None
    lines = wording.progress_lines(e)
    sql = "SELECT step, wall_s, loss FROM python.steps ORDER BY step DESC LIMIT 10"
    ask = [f'probe {e.pid} query "{sql}"'] if e.progress else []
    if e.closed:
        return Finding(states.FINISHED, OK, e.how or "finished: its recording was closed", lines, ask)
    if e.state == "zombie" and e.how is None:
        what = f"process {e.pid} has ended (zombie): its parent has not asked how yet"
        return Finding(states.ZOMBIE, ALARM, what, lines, ask)
    if e.how is None and e.progress is None:
        return Finding(states.DEAD, NOTICE, f"there is no process {e.pid}", lines, ["probe ps --all"])
    what = e.how or f"process {e.pid} is gone and did not close its recording; how is not known"
    ask.append(f'probe {e.pid} query "SELECT reason, thread_name, func, lineno FROM python.stacks"')
    return Finding(states.DEAD, ALARM, what, lines, ask)


def _stopped(c: Case) -> Finding | None:
    e = c.e
    if e.state not in ("stopped", "traced"):
        return None
    lines = [f"the kernel says {e.state}", *wording.progress_lines(e), *_place(c)]
    if e.tracer_pid is not None:
        who = f"process {e.tracer_pid} ({e.tracer_name or 'its name is hidden'})"
        what = f"held by {who}, which traces it{c.since()}"
        return Finding(states.TRACED, ALARM, what, lines, [f"ps -o pid,user,args -p {e.tracer_pid}"])
    what = f"stopped by a signal (SIGSTOP or Ctrl-Z){c.since()}"
    return Finding(states.STOPPED, ALARM, what, lines, [f"kill -CONT {e.pid}"])


def _paused(c: Case) -> Finding | None:
    """Whatever else is to be seen: it is meant to stand still."""
    e, p = c.e, c.e.progress
    if p is None or p.phase != PAUSED:
        return None
    lasts = wording.seconds(p.phase_s or 0.0)
    what, lines = f"paused by probe between two steps, for {lasts} now", wording.progress_lines(e)
    if e.held is not None:
        most = f", for at most {wording.seconds(e.held.for_s)}" if e.held.for_s is not None else ""
        since_s = max(0.0, (clock.wall_ns() - e.held.since_ns) / 1e9)
        lasts = wording.seconds(since_s)
        what = f"paused by probe (action {e.held.action_id} by {e.held.who}) {lasts} ago{most}"
    return Finding(states.PAUSED, NOTICE, what, lines, [f"probe {e.pid} resume", f"probe {e.pid} actions"])


def _acted_on(c: Case) -> Finding | None:
    """Somebody's snippet or action runs where the training would."""
    e, p = c.e, c.e.progress
    if p is None or p.phase != ACTING:
        return None
    which = "an action or a snippet of probe"
    if e.held is not None:
        which = f"an action of probe ({e.held.action}, {e.held.action_id}, by {e.held.who})"
    what = f"{which} holds it between two steps, for {wording.seconds(p.phase_s or 0.0)} now"
    lines = [*wording.progress_lines(e), *_place(c)]
    ask = [f"probe {e.pid} backtrace", f"probe {e.pid} actions"]
    return Finding(states.ACTED_ON, NOTICE, what, lines, ask)


def _as_usual(c: Case) -> Finding | None:
    """Steps come. Whatever else is to be seen, training goes on."""
    e, p = c.e, c.e.progress
    if p is None or p.usual_step_s is None or c.quiet_s is None:
        return None
    if c.quiet_s > usual_quiet_s(p, c.thresholds):
        return None
    since_s = p.last_step_s or 0.0
    lines = wording.progress_lines(e)
    if since_s > c.limit_s and p.batches > 1:
        what = f"{p.batches} batches and no step for {wording.seconds(since_s)}: looks like an evaluation"
        return Finding(states.EVALUATION, OK, what, [*lines, *_place(c)])
    held_back = _held_back(c)
    if held_back:
        why = [*held_back, *lines, *_place(c)]
        return Finding(states.STARVED, NOTICE, f"steps come, and {held_back[0]}", why, _cpu_next(c))
    usual = wording.seconds(p.usual_step_s)
    what = f"step {p.step} ended {wording.seconds(since_s)} ago, usually every {usual}"
    return Finding(states.RUNNING, OK, what, lines)


# Done to it -------------------------------------------------------------------


def _swapping(c: Case) -> Finding | None:
    e = c.e
    if not e.swap_bytes or (e.major_faults_per_s or 0.0) < c.thresholds.swap_faults_per_s:
        return None
    figures = f"{wording.gibibytes(e.swap_bytes)} in swap, {e.major_faults_per_s:.0f} major faults/s"
    lines = [figures, *_memory(e), *wording.progress_lines(e), *_place(c)]
    severity = ALARM if c.late else NOTICE
    what = f"its memory comes back from swap: {figures}{c.since()}"
    sql = "SELECT t_ns, rss_bytes FROM process.memory ORDER BY t_ns DESC LIMIT 10"
    return Finding(states.SWAPPING, severity, what, lines, ["free -h", f'probe {e.pid} query "{sql}"'])


def _starved(c: Case) -> Finding | None:
    held_back = _held_back(c)
    if not held_back:
        return None
    lines = [*held_back, *wording.progress_lines(c.e), *_place(c)]
    severity = ALARM if c.late else NOTICE
    what = f"{held_back[0]}: not hung in Python{c.since()}"
    return Finding(states.STARVED, severity, what, lines, _cpu_next(c))


def _held_back(c: Case) -> list[str]:
    """How the process is kept from the CPU; empty when it is not."""
    e, thread, limits = c.e, c.e.training, c.thresholds
    lines = []
    if thread is not None and thread.run_delay_ratio is not None and thread.cpu_ratio is not None:
        delay, wanted = thread.run_delay_ratio, thread.run_delay_ratio + thread.cpu_ratio
        if delay >= limits.starved_window_ratio and delay >= limits.starved_ratio * wanted:
            lines.append(
                f"ready to run and without a core for {wording.percent(delay)} of the time, "
                f"ran for {wording.percent(thread.cpu_ratio)}"
            )
    wants_cpu = thread is not None and not thread.still
    if wants_cpu and e.throttled_ratio is not None and e.throttled_ratio >= limits.throttled_ratio:
        lines.append(
            f"its control group was out of CPU (throttled) in {wording.percent(e.throttled_ratio)} of periods"
        )
    return lines


def _cpu_next(c: Case) -> list[str]:
    return [f"ps -o pid,ni,psr,pcpu,stat,args -p {c.e.pid}", f"taskset -cp {c.e.pid}", "top -H"]


def _uninterruptible(c: Case) -> Finding | None:
    e, thread = c.e, c.e.training
    if thread is None or thread.state != "uninterruptible" or c.works:
        return None
    place = thread.wchan or "the kernel"
    on = f" on {thread.waits_on}" if thread.waits_on else ""
    what = f"uninterruptible (D) in {place}{on}: a device or file system does not answer{c.since()}"
    severity = c.waiting(sure=c.sleeps) if e.progress else (ALARM if c.sleeps else NOTICE)
    return Finding(
        states.UNINTERRUPTIBLE, severity, what, [*wording.progress_lines(e), *_place(c)],
        [f"cat /proc/{e.pid}/stack  (as root)", f"probe {e.pid} backtrace --all-threads", "dmesg | tail"],
    )


# Waiting for ------------------------------------------------------------------


def _holds_gil(c: Case) -> Finding | None:
    e = c.e
    holder = next((thread for thread in e.threads if thread.held_gil and not thread.changed), None)
    if holder is None:
        return None
    waiting = [thread for thread in e.threads if thread.waits_for_gil]
    rests = holder.cpu_ratio is not None and holder.wanted_ratio <= c.thresholds.rest_ratio
    asleep = holder.still or rests
    if not (asleep or waiting or _shut_out(c)):
        return None
    who = f"{holder.name} ({holder.tid})"
    doing = "asleep" if asleep else "computing"
    what = f"{who} holds the GIL inside C, {doing}, in {wording.place_of(holder.frames)}"
    alone = ALARM if asleep else NOTICE
    severity = alone if c.quiet_s is None else c.waiting(sure=asleep)
    own = [] if holder.training else _place(c)
    return Finding(
        states.HOLDS_GIL, severity, what + c.since(),
        [*wording.thread_lines(e, holder), *wording.gil_lines(e), *own, *wording.progress_lines(e)],
        [_native(e), f"probe {e.pid} backtrace --all-threads"],
    )


def _shut_out(c: Case) -> bool:
    """Whether the agent's own thread does not get the interpreter."""
    p = c.e.progress
    if p is None or p.sample_s is None or p.sample_interval_s is None:
        return False
    return p.sample_s > c.thresholds.samples_missed * p.sample_interval_s


def _checkpoint(c: Case) -> Finding | None:
    training = c.e.training
    writers = [] if training is None else [training]
    if training is not None and stack_patterns.lock_wait(training):  # it may wait for a thread that writes
        writers = list(c.e.threads)
    thread = next((one for one in writers if stack_patterns.checkpoint(one) is not None), None)
    if thread is None:
        return None
    frame = stack_patterns.checkpoint(thread)
    caller = wording.place_of(thread.frames)
    what = f"writes a checkpoint, in {wording.short(frame)}, called in {caller}{c.since()}"
    lines = [*wording.progress_lines(c.e), *_place(c)]
    if thread is not training:
        what = f"waits for {thread.name} ({thread.tid}), which {what}"
        lines += wording.thread_lines(c.e, thread)
    return Finding(states.CHECKPOINT, c.working(), what, lines, [f"probe {c.e.pid} backtrace --native"])


def _held(c: Case) -> Finding | None:
    e, thread = c.e, c.e.training
    if thread is None or not stack_patterns.held(thread):
        return None
    return Finding(
        states.HELD, NOTICE, f"an exception ended its main thread and it waits to be looked at{c.since()}",
        [*wording.progress_lines(e), *_place(c)],
        [f"probe {e.pid} backtrace", f'probe {e.pid} query "SELECT type, message FROM python.exceptions"'],
    )


def _idle(c: Case) -> Finding | None:
    e, thread = c.e, c.e.training
    if thread is None or not e.looks or c.works or thread.state == "uninterruptible":
        return None
    waits = stack_patterns.idle(thread)
    never = e.progress is None or e.progress.step is None
    if waits is None and never and e.workers and stack_patterns.waits_for_children(thread):
        waits = f"its {len(e.workers)} child processes"
    if waits is None:
        return None
    others = [one for one in e.threads if not one.training and not str(one.name).startswith("probe-")]
    places = [f"{one.name} ({one.tid}) is at {wording.at(one.frames)}" for one in others[:8]]
    lines = [*wording.progress_lines(e), *_place(c), *places]
    return Finding(states.IDLE, NOTICE, f"waits for {waits}{c.since()}", lines)


def _data(c: Case) -> Finding | None:
    e, thread = c.e, c.e.training
    pending = e.progress is not None and e.progress.pending_s is not None
    if not (pending or (thread is not None and stack_patterns.waits_for_data(thread.frames))):
        return None
    loader = (e.progress.pending_loader if e.progress else None) or "a DataLoader"
    waited = wording.seconds((e.progress and e.progress.pending_s) or 0.0)
    waited = f" for {waited}" if pending else ""
    workers = [
        worker for worker in e.workers
        if stack_patterns.is_data_worker(worker) or worker.state == "zombie"
    ]
    starting = [worker for worker in e.workers if worker not in workers and worker.role is None]
    culprits, sure = _culprits(c, workers)
    if thread is not None and stack_patterns.ends_workers(thread.frames):
        detail, sure, culprits = "the epoch is over and its workers are ending", False, workers
    elif culprits:
        first = culprits[0]
        place = wording.place_of(stack_patterns.fetching(first.frames) or first.frames)
        said = "is dead (zombie)" if first.state == "zombie" else f"is {first.state} in {place}"
        detail = f"worker {first.pid} {said}"
    elif starting:  # a spawned worker imports torch, or is not yet Python
        place = wording.place_of(starting[0].frames)
        detail, sure, culprits = f"process {starting[0].pid} is starting, in {place}", False, starting
    elif thread is not None and not workers:
        detail = f"the dataset is in {wording.place_of(stack_patterns.fetching(thread.frames))}"
        sure = not c.works and c.sleeps
    else:
        detail, sure = "none of its workers has a task", True
    busy = (not workers and c.works) or any(_busy(c, worker) for worker in culprits)
    return Finding(
        states.WAITING_FOR_DATA, c.working() if busy else c.waiting(sure=sure),
        f"waits{waited} for a batch of {loader}: {detail}",
        [*map(_worker_line, [*culprits, *(one for one in workers if one not in culprits)][:8]),
         *_place(c), *wording.progress_lines(e)],
        [f"probe {e.pid} backtrace --workers", f"probe {e.pid} backtrace --workers --native --all-threads"],
    )


def _culprits(c: Case, workers: list[Worker]) -> tuple[list[Worker], bool]:
    """The workers that keep a batch back, the surest first; and whether they will not go on."""
    dead = [worker for worker in workers if worker.state in ("zombie", "dead")]
    stuck = [worker for worker in workers if worker.state in ("uninterruptible", "stopped", "traced")]
    others = [worker for worker in workers if worker not in dead + stuck]
    inside = [worker for worker in others if stack_patterns.fetching(worker.frames)]
    asleep = [worker for worker in inside if not _busy(c, worker)]
    busy = [worker for worker in inside if _busy(c, worker)]
    found = dead + stuck + asleep + busy
    # Of a dead one torch learns by itself, within five seconds.
    return found, bool((stuck or asleep) and not dead)


def _busy(c: Case, worker: Worker) -> bool:
    """It works, or would if it got a core."""
    runs = bool(worker.changed) or worker.state == "running"
    return runs or (worker.cpu_ratio or 0.0) >= c.thresholds.busy_ratio


def _worker_line(worker: Worker) -> str:
    return wording.worker_line(worker, stack_patterns.fetching(worker.frames))


def _collective(c: Case) -> Finding | None:
    e, thread = c.e, c.e.training
    if thread is None or c.works:
        return None
    frame = stack_patterns.collective(thread.frames)
    several = (e.world_size or 1) > 1
    if frame is None and not (several and stack_patterns.in_backward(thread.frames)):
        return None
    op = frame.func if frame is not None else "backward (gradients are averaged there)"
    caller = next((one for one in thread.frames if one.is_user), None)
    what = f"waits for other ranks in {op}" + (f", called in {wording.short(caller)}" if caller else "")
    return Finding(
        states.IN_COLLECTIVE, c.waiting(sure=True), what + c.since(),
        [*wording.progress_lines(e), *_place(c)],
        [_native(e), "probe ps", "probe JOB/RANK diagnose  (each other rank: one of them is not in it)"],
    )


def _deadlock(c: Case) -> Finding | None:
    """Two threads in plain locks, neither moving, in different lines: as far as this shows a deadlock."""
    e = c.e
    waiting = [thread for thread in e.threads if thread.still and stack_patterns.mutex_wait(thread)]
    if len(waiting) < 2 or not any(thread.training for thread in waiting):
        return None
    places = [f"{thread.name} in {wording.place_of(thread.frames)}" for thread in waiting]
    severity = ALARM if c.quiet_s is None else c.waiting(sure=c.sleeps)
    lines = [line for thread in waiting for line in wording.thread_lines(e, thread)]
    return Finding(
        states.DEADLOCK, severity,
        f"{len(waiting)} threads wait for locks and none moves: {'; '.join(places)}{c.since()}",
        [*lines, *wording.gil_lines(e), *wording.progress_lines(e)],
        [f"probe {e.pid} backtrace --all-threads --locals", _native(e)],
    )


def _elsewhere(c: Case) -> Finding | None:
    """The training thread waits for work that another thread or a child of it does."""
    e, thread = c.e, c.e.training
    if thread is None or c.works:
        return None
    for other in e.threads:
        ours = str(other.name).startswith("probe-") or other is thread
        if not ours and other.changed and other.wanted_ratio >= c.thresholds.busy_ratio:
            where = wording.place_of(other.frames)
            doing = f"{other.name} ({other.tid}), which works in {where}"
            break
    else:
        child = next((worker for worker in e.workers if _busy(c, worker)), None)
        waits = stack_patterns.waits_for_children(thread) or stack_patterns.lock_wait(thread)
        if child is None or not waits:
            return None
        doing = f"process {child.pid} ({child.command or 'its command is hidden'}), which works"
    lines = [*_place(c), *map(wording.worker_line, e.workers[:8]), *wording.progress_lines(e)]
    return Finding(
        states.SLOW_STEP, c.working(), f"waits for {doing}{c.since()}", lines,
        [f"probe {e.pid} backtrace --all-threads --workers"],
    )


def _lock_wait(c: Case) -> Finding | None:
    e, thread = c.e, c.e.training
    if thread is None or c.works or not stack_patterns.lock_wait(thread):
        return None
    what = f"waits for a lock or an event in {wording.place_of(thread.frames)}{c.since()}"
    others = [
        f"{other.name} ({other.tid}) is at {wording.at(other.frames)}"
        for other in e.threads
        if not other.training and not str(other.name).startswith("probe-")
    ]
    return Finding(
        states.LOCK_WAIT, c.waiting(sure=c.sleeps) if c.trains else NOTICE, what,
        [*_place(c), *others[:8], *wording.gil_lines(e), *wording.progress_lines(e)],
        [f"probe {e.pid} backtrace --all-threads --locals", _native(e)],
    )


def _warm_up(c: Case) -> Finding | None:
    e, p = c.e, c.e.progress
    if p is None or p.usual_step_s is not None or c.late:
        return None
    done = f"{p.steps} of the first {WARM_UP_STEPS} steps are done" if p.steps else "no step yet"
    place = wording.place_of(e.training.frames) if e.training and e.training.frames else None
    what = f"{done} {wording.seconds(p.recorded_s)} after recording began: start-up, compiling or idle"
    why = [*wording.progress_lines(e), *_place(c)]
    return Finding(states.WARM_UP, NOTICE, what + (f", in {place}" if place else ""), why)


def _blocked(c: Case) -> Finding | None:
    e, thread = c.e, c.e.training
    if thread is None or not e.looks or c.works:
        return None
    if thread.held_gil or (thread.state != "sleeping" and not thread.still):
        return None
    place = wording.place_of(thread.frames)
    call = f" in {thread.call}" if thread.call else ""
    on = f" on {thread.waits_on}" if thread.waits_on else ""
    child = ""
    if e.workers and stack_patterns.waits_for_children(thread):
        one = e.workers[0]
        child = f", for process {one.pid} ({one.command or one.state}), which is {one.state}"
    polls = "" if c.sleeps else "; it wakes up now and then"
    what = f"blocked{call}{on} with the GIL released, in {place}{child}{polls}{c.since()}"
    return Finding(
        states.BLOCKED, c.waiting(sure=c.sleeps) if c.trains else NOTICE, what,
        [*_place(c), *wording.gil_lines(e), *map(wording.worker_line, e.workers[:8]),
         *wording.progress_lines(e)],
        [_native(e), f"probe {e.pid} backtrace --locals"],
    )


# Busy with --------------------------------------------------------------------


def _working(c: Case) -> Finding | None:
    e, thread = c.e, c.e.training
    if thread is None or not e.looks:
        return None
    place = wording.place_of(thread.frames)
    lines = [*wording.progress_lines(e), *_place(c), *wording.gil_lines(e)]
    ask = [f"probe {e.pid} backtrace", f"probe {e.pid} backtrace --locals"]
    if c.quiet_s is None:
        moves = "its stack moves" if thread.changed else "it uses the CPU at one place"
        what = f"works, in {place}: {moves}; without a recording nothing is known of steps"
        return Finding(states.RUNNING, OK, what, lines, [f"probe {e.pid} attach"])
    if c.working(moving=bool(thread.changed)) == ALARM:
        how = "runs" if thread.changed else "computes in one call"
        what = f"{how} in {place} and neither a step nor a batch comes of it{c.since()}"
        return Finding(states.BUSY, ALARM, what, lines, ask)
    how = "its stack moves" if thread.changed else "it computes"
    if not c.trains:
        return Finding(states.RUNNING, OK, f"works, in {place}{c.since()}", lines, ask)
    return Finding(states.SLOW_STEP, NOTICE, f"a long step, and {how}, in {place}{c.since()}", lines, ask)


def _unknown(c: Case) -> Finding:
    """Not looked at well enough: the kernel's word, and why there are no stacks."""
    e, thread = c.e, c.e.training
    doing = f"its training thread is {thread.state}" if thread and thread.state else f"it is {e.state}"
    doing += f" in {thread.call}" if thread and thread.call else ""
    what = f"no stacks could be read; the kernel says {doing}{c.since()}"
    severity = c.working() if c.works else c.waiting(sure=c.sleeps)
    lines = [*wording.progress_lines(e), *_place(c)]
    return Finding(states.UNKNOWN, severity, what, lines, [f"probe {e.pid} backtrace --native"])


RULES: tuple[Callable[[Case], Finding | None], ...] = (
    _ended, _stopped, _paused, _as_usual, _acted_on, _swapping, _starved, _held, _checkpoint,
    _uninterruptible, _holds_gil, _data, _idle, _warm_up, _collective, _deadlock, _elsewhere, _lock_wait,
    _blocked, _working,
)
"""In this order: the first that fits speaks."""


def _place(c: Case) -> list[str]:
    return wording.thread_lines(c.e, c.e.training)


def _memory(e: Evidence) -> list[str]:
    lines = [f"resident: {wording.gibibytes(e.rss_bytes)}"] if e.rss_bytes is not None else []
    if e.memory_limit_bytes is not None and e.memory_usage_bytes is not None:
        lines.append(
            f"its control group uses {wording.gibibytes(e.memory_usage_bytes)} of "
            f"{wording.gibibytes(e.memory_limit_bytes)}"
        )
    return lines


def _native(e: Evidence) -> str:
    return f"probe {e.pid} backtrace --native --all-threads"
