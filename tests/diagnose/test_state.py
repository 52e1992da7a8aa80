"""The rules on evidence as it was measured, where the real thing cannot be had here: swap, a dead disk,
other people's trainers. Values are those of real runs (`test_hangs`), changed in what the test is about.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from probe.base import clock
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process.evidence import Evidence, Frame, Thread, Worker
from probe.diagnose.process.pause_owner import Held
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.process.progress import Progress
from probe.diagnose.process.stall_thresholds import DEFAULTS as THRESHOLDS
from probe.diagnose.ranks.rank_rows import Peer, explain_wait
from probe.diagnose.states import ALARM, INFO, NOTICE, OK, STATES

PID = 4242
TRAIN = Frame("train_step", "/home/u/train.py", 88, True, "loss.backward()")
MAIN = Frame("main", "/home/u/train.py", 120, True)
SITE = "/venv/lib/python3.11/site-packages/"
LIBRARY = "/usr/lib/python3.11/"


def progress(quiet_s: float = 12.0, **changes: object) -> Progress:
    """1,000 steps of 60 ms, then nothing for that long."""
    usual = Progress(
        steps=1000, step=999, last_step_s=quiet_s, usual_step_s=0.06, longest_pause_s=0.2, quiet_s=quiet_s,
        phase="other", phase_s=quiet_s, pending_loader=None, pending_s=None, batches=0, last_batch_s=None,
        sample_s=0.4, sample_interval_s=1.0, recorded_s=90.0,
    )
    return replace(usual, **changes)  # type: ignore[arg-type]


def thread(*frames: Frame, **changes: object) -> Thread:
    """A training thread that sleeps without a break."""
    asleep = Thread(
        PID, "MainThread", True, frames or (TRAIN, MAIN), state="sleeping", wchan="futex_do_wait",
        call="futex", cpu_ratio=0.0, run_delay_ratio=0.0, switches_per_s=0.0, changed=False, held_gil=False,
    )
    return replace(asleep, **changes)  # type: ignore[arg-type]


def evidence(training: Thread | None = None, **changes: object) -> Evidence:
    """A recorded process whose training thread is that one."""
    seen = Evidence(
        PID, 5.0, state="sleeping", window_s=0.8, progress=progress(), threads=(training or thread(),),
        still_s=0.8, watched_s=0.8, cpu_ratio=0.0, major_faults_per_s=0.0, swap_bytes=0, rss_bytes=3 << 30,
        samples=4,
    )
    return replace(seen, **changes)  # type: ignore[arg-type]


def working(*frames: Frame) -> Thread:
    """A training thread that computes."""
    return thread(*frames, state="running", call=None, wchan=None, cpu_ratio=0.98, switches_per_s=4.0,
                  changed=True)


def state_of(found: Evidence) -> tuple[str, str]:
    return state(diagnose_process(found))


def state(found: Finding) -> tuple[str, str]:
    """State and severity; every state has a meaning written down."""
    assert found.state in STATES and found.what and "\n" not in found.what
    return found.state, found.severity


# Done to it -----------------------------------------------------------------------


def test_memory_that_comes_back_from_swap_is_named_with_figures() -> None:
    found = diagnose_process(evidence(
        thread(state="uninterruptible", wchan="folio_wait_bit_common", call=None, switches_per_s=900.0),
        swap_bytes=6 << 30, major_faults_per_s=840.0, memory_limit_bytes=32 << 30,
        memory_usage_bytes=31 << 30, still_s=0.0,
    ))
    assert state(found) == (states.SWAPPING, ALARM)
    assert "6.00 GiB in swap, 840 major faults/s" in found.what
    assert "its cgroup uses 31.00 GiB of 32.00 GiB" in found.why


@pytest.mark.parametrize(("swap_bytes", "faults"), [(6 << 30, 2.0), (0, 840.0)])
def test_swap_that_lies_still_and_faults_on_files_are_not_swapping(swap_bytes: int, faults: float) -> None:
    found = diagnose_process(evidence(swap_bytes=swap_bytes, major_faults_per_s=faults))
    assert found.state != states.SWAPPING


def test_a_disk_that_does_not_answer_is_named_with_the_file() -> None:
    found = diagnose_process(evidence(thread(
        state="uninterruptible", wchan="rpc_wait_bit_killable", call="read", waits_on="/nfs/data/shard-3"
    )))
    assert state(found) == (states.UNINTERRUPTIBLE, ALARM)
    assert "rpc_wait_bit_killable on /nfs/data/shard-3" in found.what
    assert any("dmesg" in line for line in found.next)


def test_a_debugger_is_named() -> None:
    found = diagnose_process(evidence(state="traced", tracer_pid=77, tracer_name="gdb"))
    assert state(found) == (states.TRACED, ALARM) and "process 77 (gdb)" in found.what


@pytest.mark.parametrize(("delay", "cpu", "expected"), [
    (0.95, 0.02, states.STARVED), (0.6, 0.3, states.SLOW_STEP), (0.3, 0.01, states.SLOW_STEP),
])
def test_only_who_hardly_ever_gets_a_core_is_starved(delay: float, cpu: float, expected: str) -> None:
    found = diagnose_process(evidence(
        replace(working(), run_delay_ratio=delay, cpu_ratio=cpu), still_s=0.0
    ))
    assert found.state == expected


def test_a_thread_that_is_ready_and_gets_no_cpu_is_not_taken_for_one_that_sleeps() -> None:
    assert thread().still
    ready = thread(state="running", call=None, wchan=None, run_delay_ratio=1.0)
    assert not ready.still, "its stack and its counters stand still as well"
    assert state_of(evidence(ready, state="running", still_s=0.0))[0] == states.STARVED


ROUND = Frame("on_step", "/home/u/callbacks.py", 31, True)


@pytest.mark.parametrize(("used_s", "expected"), [(0.1, states.STARVED), (0.3, states.BUSY)])
def test_who_has_had_the_cpu_for_several_steps_and_ends_none_is_busy_and_not_starved(
    used_s: float, expected: str
) -> None:
    loop = replace(working(ROUND, MAIN), run_delay_ratio=0.98, cpu_ratio=0.02, stays_in=ROUND, in_torch=False)
    found = diagnose_process(evidence(loop, still_s=0.0, used_s=used_s, progress=progress(30.0)))
    assert found.state == expected
    if expected == states.BUSY:
        assert found.what.startswith("runs in on_step (callbacks.py:31) without completing a step")
        assert "no step for 30 s" in found.what and "waiting for a CPU 98 %" in "\n".join(found.why)


@pytest.mark.parametrize(("changes", "quiet_s", "expected"), [
    ({}, 30.0, states.BUSY),
    ({}, 14.0, states.SLOW_STEP),  # three times the limit of five seconds, or what it went on from before
    ({"in_torch": True}, 30.0, states.SLOW_STEP),
    ({"stays_in": None}, 30.0, states.SLOW_STEP),
])
def test_work_in_one_function_and_none_of_torch_is_busy_without_a_step_once_it_lasts(
    changes: dict[str, object], quiet_s: float, expected: str
) -> None:
    one = replace(working(ROUND, MAIN), **{"stays_in": ROUND, "in_torch": False, **changes})  # type: ignore[arg-type]
    assert state_of(evidence(one, progress=progress(quiet_s))) == (expected, NOTICE)
    saving = progress(quiet_s, interval="evaluation", interval_s=quiet_s)
    assert state_of(evidence(one, progress=saving)) == (states.EVALUATION, NOTICE)


def test_a_python_loop_is_not_taken_for_a_call_into_c_that_keeps_the_gil() -> None:
    loop = replace(working(ROUND, MAIN), changed=False, held_gil=True)
    other = Thread(PID + 1, "tqdm", frames=(MAIN,), waits_for_gil=True)
    assert state_of(evidence(loop, threads=(loop, other)))[0] == states.SLOW_STEP
    shut_out = progress(sample_s=11.9)
    found = diagnose_process(evidence(loop, threads=(loop, other), progress=shut_out))
    assert found.state == states.HOLDS_GIL


def test_a_thread_that_sleeps_in_a_throttled_group_is_not_starved() -> None:
    assert diagnose_process(evidence(throttled_ratio=0.9)).state != states.STARVED


# Held by probe ------------------------------------------------------------------------

HELD = Held("4242-3", "pause", 0, 600.0, 1000, 77, "owner")


def test_a_training_that_probe_pauses_is_no_stall_however_long() -> None:
    hour = progress(3600.0, phase="paused", phase_s=3600.0)
    held = replace(HELD, since_ns=clock.wall_ns() - 3600 * 10**9)
    found = diagnose_process(evidence(progress=hour, held=held))
    assert state(found) == (states.PAUSED, NOTICE)
    assert "paused by probe (action 4242-3 by uid 1000, pid 77) 1 h 0 min ago, for at most 10 m" in found.what
    assert found.next[0] == f"probe {PID} resume"
    assert state_of(evidence(progress=hour)) == (states.PAUSED, NOTICE), "also when nobody knows why"
    assert state_of(evidence(progress=progress(0.5, phase="paused", phase_s=0.5)))[0] == states.PAUSED
    assert state_of(evidence(state="stopped", progress=hour))[0] == states.STOPPED, "worse comes first"


def test_an_action_that_takes_long_is_named_and_is_no_stall() -> None:
    acting = progress(700.0, phase="acting", phase_s=700.0)
    found = diagnose_process(evidence(progress=acting, held=replace(HELD, action="checkpoint", for_s=None)))
    assert state(found) == (states.ACTED_ON, NOTICE)
    assert "probe runs an action (checkpoint, 4242-3, by uid 1000, pid 77)" in found.what
    assert state_of(evidence(progress=progress(0.01, phase="acting", phase_s=0.01)))[0] == states.RUNNING


def test_ranks_that_wait_for_a_paused_one_are_no_alarm() -> None:
    waits = Finding(states.IN_COLLECTIVE, ALARM, "waits for other ranks in all_reduce")
    paused = diagnose_process(evidence(progress=progress(60.0, phase="paused", phase_s=60.0), held=HELD))
    found = explain_wait(waits, 999, [Peer(1, 77, 999, paused)])
    assert (found.state, found.severity) == (states.IN_COLLECTIVE, NOTICE)
    assert "rank 1 (pid 77) has not entered it: paused" in found.what


# Ended ------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "expected"), [
    ({"state": "zombie"}, (states.ZOMBIE, ALARM)),
    ({"state": None}, (states.DEAD, ALARM)),
    ({"state": None, "progress": None}, (states.DEAD, NOTICE)),
    ({"state": None, "how": "killed by SIGKILL"}, (states.DEAD, ALARM)),
    ({"state": None, "closed": True}, (states.FINISHED, OK)),
])
def test_what_ended_has_ended(changes: dict[str, object], expected: tuple[str, str]) -> None:
    assert state_of(evidence(**changes)) == expected


# Waiting for ------------------------------------------------------------------------


POLL = Frame("Popen.poll", LIBRARY + "multiprocessing/popen_fork.py", 27)
GET = Frame("_try_get_data", SITE + "torch/utils/data/dataloader.py", 1300)
FETCH = Frame("fetch", SITE + "torch/utils/data/_utils/fetch.py", 54)
LOOP = Frame("_worker_loop", SITE + "torch/utils/data/_utils/worker.py", 309)
ITEM = Frame("Images.__getitem__", "/home/u/data.py", 31, True)


def data_worker(pid: int, *frames: Frame, **changes: object) -> Worker:
    """A worker of a DataLoader that sleeps."""
    asleep = Worker(
        pid, "DataLoader worker", "python train.py", "sleeping", "pipe_read", 0.0, False, (*frames, LOOP)
    )
    return replace(asleep, **changes)  # type: ignore[arg-type]


def waits_for_batch(*workers: Worker, quiet_s: float = 12.0, inside: Frame = GET) -> Finding:
    """The verdict on a job whose batch does not come."""
    return diagnose_process(evidence(
        thread(inside, TRAIN, MAIN, call="poll", wchan="poll_schedule_timeout"), workers=workers,
        progress=progress(quiet_s, phase="data", pending_loader="Images#0", pending_s=quiet_s),
    ))


def test_a_thread_that_lacks_a_core_is_not_taken_for_asleep_or_idle() -> None:
    waits = thread(Frame("wait", LIBRARY + "threading.py", 327), TRAIN, MAIN, waits_for_gil=True)
    starved = Thread(
        PID + 1, "helper", False, (ITEM,), state="running", cpu_ratio=0.01, run_delay_ratio=0.85,
        switches_per_s=40.0, changed=False, held_gil=True,
    )
    found = diagnose_process(evidence(waits, threads=(waits, starved)))
    assert state(found) == (states.HOLDS_GIL, NOTICE) and "computing" in found.what
    found = diagnose_process(evidence(waits, threads=(waits, starved), progress=progress(2.0)))
    assert state(found) == (states.HOLDS_GIL, INFO), "before the stall limit it is one long call"
    works = replace(starved, held_gil=False, changed=True)
    waits = replace(waits, waits_for_gil=False)
    found = diagnose_process(evidence(waits, threads=(waits, works)))
    assert state(found) == (states.SLOW_STEP, NOTICE) and "helper" in found.what


def test_of_several_workers_the_one_inside_the_dataset_is_named() -> None:
    found = waits_for_batch(data_worker(51), data_worker(52, ITEM, FETCH), data_worker(53))
    assert state(found) == (states.WAITING_FOR_DATA, ALARM)
    assert "worker 52 is sleeping in Images.__getitem__ (data.py:31)" in found.what


@pytest.mark.parametrize(("changes", "said"), [
    ({"state": "zombie", "frames": ()}, "worker 52 is dead"),
    ({"state": "uninterruptible", "wchan": "rpc_wait_bit_killable"}, "worker 52 is uninterruptible"),
])
def test_a_worker_that_is_dead_or_stuck_is_named_before_others(changes: dict[str, object], said: str) -> None:
    stuck = data_worker(52, ITEM, FETCH, **changes)
    found = waits_for_batch(data_worker(51, ITEM, FETCH), stuck, quiet_s=16.0)
    assert state(found) == (states.WAITING_FOR_DATA, ALARM) and said in found.what


def test_a_worker_that_works_is_no_alarm_until_it_takes_very_long() -> None:
    busy = data_worker(52, ITEM, FETCH, state="running", cpu_ratio=0.9, changed=True)
    found = waits_for_batch(data_worker(51), busy)
    assert state(found) == (states.WAITING_FOR_DATA, NOTICE) and "worker 52 is running" in found.what


@pytest.mark.parametrize("changes", [
    {"state": "running", "cpu_ratio": 0.9}, {"frames": (), "role": None}, {"role": None},
])
def test_workers_that_only_start_are_waited_for(changes: dict[str, object]) -> None:
    importing = Frame("get_data", "<frozen importlib._bootstrap_external>", 1073)
    child = replace(data_worker(52), **{"frames": (importing,), "role": None, **changes})  # type: ignore[arg-type]
    found = waits_for_batch(child)
    assert state(found) == (states.WAITING_FOR_DATA, NOTICE) and "process 52 is starting" in found.what


def test_workers_that_end_with_the_epoch_are_not_dead() -> None:
    ends = Frame("_shutdown_workers", SITE + "torch/utils/data/dataloader.py", 1590)
    ended = data_worker(52, state="zombie", frames=())
    found = waits_for_batch(ended, data_worker(53), inside=ends)
    assert state(found) == (states.WAITING_FOR_DATA, NOTICE) and "workers are shutting down" in found.what


def test_a_wait_for_gradients_within_backward_is_a_collective_only_with_other_ranks() -> None:
    engine = Frame("_engine_run_backward", SITE + "torch/autograd/graph.py", 829)
    waits = thread(engine, TRAIN, MAIN)
    assert state_of(evidence(waits, world_size=2)) == (states.IN_COLLECTIVE, ALARM)
    assert diagnose_process(evidence(waits, world_size=1)).state == states.BLOCKED


def test_a_collective_is_named_by_its_operation_not_by_what_logs_it() -> None:
    frames = (
        Frame("wrapper", SITE + "torch/distributed/c10d_logger.py", 83),
        Frame("all_reduce", SITE + "torch/distributed/distributed_c10d.py", 2810), TRAIN, MAIN,
    )
    found = diagnose_process(evidence(thread(*frames), world_size=8))
    assert state(found) == (states.IN_COLLECTIVE, ALARM)
    assert "in all_reduce, called by train_step (train.py:88)" in found.what


@pytest.mark.parametrize(("theirs", "severity", "said"), [
    (Finding(states.CHECKPOINT, NOTICE, "saves"), NOTICE, "rank 1 (pid 52) has not entered it: checkpoint"),
    (Finding(states.BLOCKED, ALARM, "in read"), ALARM, "rank 1 (pid 52) has not entered it: blocked in C"),
    (Finding(states.IN_COLLECTIVE, ALARM, "waits, too"), ALARM, "all_reduce"),
])
def test_a_wait_for_a_rank_that_works_is_no_alarm_and_one_that_hangs_is_named(
    theirs: Finding, severity: str, said: str
) -> None:
    reduce = Frame("all_reduce", SITE + "torch/distributed/distributed_c10d.py", 2810)
    alone = diagnose_process(evidence(thread(reduce, TRAIN, MAIN), world_size=2))
    found = explain_wait(alone, 999, [Peer(1, 52, 998, theirs)])
    assert state(found) == (states.IN_COLLECTIVE, severity) and said in found.what
    usual = diagnose_process(evidence())
    assert usual == explain_wait(usual, 999, [Peer(1, 52, 998, theirs)])


def test_threads_that_wait_for_work_are_no_deadlock() -> None:
    idle = replace(
        thread(Frame("Condition.wait", LIBRARY + "threading.py", 320),
               Frame("_worker", LIBRARY + "concurrent/futures/thread.py", 81)),
        tid=PID + 1, training=False, name="ThreadPoolExecutor-0_0",
    )
    result = thread(
        Frame("Condition.wait", LIBRARY + "threading.py", 320),
        Frame("Future.result", LIBRARY + "concurrent/futures/_base.py", 451), TRAIN,
    )
    found = diagnose_process(evidence(result, threads=(result, idle)))
    assert state(found) == (states.LOCK_WAIT, ALARM)


def test_who_waits_for_a_thread_that_works_is_not_stuck() -> None:
    result = thread(
        Frame("Condition.wait", LIBRARY + "threading.py", 320),
        Frame("Future.result", LIBRARY + "concurrent/futures/_base.py", 451), TRAIN,
    )
    works = replace(working(Frame("score", "/home/u/evaluate.py", 12, True)), tid=PID + 1, training=False,
                    name="evaluator")
    found = diagnose_process(evidence(result, threads=(result, works)))
    assert state(found) == (states.SLOW_STEP, NOTICE) and "evaluator" in found.what


@pytest.mark.parametrize(("frames", "changes", "said"), [
    ((MAIN,), {"call": "read", "waits_on": "standard input"}, "a line on standard input"),
    ((Frame("EpollSelector.select", LIBRARY + "selectors.py", 468),
      Frame("BaseEventLoop._run_once", LIBRARY + "asyncio/base_events.py", 1884),
      Frame("start", SITE + "ipykernel/kernelapp.py", 739)), {"call": "epoll_wait"}, "events of a loop"),
    ((), {"call": "pselect6"}, "commands"),
])
def test_a_notebook_or_a_prompt_after_training_is_idle(
    frames: tuple[Frame, ...], changes: dict[str, object], said: str
) -> None:
    found = diagnose_process(evidence(
        replace(thread(**changes), frames=frames), progress=progress(quiet_s=7200.0)
    ))
    assert state(found) == (states.IDLE, NOTICE) and said in found.what


def test_a_launcher_that_waits_for_its_ranks_is_idle() -> None:
    none = never(3600.0)
    waits = thread(Frame("Popen.poll", LIBRARY + "multiprocessing/popen_fork.py", 27), MAIN, call="wait4")
    ranks = tuple(Worker(PID + rank, command="python train.py", state="sleeping") for rank in (1, 2))
    found = diagnose_process(evidence(waits, progress=none, workers=ranks))
    assert state(found) == (states.IDLE, NOTICE) and "2 child processes" in found.what


# Patience -----------------------------------------------------------------------------


@pytest.mark.parametrize(("quiet_s", "changes", "expected"), [
    (0.1, {}, OK),
    (4.9, {}, NOTICE),
    (5.1, {}, ALARM),
    (12.0, {"usual_step_s": 3.0}, NOTICE),
    (15.1, {"usual_step_s": 3.0}, ALARM),
    (44.0, {"longest_pause_s": 30.0}, NOTICE),
    (46.0, {"longest_pause_s": 30.0}, ALARM),
    (3000.0, {"longest_pause_s": 9000.0}, ALARM),
])
def test_a_wait_is_an_alarm_after_five_steps_or_what_the_run_went_on_from_before(
    quiet_s: float, changes: dict[str, object], expected: str
) -> None:
    found = diagnose_process(evidence(progress=progress(quiet_s, **changes)))
    assert found.severity == expected, found


def test_a_thread_that_wakes_up_now_and_then_is_given_longer() -> None:
    polls = thread(call="clock_nanosleep", switches_per_s=10.0)
    assert diagnose_process(evidence(polls, still_s=0.0)).severity == NOTICE
    assert diagnose_process(evidence(polls, still_s=0.0, progress=progress(15.5))).severity == ALARM
    # Asleep during the look, and awake before it while the watch counted its switches.
    assert diagnose_process(evidence(still_s=1.6, watched_s=11.0)).severity == NOTICE
    assert diagnose_process(evidence(still_s=10.8, watched_s=11.0)).severity == ALARM


@pytest.mark.parametrize(("frames", "changed", "long_s"), [
    ((TRAIN, MAIN), True, THRESHOLDS.long_moving_s),
    ((TRAIN, MAIN), False, THRESHOLDS.long_s),
    ((Frame("_save", SITE + "torch/serialization.py", 900), TRAIN), True, THRESHOLDS.long_s),
])
def test_what_works_without_a_step_is_an_alarm_only_after_very_long(
    frames: tuple[Frame, ...], changed: bool, long_s: float
) -> None:
    soon = evidence(replace(working(*frames), changed=changed), still_s=0.0, progress=progress(long_s - 10))
    assert diagnose_process(soon).severity == NOTICE
    assert diagnose_process(replace(soon, progress=progress(long_s + 10))).severity == ALARM


@pytest.mark.parametrize(("quiet_s", "longest_pause_s", "severity"), [
    (THRESHOLDS.quiet_s + 1, 0.0, INFO), (20.0, 18.0, INFO), (20.0, 2.0, NOTICE),
])
def test_a_step_that_works_no_longer_than_a_pause_may_last_is_only_info(
    quiet_s: float, longest_pause_s: float, severity: str
) -> None:
    """Such as an evaluation that nothing marks as one."""
    run = replace(progress(quiet_s), longest_pause_s=longest_pause_s)
    found = diagnose_process(evidence(replace(working(), changed=True), still_s=0.0, progress=run))
    assert (found.state, found.severity) == (states.SLOW_STEP, severity), found


def never(recorded_s: float) -> Progress:
    """Recorded for so long, and not one step."""
    return progress(steps=0, step=None, last_step_s=None, usual_step_s=None, longest_pause_s=None,
                    quiet_s=None, recorded_s=recorded_s)


def test_what_never_trained_may_work_and_wait_as_long_as_it_likes() -> None:
    """Preparing data, serving a model: PROBE=1 was only in the environment."""
    long = never(100_000.0)
    assert diagnose_process(evidence(working(), still_s=0.0, progress=long)).severity == OK
    assert diagnose_process(evidence(thread(call="recvfrom"), progress=long)).severity == NOTICE
    queue = thread(Frame("Queue.get", LIBRARY + "queue.py", 171), MAIN)
    assert diagnose_process(evidence(queue, progress=long)).severity == NOTICE
    forms = thread(Frame("init_process_group", SITE + "torch/distributed/distributed_c10d.py", 1710), MAIN)
    assert state_of(evidence(forms, progress=long, world_size=8)) == (states.IN_COLLECTIVE, ALARM)


def test_who_waits_for_a_thread_that_writes_a_checkpoint_is_not_stuck() -> None:
    joins = thread(Frame("Thread._wait_for_tstate_lock", LIBRARY + "threading.py", 1116), TRAIN)
    saves = replace(
        thread(Frame("_save", SITE + "torch/serialization.py", 1312), TRAIN, call="write"),
        tid=PID + 1, name="saver", training=False,
    )
    found = diagnose_process(evidence(joins, threads=(joins, saves)))
    assert state(found) == (states.CHECKPOINT, NOTICE) and "waits for saver" in found.what


def test_a_checkpoint_may_wait_for_its_disk() -> None:
    fsync = thread(Frame("save", "/home/u/train.py", 60, True, "os.fsync(file)"), call="fsync",
                   state="uninterruptible", wchan="jbd2_log_wait_commit")
    assert state_of(evidence(fsync, progress=progress(90.0))) == (states.CHECKPOINT, NOTICE)


@pytest.mark.parametrize(("quiet_s", "expected"), [
    (200.0, (states.WARM_UP, INFO)), (400.0, (states.BLOCKED, ALARM)),
])
def test_before_there_is_a_usual_step_minutes_may_pass(quiet_s: float, expected: tuple[str, str]) -> None:
    first = progress(quiet_s, steps=2, step=1, usual_step_s=None, longest_pause_s=None)
    assert state_of(evidence(progress=first)) == expected


def test_batches_without_a_step_are_an_evaluation_however_long_it_takes() -> None:
    found = diagnose_process(evidence(
        working(), progress=progress(0.2, last_step_s=4000.0, batches=256, last_batch_s=0.2)
    ))
    assert state(found) == (states.EVALUATION, OK)


def test_without_a_recording_a_wait_is_no_alarm_and_a_deadlock_is() -> None:
    assert diagnose_process(evidence(progress=None)).severity == NOTICE
    first = thread(Frame("a", "/home/u/x.py", 1, True, "with second:"))
    other = replace(first, tid=PID + 1, name="other", training=False,
                    frames=(Frame("b", "/home/u/x.py", 9, True, "first.acquire()"),))
    assert state_of(evidence(first, threads=(first, other), progress=None)) == (states.DEADLOCK, ALARM)


def test_a_stall_is_judged_by_the_thresholds_in_force() -> None:
    stalled = evidence(progress=progress(12.0))
    assert diagnose_process(stalled).severity == ALARM
    patient = replace(THRESHOLDS, stall_steps=300.0)
    assert diagnose_process(stalled, patient).severity == NOTICE, "18 s with steps of 60 ms"
    assert diagnose_process(stalled, replace(THRESHOLDS, quiet_s=20.0)).state == states.RUNNING


def test_a_verdict_is_one_row_and_one_answer() -> None:
    found = diagnose_process(evidence())
    row = found.row(7, 999, "c0ffee")
    assert row["why"].split("\n") == found.why and row["capture_id"] == "c0ffee" and row["t_ns"] == 7
    assert set(found.as_dict()) == {"state", "severity", "what", "why", "next"}
