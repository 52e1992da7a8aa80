"""What is looked at of the process and of what it saves: files by their numbers, pickled tensors are no
checkpoints, tools of a thread, quotas of control groups."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from probe.base.isolation import Isolation
from probe.job.instruments.core import thread_tools
from probe.job.instruments.core.recorder import HELD_PHASES
from probe.job.instruments.facts.process_settings import cpu_quota, replicated
from probe.job.instruments.facts.saved_files import SavedFiles
from probe.job.instruments.loop.framework_calls import FrameworkCalls


class Stand:
    """A recorder, its journal and its intervals, as far as they are asked here."""

    def __init__(self) -> None:
        self.step, self.phase = 7, "other"
        self.rows: list[dict[str, Any]] = []
        self.entered: list[str] = []
        self.recorder = self

    def elsewhere(self) -> bool:
        return False

    def intern(self, text: str) -> int:
        return len(text)

    def append(self, record: dict[str, Any]) -> None:
        self.rows += record["rows"]

    def enter(self, kind: str, _by: int) -> None:
        self.entered.append(kind)

    def leave(self, *_: Any) -> None:
        raise AssertionError("nothing was entered")


def test_a_saved_file_is_known_by_its_number_and_a_pickled_tensor_is_no_checkpoint(tmp_path: Path) -> None:
    stand = Stand()
    calls = FrameworkCalls(cast(Any, stand), Isolation(lambda *_: None))
    saved = SavedFiles(cast(Any, stand), cast(Any, stand))
    calls.saved = saved.note
    calls.install()
    try:
        pickle.dumps(torch.ones(3))
        assert not stand.entered
        torch.save({"w": torch.ones(300)}, tmp_path / "one.pt")
        with (tmp_path / "one.pt").open("wb") as file:
            torch.save({"w": torch.ones(300)}, file)
        stand.phase = HELD_PHASES[0]
        torch.save({}, tmp_path / "ours.pt")
    finally:
        calls.uninstall()
    saved.collect()
    first, again = stand.rows
    status = (tmp_path / "one.pt").stat()
    assert first["path"] == str(tmp_path / "one.pt") and first["bytes"] == status.st_size > 1200
    assert first["file"] == again["file"] == f"{status.st_dev}:{status.st_ino}"
    assert stand.entered == ["checkpoint"] * 3


def test_what_was_deleted_since_has_no_size(tmp_path: Path) -> None:
    stand = Stand()
    saved = SavedFiles(cast(Any, stand), cast(Any, stand))
    saved.note(({}, str(tmp_path / "gone.pt")), {})
    saved.note(({},), {"f": str(tmp_path / "gone.pt")})
    saved.note(({}, SimpleNamespace(name="a file of the job's own")), {})
    saved.collect()
    assert [(row["step"], row["bytes"], row["file"]) for row in stand.rows] == [(7, None, None)] * 2


def test_the_tools_of_a_thread_are_named_and_not_kept() -> None:
    def profiler(*_: Any) -> None:
        return None

    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        found = thread_tools.here()
    finally:
        sys.setprofile(before)
    assert thread_tools.shown(found.profile) == "profiler" and found.profile is profiler.__code__
    assert thread_tools.shown(None) == thread_tools.OFF


def test_the_least_quota_of_the_control_groups_counts(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path) is None
    (tmp_path / "cpu.max").write_text("250000 100000\n")
    assert cpu_quota(tmp_path) == 2.5


def test_settings_of_a_wrapped_model_are_read_without_running_its_code() -> None:
    class DistributedDataParallel:
        def __init__(self) -> None:
            self.bucket_bytes_cap, self.find_unused_parameters, self.static_graph = 1048, True, None

        @property
        def broadcast_buffers(self) -> bool:
            raise AssertionError("code of the job's ran")

    assert dict(replicated([DistributedDataParallel(), object()])) == {
        "ddp.bucket_bytes": 1048, "ddp.find_unused_parameters": True,
    }
