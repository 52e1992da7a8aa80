"""Where the training loop is: figures that come late, and which threads train."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from probe.job.instruments.core.recorder import Recorder
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE
from probe.recording.ring import Ring
from probe.recording.tables import RINGS

STEP, LOSS, NORM = 0, 14, 15


def recorder_of(folder: Path, rows: int = 64) -> Recorder:
    rings = {table.full_name: Ring(folder / table.full_name, table, rows) for table in RINGS}
    recording: Any = SimpleNamespace(rings=rings, strings=SimpleNamespace(intern=lambda text: 1))
    return Recorder(recording, modules_interval=0)


def step(recorder: Recorder, loss: float | None = None) -> None:
    now = recorder.step * 1000 + 1
    recorder.backward_begins(now, loss)
    recorder.backward_ends(now + 10, now)
    recorder.end_step(now + 20, "optimizer", 0.1, NULL_BOOLEAN)


def row(recorder: Recorder, number: int) -> list[Any]:
    found = recorder.rings["python.steps"].read(number + 1)
    assert found is not None and found[STEP] == number
    return list(found)


def test_what_a_device_delivers_late_is_put_into_the_row_of_its_step_and_no_other(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    for number in range(20):
        step(recorder, 1.0 if number == 7 else None)
    recorder.deliver_loss(3, [(2.0, NULL_DOUBLE), (4.0, NULL_DOUBLE)])
    recorder.deliver_grad_norm(3, 5.0)
    recorder.deliver_loss(7, [(9.0, 1.0)])  # it has one
    recorder.deliver_loss(19, [(6.0, 1.0)])
    found = {number: tuple(row(recorder, number)[LOSS : NORM + 1]) for number in range(20)}
    expected = dict.fromkeys(range(20), (NULL_DOUBLE, NULL_DOUBLE))
    assert found == {**expected, 3: (3.0, 5.0), 7: (1.0, NULL_DOUBLE), 19: (6.0, NULL_DOUBLE)}
    assert row(recorder, 3)[:LOSS] == [3, *row(recorder, 3)[1:LOSS]]


def test_a_figure_for_the_step_that_runs_is_written_with_it(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    step(recorder)
    recorder.deliver_loss(1, [(2.0, 1.0), (4.0, 1.0)])
    recorder.deliver_grad_norm(1, 7.0)
    step(recorder)
    assert row(recorder, 1)[LOSS : NORM + 1] == [3.0, 7.0]


@pytest.mark.parametrize("late", [-1, 0, 60, 67, 200])
def test_a_figure_whose_row_is_soon_another_s_is_left_out(tmp_path: Path, late: int) -> None:
    recorder = recorder_of(tmp_path)
    for _ in range(100):
        step(recorder)
    before = [row(recorder, number) for number in range(40, 100)]
    recorder.deliver_grad_norm(late, 1.0)
    assert [row(recorder, number) for number in range(40, 100)] == before


def test_one_that_trains_is_alone_until_another_does_and_once_that_has_ended(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    go, done = threading.Event(), threading.Event()

    def other() -> None:
        step(recorder)
        done.set()
        go.wait()

    assert recorder.alone
    step(recorder)
    assert recorder.alone
    thread = threading.Thread(target=other)
    thread.start()
    done.wait()
    recorder.forget_ended_trainers()
    assert not recorder.alone
    step(recorder)
    assert not recorder.alone and recorder.thread == threading.get_ident()
    go.set()
    thread.join()
    recorder.forget_ended_trainers()
    assert recorder.alone


def test_where_all_that_trained_have_ended_nobody_is_in_the_way(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    both = threading.Barrier(2)

    def train() -> None:
        step(recorder)
        both.wait()  # a thread that has ended may give its number to the next

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not recorder.alone
    recorder.forget_ended_trainers()
    assert recorder.alone


def test_a_thread_that_trains_in_the_place_of_the_main_thread_is_alone(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path)
    thread = threading.Thread(target=step, args=(recorder,))
    thread.start()
    thread.join()
    assert recorder.alone and recorder.thread == thread.ident


def test_steps_of_round_numbers_are_timed_where_most_are_not(tmp_path: Path) -> None:
    recorder = recorder_of(tmp_path, rows=256)
    recorder.timed_every, recorder.next_sample = 8, 1 << 30
    timed = set()
    for _ in range(170):
        step(recorder)
        if recorder.timing:
            timed.add(recorder.step)
    assert timed == {*range(8, 171, 8), 50, 100, 150}
