"""What diagnose says of a real training whose source has a mistake."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from agent.asking import query
from agent.nursery import Forked, Nursery
from harness import PATIENCE_S, ROOT, Place, run_probe
from probe.diagnose.code.all_rules import RULES
from probe.server.recordings import code_rows

TRAIN = """
import sys
import time
import torch
from torch.nn import functional
from model import Net
import later

net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
inputs, targets = torch.randn(8, 4), torch.randint(0, 2, (8,))
torch.clamp(inputs, -1, 1)
for step in range(20):
    optimizer.zero_grad()
    functional.cross_entropy(net(inputs), targets).backward()
    optimizer.step()
print("READY", flush=True)
sys.stdin.readline()
"""
MODEL = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        x = self.layer(x)
        x.relu()
        return x
"""


READ = """
import os, sys
import probe.diagnose.code.__main__ as reader
reader.FAST_S = float(sys.argv.pop(1))
reader.main()
print(os.nice(0), file=sys.stderr)
"""


@pytest.mark.parametrize(("fast_s", "nice"), [(60.0, 0), (0.02, 10)])
def test_a_program_is_read_at_normal_priority_for_a_while_and_then_behind_the_training(
    fast_s: float, nice: int
) -> None:
    script = ROOT / "tests" / "programs" / "backbone_fine_tuned.py"
    words = [str(fast_s), str(script), str(time.time_ns()), str(ROOT), str(ROOT)]
    done = subprocess.run([sys.executable, "-c", READ, *words], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)[0]["state"] == "read"
    assert int(done.stderr) == os.nice(0) + nice


def test_a_program_that_takes_long_to_read_is_asked_for_again_and_given_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_rows, "WAIT_S", 0.05)
    script = tmp_path / "train.py"
    script.write_text(TRAIN + "".join(f"def f{n}(x):\n    return x + {n}\n" for n in range(2000)))
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "later.py").write_text("")
    reading = code_rows.Reading(script, time.time_ns(), str(tmp_path), [str(tmp_path)])
    os.kill(reading.pid, signal.SIGSTOP)
    assert reading.rows() is None and reading.rows() is None
    os.kill(reading.pid, signal.SIGCONT)
    deadline_s = time.monotonic() + PATIENCE_S
    while (rows := reading.rows()) is None:
        assert time.monotonic() < deadline_s
    assert {row["said"] for row in rows if row.get("rule") == "result-thrown-away"} and rows[0]["t_ns"]

    monkeypatch.setattr(code_rows, "DEADLINE_S", 0.0)
    late = code_rows.Reading(script, time.time_ns(), str(tmp_path), [str(tmp_path)])
    os.kill(late.pid, signal.SIGSTOP)
    rows = late.rows()
    assert rows and [row["said"] for row in rows] == ["reading it took too long"]
    with pytest.raises(ProcessLookupError):
        os.kill(late.pid, 0)


def test_what_a_mistake_causes_is_declared_for_rules_that_exist() -> None:
    sql = (ROOT / "recipes" / "program-source.sql").read_text(encoding="utf-8")
    declared = re.findall(r"\('([a-z-]+)', '", sql)
    assert declared and set(declared) <= {rule.name for rule in RULES}


def test_a_mistake_in_the_source_is_named_by_file_and_line_and_an_edited_file_makes_no_area_clear(
    nursery: Nursery, place: Place, tmp_path: Path
) -> None:
    for name, text in (("train", TRAIN), ("model", MODEL), ("later", "RATE = 0.1\n")):
        (tmp_path / f"{name}.py").write_text(text)
    environ = place.watched(PROBE_NAME="code")
    job = Forked(nursery, str(tmp_path / "train"), environ=environ, folder=place.directory)
    try:
        job.wait_for("READY")
        (tmp_path / "later.py").write_text("RATE = 0.2\n")
        files = read_files(place, job.pid)
        answer = judged(place, job.pid)
        assert subjects(answer) == {"train.py:12", "model.py:11"}
        found = [one for one in answer["findings"] if one["recipe"] == "program-source"]
        assert all("not read: later.py has changed since the process started" in one["why"] for one in found)
        assert sorted(files) == [
            ["later.py", "changed after the start"], ["model.py", "read"], ["train.py", "read"],
        ]
    finally:
        job.kill()
    assert subjects(judged(place, job.pid)) == {"train.py:12", "model.py:11"}


def read_files(place: Place, pid: int) -> list[list[Any]]:
    """Files and their states, as soon as a thread of the server has read them."""
    place.start_server()
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        sql = "SELECT parse_filename(file), state FROM python.code WHERE rule IS NULL"
        if files := query(place, pid, sql):
            return files
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def judged(place: Place, pid: int) -> dict[str, Any]:
    """What diagnose says."""
    done = run_probe(place, str(pid), "diagnose", "loss", "--no-watch", "--format", "json")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def subjects(answer: dict[str, Any]) -> set[str]:
    """Where mistakes in the source were found."""
    return {one["subject"] for one in answer["findings"] if one["recipe"] == "program-source"}
