"""Real hangs: each is told from the others, from outside, and the server notices all of them by itself.

All jobs hang at the same time, beside one server; they are asked about, killed, and asked about again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from agent.asking import query, tell
from agent.nursery import Forked, Nursery, forked
from diagnose.hung import STALL_S, Seen, look, look_soon, noted, recorded_of, until
from harness import SERVER, Place, run_probe
from probe.diagnose import states
from probe.diagnose.finding import Finding
from probe.diagnose.process.evidence import Evidence
from probe.diagnose.process.process_rules import diagnose_process
from probe.diagnose.states import ALARM, NOTICE
from probe.server.recordings.registry import Registry

WAYS: dict[str, tuple[str, ...]] = {
    "read": ("stall_hangs", "--way", "read"),
    "sleep": ("stall_hangs", "--way", "sleep"),
    "gil": ("stall_hangs", "--way", "gil"),
    "gil elsewhere": ("stall_hangs", "--way", "gil elsewhere"),
    "deadlock": ("stall_hangs", "--way", "deadlock"),
    "event": ("stall_hangs", "--way", "event"),
    "in a thread": ("stall_hangs", "--way", "read", "--thread"),
    "storage": ("stall_workers", "--way", "fifo"),
    "worker's lock": ("stall_workers", "--way", "lock"),
    "stopped worker": ("stall_workers", "--way", "stopped"),
    "storage without workers": ("stall_workers", "--way", "fifo", "--workers", "0"),
}
STATE = {
    "read": states.BLOCKED, "sleep": states.BLOCKED, "gil": states.HOLDS_GIL,
    "gil elsewhere": states.HOLDS_GIL,
    "deadlock": states.DEADLOCK, "event": states.LOCK_WAIT,
    "in a thread": states.BLOCKED, "storage": states.WAITING_FOR_DATA,
    "worker's lock": states.WAITING_FOR_DATA, "stopped worker": states.WAITING_FOR_DATA,
    "storage without workers": states.WAITING_FOR_DATA,
}

SETTLED = ("read", "sleep", "event", "gil")


class Hung:
    """All of them, and the folder and server they share."""

    def __init__(self, place: Place, seen: dict[str, Seen]) -> None:
        self.place = place
        self.seen = seen


@pytest.fixture(scope="module")
def hung(nursery: Nursery) -> Iterator[Hung]:
    place = Place()
    try:
        with forked(nursery, place, *WAYS.values(), PROBE_STALL_S=str(STALL_S), **SERVER) as jobs:
            by_way = dict(zip(WAYS, jobs, strict=True))
            registry = Registry(place.directory)
            for way, job in by_way.items():
                job.wait_for("READY")
                if way == "in a thread":
                    recorded = recorded_of(place, job.pid)
                    until(lambda one=recorded: registry.training_thread(one) not in (None, one.meta.pid),
                          "a note of which thread trains")
                if WAYS[way][0] == "stall_hangs":
                    tell(job)
            for job in jobs:
                job.wait_for("HANGING")

            def look_at_all(job: Forked) -> tuple[Evidence, Finding] | None:
                found = look(place, job)  # on a slow machine its time may end before all stacks are read
                evidence = found[0]
                return found if evidence.samples and all(one.frames for one in evidence.workers) else None

            def examine(way: str) -> Seen:
                recorded = recorded_of(place, by_way[way].pid)
                # Not just the first: which thread trains is noted within a second, not before.
                until(lambda: [row for row in noted(recorded) if row["state"] == STATE[way]],
                      f"a verdict of the server's own on {way}")
                late = until(lambda: look_at_all(by_way[way]), f"the stacks of {way} and its workers")
                soon = look_soon(place, by_way[way])
                if way in SETTLED:  # where a stack could be read twice in time
                    soon = until(lambda: one if (one := look_soon(place, by_way[way]))[1] else None, way)
                assert late is not None
                return Seen(by_way[way], recorded, *late, *soon)

            with ThreadPoolExecutor(4) as pool:
                seen = dict(zip(WAYS, pool.map(examine, WAYS), strict=True))
            for job in jobs:
                job.kill()
            yield Hung(place, seen)
        left = place.close()
        assert not any(left.values()), left
    finally:
        place.remove()


@pytest.mark.parametrize("way", WAYS)
def test_a_hang_is_named_and_is_an_alarm(hung: Hung, way: str) -> None:
    verdict = hung.seen[way].verdict
    assert (verdict.state, verdict.severity) == (STATE[way], ALARM), verdict
    assert "no step for" in verdict.what or "has waited" in verdict.what
    assert verdict.next and all(str(hung.seen[way].job.pid) in line for line in verdict.next[:1])


@pytest.mark.parametrize("way", WAYS)
def test_the_server_notices_by_itself_and_keeps_what_it_saw_when_the_job_is_killed(
    hung: Hung, way: str
) -> None:
    seen = hung.seen[way]
    rows = query(
        hung.place, seen.job.pid,
        "SELECT v.state, v.step, (v.t_ns - s.t_ns) / 1e9, k.func, k.moving, k.state, k.owns_gil "
        "FROM probe.verdicts v, (SELECT max(t_ns) AS t_ns FROM python.steps) s, python.stacks k "
        "WHERE v.severity = 'alarm' AND v.state NOT IN ('dead', 'failed') AND k.capture_id = v.capture_id "
        "AND k.reason = 'stall' AND k.training AND k.depth = 0 AND k.process_id = k.pid ORDER BY v.t_ns",
    )
    assert rows, "no alarm with stacks"
    state, step, waited_s, func, moving, kernel_state, owns_gil = rows[-1]
    thread = seen.evidence.training
    assert thread is not None
    assert state == STATE[way] and func == thread.frames[0].func
    assert step == seen.evidence.progress.step if seen.evidence.progress else False
    assert waited_s >= STALL_S
    assert moving is False
    # Who waits for the GIL wakes every few milliseconds to ask for it.
    assert kernel_state == "sleeping" or way == "gil elsewhere"
    assert owns_gil is (way == "gil")


def test_who_is_known_to_sleep_is_not_watched_for_longer_and_the_verdict_is_the_same(hung: Hung) -> None:
    for way, seen in hung.seen.items():
        sooner = diagnose_process(seen.sooner)
        assert (sooner.state, sooner.severity) == (STATE[way], ALARM), way
        if way in SETTLED:
            assert seen.settled and seen.sooner.samples == 2
        elif way in ("gil elsewhere", "deadlock", "storage", "worker's lock", "stopped worker"):
            assert not seen.settled, f"{way}: others in it may yet move"


def test_blocked_in_c_says_the_call_the_descriptor_and_the_line(hung: Hung) -> None:
    read = hung.seen["read"]
    assert read.evidence.training is not None
    assert (read.evidence.training.call, read.evidence.training.state) == ("read", "sleeping")
    assert "pipe:[" in read.verdict.what and "hang_in_read (stall_hangs.py:" in read.verdict.what
    assert "`os.read(reading, 1)`" in read.why and "0 context switches/s" in read.why
    assert not any(thread.held_gil for thread in read.evidence.threads)
    assert "clock_nanosleep" in hung.seen["sleep"].verdict.what


def test_who_holds_the_gil_and_who_waits_for_it_is_said(hung: Hung) -> None:
    seen = hung.seen["gil"]
    holder = next(thread for thread in seen.evidence.threads if thread.held_gil)
    assert holder.training and holder.still and holder.frames[0].func == "hang_with_gil"
    assert "held by MainThread" in seen.why and "waiting for the GIL: probe-agent" in seen.why
    assert any("--native" in line for line in seen.verdict.next)


def test_a_gil_held_by_another_thread_is_laid_at_its_door(hung: Hung) -> None:
    seen = hung.seen["gil elsewhere"]
    holder = next(thread for thread in seen.evidence.threads if thread.held_gil)
    assert holder.name == "user-thread" and not holder.training
    assert seen.evidence.training is not None and seen.evidence.training.waits_for_gil
    assert seen.verdict.what.startswith(f"user-thread ({holder.tid}) holds the GIL")


def test_a_deadlock_names_both_threads_and_both_lines(hung: Hung) -> None:
    seen = hung.seen["deadlock"]
    assert "MainThread in hang_in_deadlock" in seen.verdict.what
    assert "other-order in backwards" in seen.verdict.what
    assert "`with second:`" in seen.why and "`with first:`" in seen.why


@pytest.mark.parametrize("way", ["storage", "worker's lock", "stopped worker"])
def test_the_worker_that_keeps_a_batch_back_is_named_with_state_and_place(hung: Hung, way: str) -> None:
    seen = hung.seen[way]
    [worker] = [worker for worker in seen.evidence.workers if str(worker.pid) in seen.verdict.what]
    assert worker.role == "DataLoader worker"
    assert worker.state == ("stopped" if way == "stopped worker" else "sleeping")
    assert "Samples.hang (stall_workers.py:" in seen.verdict.what
    assert seen.evidence.progress is not None and seen.evidence.progress.pending_loader == "Samples#0"


def test_without_workers_the_dataset_is_named(hung: Hung) -> None:
    seen = hung.seen["storage without workers"]
    assert "its dataset is in Samples.hang" in seen.verdict.what and not seen.evidence.workers


def test_training_in_another_thread_is_found_there(hung: Hung) -> None:
    seen = hung.seen["in a thread"]
    thread = seen.evidence.training
    assert thread is not None and thread.name == "trainer" and thread.tid != seen.job.pid
    assert "hang_in_read" in seen.verdict.what


@pytest.mark.parametrize(("way", "op"), [
    pytest.param("all_reduce", "all_reduce", marks=pytest.mark.campaign), ("ddp", "backward"),
])
def test_a_rank_that_waits_for_another_is_in_a_collective_and_the_other_is_not(
    nursery: Nursery, place: Place, tmp_path: Path, way: str, op: str
) -> None:
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this torch is built without gloo")
    command = ("stall_ranks", "--way", way, "--meeting", str(tmp_path / "meeting"))
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in ("0", "1"):
            settings = {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank, "TORCHELASTIC_RUN_ID": "pair",
                        "PROBE_STALL_S": str(STALL_S), **SERVER}
            ranks += stack.enter_context(forked(nursery, place, command, **settings))
        for job in ranks:
            job.wait_for("HANGING")
        waits, sleeps = (look(place, job) for job in ranks)
        assert (waits[1].state, waits[1].severity) == (states.IN_COLLECTIVE, ALARM), waits[1]
        assert f"waits for other ranks in {op}" in waits[1].what
        assert (sleeps[1].state, sleeps[1].severity) == (states.BLOCKED, ALARM)
        assert "clock_nanosleep" in sleeps[1].what and "sleep_on_storage" in sleeps[1].what
        first, second = (recorded_of(place, job.pid) for job in ranks)
        # A first look may come before both ranks are known to belong together.
        until(lambda: any(row["state"] == states.MISSING_RANK for row in noted(second)), "rank 1's verdict")
        until(lambda: any("the cause: rank 1" in row["what"] for row in noted(first)), "rank 0's verdict")
        alarm, waits_too = noted(second)[-1], noted(first)[-1]
        assert (alarm["state"], alarm["severity"]) == (states.MISSING_RANK, ALARM)
        assert "sleep_on_storage" in alarm["what"] and alarm["next"].startswith("probe ")
        named = (waits_too["state"], waits_too["severity"])
        assert named == (states.IN_COLLECTIVE, NOTICE), "one alarm is enough"
        early = [row for row in noted(first) if row["severity"] == ALARM]
        assert not early, "nor before the cause was known"
        assert "the cause: rank 1" in waits_too["what"] and "sleep_on_storage" in waits_too["what"]
        said = run_probe(place, str(ranks[0].pid), "diagnose").stdout
        assert f"rank 1 (pid {ranks[1].pid}) has not entered it" in said
        for endpoint in (first.meta.job, str(ranks[0].pid)):
            refused = run_probe(place, endpoint, "eval", "--at-step", "1")
            assert refused.returncode == 5 and "finishes no steps" in refused.stderr, refused
            assert "sleep_on_storage" in refused.stderr, "the cause is said, also of a rank that only waits"


def test_the_training_thread_of_a_forked_job_is_known_by_its_number_in_that_job(hung: Hung) -> None:
    for way, seen in hung.seen.items():
        if way != "in a thread":
            number = Registry(hung.place.directory).training_thread(seen.recorded)
            assert number == seen.job.pid, "with its parent's number nobody can see that it sleeps"


def test_threads_of_ours_are_never_suspected(hung: Hung) -> None:
    for seen in hung.seen.values():
        ours = [thread for thread in seen.evidence.threads if str(thread.name).startswith("probe-")]
        assert ours and not any(thread.training for thread in ours)
        assert "probe-agent holds" not in seen.verdict.what
