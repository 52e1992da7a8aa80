"""Facts about a run: git is asked without running anything of the repository, secrets stay out, packages."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from probe.diagnose.efficiency import mfu, peak_tflops
from probe.server.recordings import gpu
from probe.server.recordings.git_facts import git_facts


def git(folder: Path, *words: str) -> None:
    names = ("-c", "user.email=a@b", "-c", "user.name=n", "-c", "core.hooksPath=/dev/null")
    subprocess.run(["git", "-C", str(folder), *names, *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """One commit with train.py, and a change that is not committed."""
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    (folder / "train.py").write_text("print(1)\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "the first")
    (folder / "train.py").write_text("print(1)\nprint(2)\n")
    return folder


def test_the_commit_the_branch_and_what_differs_are_known(repository: Path) -> None:
    found = dict(git_facts(repository, repository / "train.py"))
    assert len(found["commit"]) == 40 and found["branch"] == "trunk" and found["dirty"] == "true"
    assert "train.py | 1 +" in found["diff_summary"] and len(found["diff_hash"]) == 64
    assert found["script_tracked"] == "true" and found["commit_summary"] == "the first"
    before = found["diff_hash"]
    (repository / "train.py").write_text("print(1)\nprint(3)\n")
    assert dict(git_facts(repository, None))["diff_hash"] != before
    git(repository, "checkout", "-q", "train.py")
    clean = dict(git_facts(repository, None))
    assert clean["dirty"] == "false" and "diff_hash" not in clean


def test_a_folder_in_no_repository_has_no_git_facts(tmp_path: Path) -> None:
    assert git_facts(tmp_path, None) == []


def test_nothing_that_a_repository_configures_is_run_and_nothing_is_written(
    repository: Path, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\necho \"$0 $*\" >> {ran}\ncat\n")
    trap.chmod(0o755)
    for option in (
        "core.fsmonitor", "core.pager", "core.sshCommand", "core.askPass", "core.editor", "diff.external",
        "diff.bad.command", "diff.bad.textconv", "filter.bad.clean", "filter.bad.smudge",
        "filter.bad.process",
        "gpg.program", "log.showSignature", "pager.diff", "pager.show", "credential.helper", "alias.diff",
        "filter.with.dots.clean",
    ):
        git(repository, "config", option, "true" if option == "log.showSignature" else str(trap))
    git(repository, "config", "filter.bad.required", "true")
    hooks = repository / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("post-index-change", "post-checkout", "pre-auto-gc", "fsmonitor-watchman"):
        (hooks / name).write_text(trap.read_text())
        (hooks / name).chmod(0o755)
    git(repository, "config", "core.hooksPath", str(hooks))
    (repository / ".gitattributes").write_text("*.py diff=bad filter=bad\n*.txt filter=with.dots\n")
    ran.unlink(missing_ok=True)
    # The traps work: git by itself runs them.
    subprocess.run(["git", "-C", str(repository), "status"], capture_output=True, check=False)
    assert ran.exists()
    ran.unlink()
    (repository / "train.py").write_text("print(4)\n")
    before = {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*")}
    found = dict(git_facts(repository, repository / "train.py"))
    assert found["dirty"] == "true" and "diff_hash" in found
    assert not ran.exists(), ran.read_text()
    assert {path: path.stat().st_mtime_ns for path in (repository / ".git").rglob("*")} == before


def test_mfu_is_of_the_devices_dense_rate_and_unknown_without_it() -> None:
    assert peak_tflops("NVIDIA H100 80GB HBM3", "bfloat16") == 989.4
    assert peak_tflops("NVIDIA H100 PCIe", "bfloat16") == 756.0
    assert peak_tflops("NVIDIA A100-SXM4-80GB", "float32", "highest") == 19.5
    assert peak_tflops("NVIDIA A100-SXM4-80GB", "float32", "high") == 156.0
    assert peak_tflops("Tesla T4", "float16") == 65.0 and peak_tflops("Tesla T4", "bfloat16") is None
    assert peak_tflops("NVIDIA L40S", "float16") == 362.0
    assert peak_tflops(None, "bfloat16") is None and peak_tflops("cpu", "float32") is None
    assert mfu(1e9, 20_000.0, 312.0) == pytest.approx(0.3846, rel=1e-3)
    assert mfu(1e9, None, 312.0) is None and mfu(1e9, 1.0, None) is None


class _NvmlError(Exception):
    pass


def test_devices_are_those_of_the_process_and_what_is_not_told_is_null(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = types.ModuleType("pynvml")

    def refuses(*_arguments: object) -> object:
        raise _NvmlError

    made = {
        "NVMLError": _NvmlError, "nvmlInit": lambda: None, "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda place: place,
        "nvmlDeviceGetComputeRunningProcesses": lambda place: [types.SimpleNamespace(pid=40 + place)],
        "nvmlDeviceGetName": lambda place: b"NVIDIA A100-SXM4-80GB",
        "nvmlDeviceGetUtilizationRates": lambda place: types.SimpleNamespace(gpu=87),
        "nvmlDeviceGetMemoryInfo": lambda place: types.SimpleNamespace(used=3, total=80),
        "nvmlDeviceGetPowerUsage": lambda place: 311_500, "nvmlDeviceGetTemperature": lambda place, kind: 61,
        "nvmlDeviceGetClockInfo": refuses, "nvmlDeviceGetTotalEccErrors": refuses,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda place: 0x4 | 0x20,
    }
    for name, one in made.items():
        setattr(nvml, name, one)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    devices = gpu.Devices()
    (row,) = devices.rows(41, lambda: None)
    del row["t_ns"]
    assert row == {
        "device": 1, "name": "NVIDIA A100-SXM4-80GB", "utilization_ratio": 0.87, "memory_used_bytes": 3,
        "memory_total_bytes": 80, "power_w": 311.5, "temperature_c": 61, "sm_clock_mhz": None,
        "throttled": "power cap, temperature (software)", "ecc_errors": None,
    }
    assert [one["device"] for one in devices.rows(7, lambda: 0)] == [0]
    assert devices.rows(7, lambda: None) == []
