"""The watch beside real jobs: what is stopped, starved, busy or only slow; what goes on; what is no stall."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agent.asking import query, tell
from agent.nursery import Forked, Nursery, forked
from diagnose.hung import STALL_S, alarms, look, noted, recorded_of, until
from harness import SERVER, Job, Place, run_probe, wait_for_end
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process.evidence import Evidence, gather
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.stall_parameters import StallThresholds
from probe.diagnose.states import ALARM, INFO, NOTICE
from probe.server.answers.diagnosing import diagnose_one
from probe.server.recordings.registry import Registry
from probe.server.watch.stall_watch import Watch

CLEAN = {
    "evaluation with a loader": (states.EVALUATION,),
    "evaluation": (states.SLOW_STEP,),
    "generation": (states.SLOW_STEP,),
    "checkpoint": (states.CHECKPOINT,),
    "child": (states.SLOW_STEP,),
    "svd": (states.SLOW_STEP,),
    "lengths": (states.SLOW_STEP,),
}
RARELY = ("evaluation", "generation", "lengths", "child", "checkpoint", "svd")
"""Slow steps in plain Python, in a child, in a write or in C: in the campaign. The last is, every day, the
first pause of `test_a_pause_that_the_run_went_on_from_before_makes_it_more_patient`, whose next is in a
child."""


@pytest.fixture
def fork(nursery: Nursery, place: Place) -> Iterator[Callable[..., Forked]]:
    """`fork(program, *options, **environ)`: a job in a fork; killed after the test."""
    with contextlib.ExitStack() as stack:

        def one(*command: str, **environ: str) -> Forked:
            [job] = stack.enter_context(
                forked(nursery, place, command, **{"PROBE_STALL_S": str(STALL_S), **SERVER, **environ})
            )
            return job

        yield one


def hang(job: Forked) -> None:
    """Let a program of stall_hangs go into its hang."""
    tell(job)
    job.wait_for("HANGING")


@pytest.mark.alone
def test_a_stopped_job_is_stopped_and_when_continued_it_runs_again(
    place: Place, fork: Callable[..., Forked]
) -> None:
    job = fork("stall_hangs", "--way", "none")
    job.wait_for("READY")
    recorded = recorded_of(place, job.pid)
    job.signal(signal.SIGSTOP)
    evidence, verdict = look(place, job)
    assert (verdict.state, verdict.severity) == (states.STOPPED, ALARM)
    assert evidence.state == "stopped" and verdict.next == [f"kill -CONT {job.pid}"]
    assert evidence.training is not None and evidence.training.frames, "stacks are read of a stopped job, too"
    until(lambda: [row["state"] for row in noted(recorded)] == [states.STOPPED], "the server's verdict")
    job.signal(signal.SIGCONT)
    until(lambda: noted(recorded)[1:], "running again")
    assert [row["state"] for row in noted(recorded)] == [states.STOPPED, states.RUNNING_AGAIN]
    _, verdict = look(place, job, late=False)
    assert verdict.state == states.RUNNING, "a pause from outside makes the run no more patient"


@contextlib.contextmanager
def beside_burners(pid: int) -> Iterator[None]:
    """The process on one core, least in rank there, beside three that want all of it."""
    core = sorted(os.sched_getaffinity(0))[-1]
    burner = [sys.executable, "-S", "-c", "while True: pass"]
    burners = [subprocess.Popen(burner, stdin=subprocess.DEVNULL) for _ in range(3)]
    try:
        for one in burners:
            os.sched_setaffinity(one.pid, {core})
        for task in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(task), {core})
            os.setpriority(os.PRIO_PROCESS, int(task), 19)
        with contextlib.suppress(FileNotFoundError):  # ranks count within a session, where there is this
            Path(f"/proc/{pid}/autogroup").write_text("19")
        yield
    finally:
        for one in burners:
            one.kill()
            one.wait()


@contextlib.contextmanager
def with_little_quota(pid: int) -> Iterator[None]:
    """The process in a control group that may use two hundredths of a core."""
    group = Path("/sys/fs/cgroup/cpu") / f"probe-test-{pid}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("2000")
    except OSError as error:
        pytest.skip(f"no control group (version 1) with a quota can be made: {error}")
    try:
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@pytest.mark.parametrize(("hold_back", "said"), [
    pytest.param(beside_burners, "waiting for a CPU", marks=pytest.mark.alone),
    (with_little_quota, "used up its CPU quota in"),
])
def test_a_starved_job_is_starved_and_not_hung(
    place: Place, fork: Callable[..., Forked], said: str,
    hold_back: Callable[[int], contextlib.AbstractContextManager[None]],
) -> None:
    job = fork("stall_hangs", "--way", "none")
    job.wait_for("READY")
    with hold_back(job.pid):

        def starved() -> str | None:
            evidence, verdict = look(place, job, late=False)
            why = "\n".join(verdict.why)
            assert verdict.state in (states.STARVED, states.RUNNING, states.SLOW_STEP), verdict
            if verdict.state != states.STARVED or said not in why:
                return None
            thread = evidence.training
            assert thread is not None and thread.cpu_ratio is not None and thread.cpu_ratio < 0.5
            return verdict.what

        until(starved, "a verdict on a starved job")


@pytest.mark.alone
@pytest.mark.parametrize("way", ["regex", pytest.param("python", marks=pytest.mark.campaign)])
def test_what_runs_for_ever_is_told_from_what_hangs(
    place: Place, fork: Callable[..., Forked], way: str
) -> None:
    job = fork("stall_hangs", "--way", way)
    hang(job)
    expected = (states.HOLDS_GIL,) if way == "regex" else (states.SLOW_STEP, states.BUSY)

    def judged() -> tuple[Evidence, Finding] | None:
        found = look(place, job)
        return found if found[1].state in expected else None  # on a busy machine it may lack the CPU first

    evidence, verdict = until(judged, f"one of {expected}") or look(place, job)
    thread = evidence.training
    assert thread is not None and thread.cpu_ratio is not None and thread.run_delay_ratio is not None
    assert thread.cpu_ratio + thread.run_delay_ratio > 0.25
    assert evidence.capture is not None and evidence.capture["threads"][0]["moving"] is True
    if way == "regex":
        assert "computing" in verdict.what
        recorded = recorded_of(place, job.pid)
        until(lambda: any(row["state"] == states.HOLDS_GIL for row in noted(recorded)), "the server's alarm")
    else:
        assert verdict.severity == NOTICE
        assert "hang_in_python (stall_hangs.py:" in verdict.what


@pytest.mark.alone
def test_an_endless_loop_is_busy_without_a_step_with_hardly_any_cpu_too(
    place: Place, fork: Callable[..., Forked]
) -> None:
    job = fork("stall_hangs", "--way", "python")
    hang(job)

    def busy() -> dict[str, Any] | None:
        done = run_probe(place, str(job.pid), "diagnose", "--format", "json")
        found: dict[str, Any] = json.loads(done.stdout)
        starved = (found["evidence"]["threads"][0]["run_delay_ratio"] or 0.0) > 0.5
        return found if starved and found["state"] == states.BUSY else None

    until(lambda: "finishes no steps" in run_probe(
        place, str(job.pid), "eval", "--at-step", "1", PROBE_ACT_WAIT_S="0.5"
    ).stderr, "a refusal of what needs the end of a step")
    with beside_burners(job.pid):
        found = until(busy, "busy without a step, starved")
    assert found is not None and found["severity"] == NOTICE, "it may be long work"
    assert "runs in hang_in_python (stall_hangs.py:" in found["what"] and "no step for" in found["what"]


@pytest.mark.alone
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.campaign) if kind in RARELY else kind for kind in CLEAN]
)
def test_a_pause_that_is_part_of_training_is_no_alarm(
    place: Place, fork: Callable[..., Forked], kind: str
) -> None:
    """The pause is three times PROBE_STALL_S and hundreds of usual steps long: a rule that goes by time
    alone would alarm."""
    pause_s = 3 * STALL_S
    job = fork("stall_pauses", "--kind", kind, "--steps", "35", "--length", str(pause_s), "--hold")
    job.wait_for("PAUSE")
    in_the_pause(place, job, kind)
    job.wait_for("ON")
    job.wait_for("RESULT")
    longest = query(place, job.pid, "SELECT max(wall_s) / median(wall_s) FROM python.steps")[0][0]
    assert longest > 50, "the pause was one"
    nothing_noted(place, job)


def in_the_pause(place: Place, job: Job, kind: str) -> None:
    """The verdict is that of its kind, and no alarm."""
    _, verdict = look(place, job, late=kind != "evaluation with a loader")
    if kind == "evaluation with a loader":
        verdict = until(
            lambda: (found := look(place, job, late=False)[1]).state == states.EVALUATION and found,
            "an evaluation",
        ) or verdict
    assert verdict.state in CLEAN[kind] and verdict.severity != ALARM, verdict


def nothing_noted(place: Place, job: Job) -> None:
    """Nothing came of the pauses until now."""
    assert alarms(place, job.pid) == []
    verdicts = query(place, job.pid, "SELECT state FROM probe.verdicts")
    assert verdicts == [], "a notice is not written"


@pytest.mark.alone
def test_slow_first_steps_are_no_alarm(place: Place, fork: Callable[..., Forked]) -> None:
    job = fork("stall_pauses", "--kind", "warm-up", "--steps", "6", "--length", str(3 * STALL_S), "--hold")
    job.wait_for("ON")
    evidence, verdict = look(place, job, late=False)
    assert evidence.progress is not None and evidence.progress.usual_step_s is None
    assert (verdict.state, verdict.severity) == (states.WARM_UP, INFO)
    job.wait_for("RESULT")
    assert alarms(place, job.pid) == []


def test_a_job_that_waits_for_input_after_training_is_idle(place: Place, fork: Callable[..., Forked]) -> None:
    job = fork("stall_pauses", "--kind", "evaluation", "--steps", "10", "--hold")
    job.wait_for("RESULT")
    evidence, verdict = look(place, job)
    assert (verdict.state, verdict.severity) == (states.IDLE, NOTICE)
    assert evidence.training is not None and evidence.training.waits_on == "standard input"
    assert alarms(place, job.pid) == []


@pytest.mark.alone
def test_a_pause_that_the_run_went_on_from_before_makes_it_more_patient(
    place: Place, fork: Callable[..., Forked]
) -> None:
    kinds = ("--kind", "svd", "--then", "child")
    job = fork("stall_pauses", *kinds, "--forever", "--length", str(3 * STALL_S))
    job.wait_for("PAUSE")
    in_the_pause(place, job, "svd")
    job.wait_for("ON")
    nothing_noted(place, job)
    job.wait_for("PAUSE")
    evidence, verdict = look(place, job)
    assert evidence.progress is not None and evidence.progress.longest_pause_s is not None
    assert evidence.progress.longest_pause_s >= 3 * STALL_S
    assert verdict.severity == INFO and "longest step so far" in "\n".join(verdict.why)


# Waiting for the end of a step ----------------------------------------------------


def test_what_needs_the_end_of_a_step_is_refused_at_once_by_a_stalled_job(
    place: Place, fork: Callable[..., Forked]
) -> None:
    job = fork("stall_hangs", "--way", "read")
    hang(job)
    recorded, pid = recorded_of(place, job.pid), str(job.pid)
    until(lambda: any(row["severity"] == ALARM for row in noted(recorded)), "the server's alarm")
    for command in (["lr", "--scale", "0.5"], ["eval", "model.noted = 1"], ["pause"]):
        done = run_probe(place, pid, *command, PROBE_ACT_WAIT_S="20")
        assert done.returncode == 5, (command, done)
        assert "finishes no steps" in done.stderr and "hang_in_read (stall_hangs.py:" in done.stderr
        assert "no step for" in done.stderr and "--wait S" in done.stderr
    done = run_probe(place, pid, "eval", "len(model)")
    assert (done.returncode, done.stdout) == (0, "3\n"), "what only reads is answered"
    done = run_probe(place, pid, "eval", "--now", "model.noted = 1; model.noted")
    assert (done.returncode, done.stdout) == (0, "1\n"), "what does not wait is done"
    done = run_probe(place, pid, "lr", "--scale", "0.5", "--wait", "0.4")
    assert done.returncode == 5 and "no step ended within 0.4 s" in done.stderr, "who insists may wait"
    states_of = query(place, job.pid, "SELECT DISTINCT state FROM probe.actions WHERE action = 'lr'")
    assert sorted(states_of) == [["asked"], ["cancelled"]]


@pytest.mark.alone
def test_what_needs_the_end_of_a_step_waits_for_one_that_is_only_long(
    place: Place, fork: Callable[..., Forked]
) -> None:
    job = fork("stall_pauses", "--kind", "checkpoint", "--forever", "--length", str(4 * STALL_S))
    job.wait_for("PAUSE")
    look(place, job)
    done = run_probe(place, str(job.pid), "eval", "model.noted = 1; model.noted")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


# Without stacks, without rings, without a process ---------------------------------


def test_without_py_spy_there_is_a_verdict_that_says_so(
    place: Place, fork: Callable[..., Forked], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = fork("stall_hangs", "--way", "read")
    hang(job)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setattr("sysconfig.get_path", lambda _name: str(tmp_path / "bin"))
    evidence, verdict = look(place, job)
    assert (verdict.state, verdict.severity) == (states.UNKNOWN, ALARM)
    assert "sleeping in read" in verdict.what
    assert any("py-spy" in line for line in verdict.why) and evidence.samples == 0


def test_an_unrecorded_process_gets_a_verdict_on_what_can_be_seen(
    place: Place, nursery: Nursery
) -> None:
    with forked(nursery, place, ("stall_hangs", "--way", "gil"), watched=False) as [job]:
        hang(job)
        evidence = gather(job.pid)
        verdict = diagnose_process(evidence)
        assert evidence.progress is None
        assert (verdict.state, verdict.severity) == (states.HOLDS_GIL, ALARM)
        assert "the process is not recorded, so its steps are unknown" in verdict.why


def test_a_process_that_is_killed_while_it_is_looked_at_is_dead(
    place: Place, fork: Callable[..., Forked]
) -> None:
    job = fork("stall_hangs", "--way", "read")
    hang(job)
    meta = recorded_of(place, job.pid).meta
    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(gather, job.pid, meta)
        until(lambda: looking.running(), "the look")
        job.kill()
        evidence = looking.result()
    assert evidence.state in (None, "zombie")
    assert diagnose_process(evidence).state in (states.DEAD, states.ZOMBIE)


def test_a_thread_stuck_in_the_kernel_is_named_with_where(place: Place, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    command = ("outside_states", "is_stuck_in_the_kernel", str(pipe))
    job = Job(*command, environ=place.environ(), folder=place.directory)
    try:
        job.wait_for("READY")
        verdict = until(
            lambda: (found := diagnose_process(gather(job.pid))).severity == ALARM and found, "an alarm"
        )  # a first look may come before it is still
        assert verdict and verdict.state == states.UNINTERRUPTIBLE
        assert "uninterruptibly (D state), in " in verdict.what
        assert any("os.posix_spawn" in line for line in verdict.why), "stacks are read in state D, too"
    finally:
        os.close(os.open(pipe, os.O_WRONLY))
        job.wait_for("FREE")
        job.kill()


def test_stall_thresholds_of_ones_own_decide_when_a_hang_is_a_stall(
    place: Place, fork: Callable[..., Forked]
) -> None:
    job = fork("stall_hangs", "--way", "read")
    job.wait_for("READY")
    hang(job)
    recorded, registry = recorded_of(place, job.pid), Registry(place.directory)

    def severity() -> str:
        return diagnose_one(registry, Watch(registry), recorded).state.severity

    until(lambda: severity() == ALARM, "an alarm")
    registry.stall_thresholds = lambda: StallThresholds(stall_steps=1e9)
    assert severity() == NOTICE
    watch = Watch(registry)
    watch.round()
    assert watch.current(recorded.folder) is None, "not late, and so not looked at longer"


def test_a_process_that_is_gone_and_rings_that_vanish_cost_the_watch_nothing(
    place: Place, fork: Callable[..., Forked]
) -> None:
    """A watch beside the server's: it sees rings cut short, then removed, then their process dead."""
    stays = fork("stall_hangs", "--way", "read")
    goes = fork("stall_hangs", "--way", "none")
    goes.wait_for("READY")
    hang(stays)
    watch = Watch(Registry(place.directory))
    rings = Path(recorded_of(place, goes.pid).meta.rings)
    watch.round()
    (rings / "python.batches.ring").write_bytes(b"short")
    watch.round()
    (rings / "python.steps.ring").unlink()
    watch.round()
    shutil.rmtree(rings)  # the sealer sets aside what is damaged and would keep it
    watch.round()
    goes.kill()
    kept = recorded_of(place, stays.pid)

    def seen() -> bool:
        watch.round()
        return watch.current(kept.folder) is not None

    until(seen, "a verdict on the other job")
    found = watch.current(kept.folder)
    assert found is not None and found.state == states.BLOCKED
    stays.kill()
    wait_for_end(stays.pid, 20.0)
    watch.round()
    assert watch.current(kept.folder) is None
