"""The installed command against a real training: each that acts, what it says, what it leaves on record."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import PATIENCE_S, ROOT, Job, Place, probe_process, run_probe

INSTALLED = ("lr", "pause")
JobAsked = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def job(start: Callable[..., Job]) -> Job:
    """A GPT with a schedule and a gradient scaler, training until it is told to end."""
    return start("gpt_with_schedule", "--forever", PROBE_NAME="gpt")


@pytest.fixture
def ask(place: Place, job: Job) -> JobAsked:
    """`ask("lr", "--scale", "0.1")`: the command about the job; its exit code is checked. The commands of
    `INSTALLED` are the installed one the first time."""
    still = set(INSTALLED)

    def asked(*words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        run = probe_process if words[0] in still else run_probe
        still.discard(words[0])
        done = run(place, str(job.pid), *words)
        assert done.returncode == code, done
        return done

    return asked


def rows(ask: JobAsked) -> list[dict[str, Any]]:
    """What `actions` lists."""
    found: list[dict[str, Any]] = json.loads(ask("actions", "--format", "json").stdout)["actions"]
    return found


def start_probe(place: Place, *words: str) -> subprocess.Popen[str]:
    """The command, not waited for."""
    return subprocess.Popen(
        [sys.executable, "-m", "probe_cli", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=place.environ(PYTHONPATH=f"{ROOT}{os.pathsep}{ROOT / 'cli'}"),
    )


def states(ask: JobAsked) -> dict[str, str]:
    """State of each action by its id."""
    return {row["action_id"]: row["state"] for row in rows(ask)}


def rate(ask: JobAsked) -> float:
    return float(ask("eval", "optimizer.param_groups[0]['lr']").stdout)


RAN = re.compile(
    r"probe: ran between steps (\d+) and (\d+), training held for [\d.]+ m?s\n"
    r"  next: probe (\d+) undo (\d+-\d+)  \|  probe \d+ actions\n"
)


def test_what_is_changed_says_so_is_on_record_and_is_taken_back(ask: JobAsked, job: Job) -> None:
    shown = ask("lr").stdout
    assert shown.startswith("optimizer (AdamW): lr ") and "CosineAnnealingLR: T_max 100000" in shown
    before = rate(ask)

    changed = ask("lr", "--scale", "0.1")
    found = RAN.fullmatch(changed.stderr)
    assert found and int(found[2]) == int(found[1]) + 1 and int(found[3]) == job.pid, changed
    assert "CosineAnnealingLR" in changed.stdout
    assert rate(ask) == pytest.approx(before * 0.1, rel=1e-3)
    history = ask("lr").stdout.partition("history\n")[2]
    assert f"from step {found[2]} on: {found[4]} lr scale=0.1" in history and history.count("steps ") == 2
    undone = ask("undo", found[4])
    assert "lr" in undone.stdout and rate(ask) == pytest.approx(before, rel=1e-3)
    assert ask("undo", found[4], code=7).stderr.startswith(f"probe: {found[4]} is undone already")

    for on, off, action in (
        (("clip", "--max-norm", "1.0"), ("clip", "--off"), "clip"),
        (("skip-nonfinite", "on"), ("skip-nonfinite", "off"), "skip_nonfinite"),
        (("spike-guard", "--threshold", "5"), ("spike-guard", "--off"), "spike_guard"),
    ):
        stood = ask(*on)
        assert RAN.fullmatch(stood.stderr), stood
        assert [row["action"] for row in rows(ask) if row["state"] == "standing"] == [action]
        assert "ended" in ask(*off).stdout
        assert "is not on; nothing to undo" in ask(*off).stdout
    scale = ask("loss-scale", "--set", "2048")
    assert "1024" in scale.stdout and "2048" in scale.stdout
    assert ask("eval", "scaler.get_scale()").stdout == "2048.0\n"
    said = ask("loss-scale").stdout
    assert "loss_scale set=2048.0" in said

    every = [row for row in rows(ask) if row["action"] != "eval"]
    assert {row["action"]: row["state"] for row in every} == {
        "lr": "undone", "clip": "undone", "skip_nonfinite": "undone", "spike_guard": "undone",
        "loss_scale": "done",
    }
    for row in every:
        assert row["caller_role"] == "owner" and row["caller_uid"] is not None and row["caller_pid"] > 0
        assert row["arguments"] != "" and row["step"] >= 0 and row["held_s"] >= 0
    assert every[-1]["undo"] == f"probe {job.pid} undo {every[-1]['action_id']}"
    lines = ask("actions").stdout.splitlines()
    snippets = [row for row in rows(ask) if row["action"] == "eval"]
    assert snippets[-1]["arguments"] == {"code": "scaler.get_scale()"} and snippets[-1]["undo"] is None
    assert {row["state"] for row in snippets} == {"ok"}
    assert lines[0].split()[:4] == ["ID", "WHEN", "STEP", "ACTION"]
    assert len(lines) == 1 + len(every) + len(snippets)

    for words, code, part in (
        (("lr", "--set", "100"), 2, "more than 10 times"),
        (("lr", "--set", "1e-5", "--group", "7"), 2, "group 7"),
        (("resume",), 7, "not paused"), (("undo", "1-1"), 7, "no action"),
        (("capture", "nowhere", "-o", "x.pt"), 7, "nowhere"), (("watch", "model.train()"), 7, "read"),
        (("checkpoint", "/nowhere/x.pt"), 7, "/nowhere"),
    ):
        refused = ask(*words, code=code)
        assert refused.stdout == "" and part in refused.stderr and "next:" in refused.stderr, refused
        assert "Traceback" not in refused.stderr


def test_what_is_saved_looked_at_and_held(ask: JobAsked, place: Place, job: Job, tmp_path: Path) -> None:
    saved, kept = tmp_path / "rescue.pt", tmp_path / "kept"
    kept.mkdir()
    assert "verified" in ask("checkpoint", str(saved)).stdout and saved.stat().st_size > 10_000
    assert "exists already" in ask("checkpoint", str(saved), code=7).stderr
    assert "verified" in ask("checkpoint", str(saved), "--overwrite", "--now").stdout
    every = ("--every", "5", "--keep", "2", "--format", "json")
    standing = json.loads(ask("checkpoint", str(kept), *every).stdout)
    assert standing["state"] == "standing"

    trace, tensors = tmp_path / "trace.json", tmp_path / "attention.pt"
    ask("profile", "--steps", "2", "-o", str(trace))
    assert json.loads(trace.read_text())["traceEvents"]
    ask("capture", "blocks.0.attention", "--steps", "1", "-o", str(tensors))
    assert tensors.stat().st_size > 1000

    watched = ask("watch", "loss, optimizer.param_groups[0]['lr']", "--steps", "4", "--format", "ndjson")
    values = [json.loads(line) for line in watched.stdout.splitlines()]
    assert len(values) == 4
    steps = [one["step"] for one in values]
    assert steps == list(range(steps[0], steps[0] + 4))
    assert all(set(one["values"]) == {"loss", "optimizer.param_groups[0]['lr']"} for one in values)
    assert ask("undo", standing["id"]).returncode == 0 and list(kept.glob("*.pt"))

    endless = start_probe(place, str(job.pid), "watch", "loss", "--steps", "20000")
    assert endless.stdout is not None
    assert endless.stdout.readline().split() == ["STEP", "loss"], "it has begun"
    endless.send_signal(signal.SIGINT)
    endless.communicate(timeout=PATIENCE_S)
    assert endless.returncode == 130 and rows(ask)[-1]["state"] == "undone", "it has ended in the job too"

    paused = json.loads(ask("pause", "--for", "60", "--format", "json").stdout)
    step = json.loads(ask("ps", "--format", "json").stdout)["processes"][0]["step"]
    held = ask("eval", "optimizer.param_groups[0]['lr'] *= 1.0")
    assert "changes the job (line 1:" in held.stderr and "ran between steps" in held.stderr
    assert json.loads(ask("ps", "--format", "json").stdout)["processes"][0]["step"] == step
    assert "continues" in ask("resume").stdout
    deadline = time.monotonic() + PATIENCE_S  # the agent's thread notes it within a second or so
    while states(ask)[paused["id"]] != "ended":
        assert time.monotonic() < deadline, rows(ask)
        time.sleep(0.05)

    last = tmp_path / "last.pt"
    assert "exit code 3" in ask("stop", "--checkpoint", str(last), "--exit-code", "3").stdout
    assert job.wait() == 3 and last.exists()
    after = rows(ask)
    assert after[-1]["action"] == "stop" and after[-1]["state"] == "done", "the record outlives the job"
    assert ask("lr").stdout.startswith("history\n")
    for words in (("clip", "--max-norm", "1"), ("undo", paused["id"]), ("eval", "1")):
        assert "died at about" in ask(*words, code=3).stderr
