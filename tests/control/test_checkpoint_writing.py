"""Writing checkpoints: where they may be put, full disks, kills at any moment, and which ones are kept."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import signal
import socket
import stat
import subprocess
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import probe
from control.saved import Site, left_in, save, trained, values
from probe.base.errors import ActionFailed, ActionRefused, BadRequest
from probe.checkpoint.file import read_checkpoint
from probe.job.actions.saving import checkpoint as checkpoint_action
from probe.job.actions.saving import save as saving
from probe.job.actions.saving import snapshot, verified_file
from probe.job.actions.saving.checkpoint import Automatic
from probe.job.actions.saving.plain_data import memory_available_bytes
from probe.job.actions.saving.save import Save
from probe.recording.layout import NULL_DOUBLE

# Where it is put ------------------------------------------------------------------


def test_a_checkpoint_is_put_only_where_a_file_of_the_jobs_own_may_be(tmp_path: Path) -> None:
    site = Site(model=nn.Linear(1, 1))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere.pt")
    (tmp_path / "there").write_text("mine")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        for name, overwrite, said in [
            ("missing/a.pt", False, "there is no folder"),
            ("folder", True, "is a folder"),
            ("fifo", True, "is a device, a pipe or a socket"),
            ("socket", True, "is a device, a pipe or a socket"),
            ("link", True, "is a symbolic link"),
            ("there", False, "exists already"),
            ("/dev/null", True, "is not a folder for files"),
            ("/dev/a.pt", False, "is not a folder for files"),
            ("/proc/self/a.pt", False, "is not a folder for files"),
        ]:
            with pytest.raises(ActionRefused, match=said):
                save(site, tmp_path / name, overwrite=overwrite)
    for path in ("", None, 3, "a\0b"):
        with pytest.raises(BadRequest):
            verified_file.place_of(path)
    assert (tmp_path / "there").read_text() == "mine"
    assert left_in(tmp_path) == ["fifo", "folder", "link", "socket", "there"]


def test_a_file_that_comes_while_one_is_written_is_not_replaced(tmp_path: Path) -> None:
    one = Save(Site(model=nn.Linear(1, 1)), tmp_path / "a.pt")  # type: ignore[arg-type]
    one.begin()
    (tmp_path / "a.pt").write_text("faster")
    with pytest.raises(ActionRefused, match="exists by now"):
        one.finish()
    assert (tmp_path / "a.pt").read_text() == "faster" and left_in(tmp_path) == ["a.pt"]


def test_a_new_file_has_the_mode_of_the_umask_and_passes_over_what_a_killed_one_left(tmp_path: Path) -> None:
    name = "n" * 250
    cut = tmp_path / f".{'n' * 200}.{os.getpid()}.tmp"
    cut.write_text("half")
    before = os.umask(0o027)
    try:
        save(Site(model=nn.Linear(1, 1)), tmp_path / name)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640
    assert cut.read_text() == "half" and len(left_in(tmp_path)) == 2


# Numbers that are none ------------------------------------------------------------


def test_a_good_file_is_never_replaced_by_one_with_nan_and_a_new_one_says_so(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    model.register_buffer("mask", torch.full((3,), float("-inf")))
    site = Site(model=model)
    assert save(site, tmp_path / "a.pt")["nonfinite"] == {}
    good = (tmp_path / "a.pt").read_bytes()
    with torch.no_grad():
        model.weight[0, :2] = float("nan")
        model.bias[1] = float("inf")
    said = r"3 values .* in model.weight, model.bias; .*a.pt was not replaced"
    with pytest.raises(ActionRefused, match=said):
        save(site, tmp_path / "a.pt", overwrite=True)
    assert (tmp_path / "a.pt").read_bytes() == good and left_in(tmp_path) == ["a.pt"]
    answer = save(site, tmp_path / "b.pt")
    assert answer["nonfinite"] == {"model.weight": 2, "model.bias": 1}
    assert "3 values of the parameters are NaN or infinite" in answer["notes"][0]
    assert answer["verified"]


def test_a_file_is_replaced_only_when_asked_and_only_by_a_whole_one(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    save(Site(model=model), tmp_path / "a.pt")
    with torch.no_grad():
        model.weight += 1
    save(Site(model=model), tmp_path / "a.pt", overwrite=True)
    fresh = nn.Linear(3, 2)
    probe.load_checkpoint(tmp_path / "a.pt", model=fresh)
    assert values(fresh) == values(model)


# Disks and memory -----------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of that size; without the right to mount one, the limit on a file's size."""
    folder.mkdir()
    options = ["-o", f"size={size_bytes}"]
    mounted = subprocess.run(["mount", "-t", "tmpfs", *options, "probe-test", folder], capture_output=True)
    if mounted.returncode == 0:
        try:
            yield folder
        finally:
            subprocess.run(["umount", folder], check=True)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield folder
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_is_seen_before_and_survived_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = Site(model=nn.Linear(700, 700)), Site(model=nn.Linear(2, 2))
    with small_disk(tmp_path / "disk", 1_600_000) as disk:
        with pytest.raises(ActionRefused, match=r"the checkpoint needs 3\.4 MB"):
            save(large, disk / "new.pt")
        monkeypatch.setattr(verified_file, "check_room", lambda *_: None)  # the disk fills up after the look
        save(small, disk / "old.pt")
        old = (disk / "old.pt").read_bytes()
        for name, overwrite in (("new.pt", False), ("old.pt", True)):
            with pytest.raises(ActionFailed, match=r"writing failed: (No space left|File too large)"):
                save(large, disk / name, overwrite=overwrite)
        assert left_in(disk) == ["old.pt"] and (disk / "old.pt").read_bytes() == old


def test_a_file_that_reads_back_otherwise_never_gets_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(temporary: Path) -> str:
        whole = temporary.read_bytes()
        temporary.write_bytes(whole[:-9])
        return real(temporary)

    real = verified_file.sha256_on_disk
    monkeypatch.setattr(verified_file, "sha256_on_disk", torn)
    with pytest.raises(ActionFailed, match="the file on disk differs from the bytes written"):
        save(Site(model=nn.Linear(2, 2)), tmp_path / "a.pt")
    assert left_in(tmp_path) == []


def test_memory_that_is_free_is_the_least_of_host_and_groups_with_files_that_can_be_dropped(
    tmp_path: Path
) -> None:
    def write(name: str, text: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert memory_available_bytes(tmp_path) is None
    write("proc/meminfo", "MemTotal: 9000 kB\nMemAvailable: 5000 kB\n")
    write("proc/self/cgroup", "0::/a/job\n")
    assert memory_available_bytes(tmp_path) == 5000 * 1024
    write("sys/fs/cgroup/a/job/memory.max", "max\n")
    write("sys/fs/cgroup/a/job/memory.current", "700000\n")
    assert memory_available_bytes(tmp_path) == 5000 * 1024
    write("sys/fs/cgroup/a/job/memory.max", "1000000\n")
    assert memory_available_bytes(tmp_path) == 300_000
    write("sys/fs/cgroup/a/job/memory.stat", "anon 1\ninactive_file 200000\n")
    assert memory_available_bytes(tmp_path) == 500_000
    write("proc/self/cgroup", "4:cpu:/x\n3:memory:/x\n")
    assert memory_available_bytes(tmp_path) == 5000 * 1024
    write("sys/fs/cgroup/memory/memory.limit_in_bytes", "900000\n")
    write("sys/fs/cgroup/memory/memory.usage_in_bytes", "800000\n")
    assert memory_available_bytes(tmp_path) == 100_000


def test_where_memory_is_short_the_training_thread_writes_itself_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = trained()
    monkeypatch.setattr(saving, "memory_available_bytes", lambda: 100)
    one = Save(Site(**named), tmp_path / "a.pt")  # type: ignore[arg-type]
    one.begin()
    expected = [values(thing) for thing in named.values()]
    with torch.no_grad():
        named["model"][0].weight += 1  # the training goes on before the file is verified
    answer = one.finish()
    assert "the training thread wrote the file itself" in " ".join(answer["notes"])
    fresh = trained(0)
    probe.load_checkpoint(tmp_path / "a.pt", **fresh)
    assert [values(thing) for thing in fresh.values()] == expected


def test_a_checkpoint_that_failed_holds_on_to_nothing_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "memory_available_bytes", lambda: 100)
    taken: list[weakref.ref[snapshot.Snapshot]] = []
    real = snapshot.take

    def take(site: Any) -> snapshot.Snapshot:
        found = real(site)
        taken.append(weakref.ref(found))
        return found

    monkeypatch.setattr(snapshot, "take", take)
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    one = Save(Site(model=model), tmp_path / "a.pt", finite_only=True)  # type: ignore[arg-type]
    with pytest.raises(ActionRefused) as caught:
        one.begin()
    gc.collect()
    assert caught.value.message and [reference() for reference in taken] == [None]


def test_one_that_is_given_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "_FINISH_S", 0.0)
    one = Save(Site(model=nn.Linear(2, 2)), tmp_path / "a.pt")  # type: ignore[arg-type]
    one.begin()
    one._idle.clear()
    one.give_up()
    one._idle.set()
    with pytest.raises(ActionFailed, match="probe left the process"):
        one.finish()
    assert left_in(tmp_path) == []


def _save_for_ever(path: Path) -> None:
    """Replace a file again and again by one whose tensors all hold the number of the round."""
    torch.set_num_threads(1)  # a forked child has none of the threads that torch thinks it has
    model = nn.Linear(400, 400)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(1_000_000):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(number)
        save(Site(model=model, optimizer=optimizer, step=number), path, overwrite=True)


def _kill_while_writing(folder: Path, times: int) -> None:
    path = folder / "a.pt"
    save(Site(**trained()), path)  # what torch imports at first use, it imports here and not in each child
    chance = random.Random(5)
    for _ in range(times):
        path.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            try:
                _save_for_ever(path)
            finally:
                os._exit(1)
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.uniform(0.0, 0.06))
        os.kill(child, signal.SIGKILL)
        assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the writer ended by itself"
        content = read_checkpoint(str(path))
        assert torch.equal(content["model"]["weight"], torch.full((400, 400), float(content["step"])))
        others = [name for name in left_in(folder) if name != "a.pt"]
        assert all(name.startswith(".a.pt.") and name.endswith(".tmp") for name in others), others


def test_a_kill_while_writing_leaves_the_file_before_or_the_file_after(tmp_path: Path) -> None:
    _kill_while_writing(tmp_path, 5)


@pytest.mark.campaign
def test_sixty_kills_while_writing_leave_the_file_before_or_the_file_after(tmp_path: Path) -> None:
    _kill_while_writing(tmp_path, 60)


# Automatic ones -------------------------------------------------------------------


class Loop:
    """Steps of a job, for automatic checkpoints: each is over when it is told."""

    def __init__(self, folder: Path, **arguments: Any) -> None:
        self.model = nn.Linear(2, 2)
        self.site = Site(model=self.model)
        self.automatic = Automatic({"folder": str(folder), **arguments}, self.site)  # type: ignore[arg-type]
        self.step = 0

    def run(self, *losses: float) -> None:
        for loss in losses:
            self.step += 1
            self.site.recorder.counted_step = self.step
            row = [NULL_DOUBLE] * 40
            row[checkpoint_action._LOSS_FIELD] = loss
            self.site.recorder.last_row = row
            self.automatic.at_boundary()
            if self.automatic._thread is not None:
                self.automatic._thread.join()


def test_of_automatic_checkpoints_the_newest_and_the_best_are_kept(tmp_path: Path) -> None:
    loop = Loop(tmp_path, every=2, keep=2, best="loss")
    loop.run(5.0, 4.0, 1.0, 1.0, 3.0, 3.0, NULL_DOUBLE, float("nan"), 7.0, 7.0, 8.0, NULL_DOUBLE)
    assert left_in(tmp_path) == ["step-00000004.pt", "step-00000010.pt", "step-00000012.pt"]
    assert read_checkpoint(str(tmp_path / "step-00000012.pt"))["step"] == 12
    assert "6 were written and 3 of them" in loop.automatic.summary()


def test_a_file_that_automatic_checkpoints_did_not_write_is_never_deleted(tmp_path: Path) -> None:
    (tmp_path / "step-00000001.pt").write_text("mine")
    loop = Loop(tmp_path, every=1, keep=1)
    loop.run(1.0)
    assert left_in(tmp_path) == ["step-00000001.2.pt", "step-00000001.pt"]
    loop.run(1.0)
    (tmp_path / "step-00000002.pt").unlink()
    (tmp_path / "step-00000002.pt").write_text("mine too")
    loop.run(1.0)
    assert left_in(tmp_path) == ["step-00000001.pt", "step-00000002.pt", "step-00000003.pt"]


def test_a_model_that_went_nan_does_not_push_out_the_good_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = Loop(tmp_path, every=1, keep=1)
    loop.run(1.0)
    with torch.no_grad():
        loop.model.weight[0, 0] = float("nan")
    loop.run(1.0, 1.0, 1.0, 1.0)
    assert left_in(tmp_path) == ["step-00000001.pt"]
    assert loop.automatic.ended
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and "NaN" in said[0] and said[2].endswith("no more are tried")


@pytest.mark.parametrize(
    "arguments",
    [
        {}, {"every": 0}, {"every": 1.5}, {"every": 1, "keep": 0}, {"every": 1, "best": "accuracy"},
        {"every": 1, "kept": 1},
    ],
)
def test_automatic_checkpoints_that_make_no_sense_are_refused(arguments: Any, tmp_path: Path) -> None:
    with pytest.raises(BadRequest):
        Loop(tmp_path, **arguments)
    with pytest.raises(ActionRefused, match="there is no folder"):
        Loop(tmp_path / "missing", every=1)


def test_a_rate_that_follows_a_schedule_which_was_not_found_is_said(tmp_path: Path) -> None:
    objects = trained()
    del objects["scheduler"]
    objects["optimizer"].param_groups[0]["initial_lr"] = 0.1
    notes = save(Site(**objects), tmp_path / "saved.pt")["notes"]
    assert any("no scheduler was found" in note and "optimizer" in note for note in notes)
