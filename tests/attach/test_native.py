"""Native frames: between Python's, of threads without Python, and what remains when reading them fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from attach.reading import (
    PYTHONS,
    Start,
    functions,
    in_function,
    innermost,
    set_free,
    stuck_in_the_kernel,
    until,
)
from harness import PATIENCE_S, wait_for_end
from probe.outside.processes import tasks
from probe.outside.stacks import native, outside_view, pyspy
from probe.outside.stacks.native_process import readable


def test_a_rank_that_waits_shows_the_collective_down_to_the_socket(fork: Start, tmp_path: Path) -> None:
    import torch.distributed

    if not torch.distributed.is_gloo_available():
        pytest.skip("this torch is built without gloo")
    meeting = str(tmp_path / "meeting")
    ranks = [fork("outside_ranks", str(rank), meeting, watched=False) for rank in (0, 1)]
    for rank in ranks:
        rank.wait_for("READY")

    def waits(found: dict[str, Any]) -> bool:
        names = [name for thread in found["threads"] for name in functions(thread)]
        return "c10d::Work::wait" in names and any(name.startswith("gloo::") for name in names)

    found = until(waits, ranks[0].pid, native=True, all_threads=True, timeout_s=20.0)
    names = functions(found["threads"][0])
    order = ["pthread_cond_wait", "c10d::Work::wait", "all_reduce", "train_step", "<module>"]
    assert [name for name in names if name in order][: len(order)] == order  # below is whoever forked it
    loops = [thread for thread in found["threads"] if "c10d::ProcessGroupGloo::runLoop" in functions(thread)]
    assert loops and not any(innermost(thread)["func"] for thread in loops), "they run no Python"
    assert all(len(name) <= 120 for thread in found["threads"] for name in functions(thread))
    libraries = {frame["file"] for frame in found["threads"][0]["frames"] if frame["frame_type"] == "Native"}
    assert any(file.endswith("libtorch_cpu.so") for file in libraries)

    def sleeps(found: dict[str, Any]) -> bool:
        return str(innermost(found["threads"][0], "Native")["func"]).startswith("clock_nanosleep")

    sleeper = until(sleeps, ranks[1].pid, native=True, timeout_s=20.0)
    assert innermost(sleeper["threads"][0])["func"] == "train_step"


@pytest.mark.parametrize("python", [*PYTHONS, Path(sys.executable)], ids=lambda path: path.parts[-3])
def test_python_frames_stand_between_the_native_ones_that_called_them(bare: Start, python: Path) -> None:
    job = bare("outside_states", "calls_back_and_forth", python=str(python))
    plain = until(in_function("calls_back_and_forth.<locals>.innermost", "innermost"), job.pid)
    both = outside_view.read_stacks(job.pid, native=True, timeout_s=20.0)
    frames = both["threads"][0]["frames"]
    assert [frame["depth"] for frame in frames] == list(range(len(frames)))
    python_frames = [frame["func"] for frame in frames if frame["frame_type"] == "Python"]
    assert python_frames == functions(plain["threads"][0]), both["notes"]
    names = [name.rpartition(".")[2] for name in functions(both["threads"][0])]
    order = ["innermost", "key", "list_sort", "__init__", "compare", "qsort_r", "calls_back_and_forth"]
    assert [name for name in names if name in order] == order
    assert not any(name.startswith(("_start", "start_thread", "slot_", "_Py")) for name in names)


def test_a_process_that_gets_stuck_while_it_is_read_goes_on_afterwards(bare: Start, tmp_path: Path) -> None:
    """Both tools hang, are ended, and have left a stop behind that would come into force later."""
    job = stuck_in_the_kernel(bare, tmp_path / "pipe")
    before: dict[int, tasks.Task] = {}  # nothing was known of the state when it was looked at
    notes: list[str] = []
    with pytest.raises(native.NativeUnavailable, match="did not answer within"):
        native.read(job.pid, before, all_threads=True, locals=False, timeout_s=1.0, notes=notes)
    assert any("SIGCONT" in note for note in notes)
    assert not tasks.stop_pending(job.pid) and not tasks.tracer(job.pid)
    found, notes = pyspy.read(job.pid, nonblocking=False, was_stopped=False, timeout_s=2.0)
    assert found and any("read without stopping" in note for note in notes)
    assert not tasks.stop_pending(job.pid) and not tasks.tracer(job.pid)
    set_free(job, tmp_path / "pipe")
    assert not tasks.stop_pending(job.pid)


def test_who_gives_up_a_native_read_leaves_the_process_as_it_was(bare: Start, tmp_path: Path) -> None:
    """Ctrl-C while pystack hangs at a process that is stuck in the kernel."""
    job = stuck_in_the_kernel(bare, tmp_path / "pipe")
    code = (
        "import sys; from probe.outside.stacks import native\n"
        "native.read(int(sys.argv[1]), {}, all_threads=False, locals=False, timeout_s=600, notes=[])"
    )
    reader = subprocess.Popen(
        [sys.executable, "-c", code, str(job.pid)], stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        while not tasks.tracer(job.pid):
            assert reader.poll() is None
            os.sched_yield()
        tracer = tasks.tracer(job.pid)
        reader.send_signal(signal.SIGINT)
        reader.wait(PATIENCE_S)
    finally:
        reader.kill()
        reader.wait()
    assert wait_for_end(tracer, PATIENCE_S)
    assert not tasks.stop_pending(job.pid) and not tasks.tracer(job.pid)
    set_free(job, tmp_path / "pipe")


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("take_gil", "take_gil"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
        ("c10d::Work::wait(std::chrono::duration<long, std::ratio<1l, 1000l> >)", "c10d::Work::wait"),
        ("gloo::(anonymous namespace)::ring(std::function<void (int)>)", "gloo::{anonymous}::ring"),
        ("void c10::f<std::vector<int> >(int)::{lambda(int)#1}::_FUN(int)", "c10::f::{lambda}::_FUN"),
        ("at::Tensor::operator()(int) const", "at::Tensor::operator()"),
        ("std::ostream& operator<< <char>(std::ostream&, char)", "std::ostream& operator<<"),
        ("operator new(unsigned long)", "operator new"),
        ("torch::autograd::f(_object*) [clone .cold]", "torch::autograd::f"),
        ("at::Tensor::data_ptr() const &", "at::Tensor::data_ptr"),
        ("???", "???"),
        ("", ""),
    ],
)
def test_a_native_name_is_cut_to_what_a_person_reads(symbol: str, name: str) -> None:
    assert readable(symbol) == name
    assert len(readable(symbol * 1000)) <= 120
