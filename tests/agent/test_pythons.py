"""What the agent records with, evaluates and reads in any Python from 3.10 on."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agent.test_eval import ANSWERS
from harness import PATIENCE_S, PROGRAMS, ROOT
from probe.recording.journal import read_journal
from probe.recording.reader import RingFile
from probe.recording.recording import Meta
from probe.recording.strings import read_strings

MINORS = [minor if minor in (10, 13) else pytest.param(minor, marks=pytest.mark.campaign)
          for minor in range(10, 15)]
"""Daily the oldest and the newest that every supported torch has; the others in the campaign."""
SNIPPETS = {
    code: said for code, said in ANSWERS.items() if not re.search("torch|mod(el|le)|optimizer", code)
}
"""Those that need no training."""


def interpreter(minor: int) -> str:
    """A Python 3.MINOR of this machine that runs; skips without one."""
    own = Path.home() / ".pyenv" / "versions"
    names = [shutil.which(f"python3.{minor}"), *map(str, sorted(own.glob(f"3.{minor}.*/bin/python")))]
    for name in filter(None, names):
        if subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode == 0:
            return name
    pytest.skip(f"no Python 3.{minor} on this machine")


@pytest.fixture(params=MINORS)
def found(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """What the agent's code did in that Python."""
    done = subprocess.run(
        [interpreter(request.param), str(PROGRAMS / "records_without_torch.py"), str(tmp_path)],
        input=json.dumps(list(SNIPPETS)), capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["version"] == [3, request.param]
    return answer


def test_every_supported_python_records_evaluates_and_reads(found: dict[str, Any]) -> None:
    check_recording(Path(found["process"]))
    *answers, late = found["answers"]
    for (code, said), answer in zip(SNIPPETS.items(), answers, strict=True):
        shown = code[:60]
        error = answer["error"]["type"] if answer["error"] else None
        assert (shown, error) == (shown, said.error) or error in (said.error or "").split("|")
        assert (shown, answer["value"]) == (shown, said.value)
        assert (shown, answer["dropped_bytes"]) == (shown, said.dropped_bytes)
    assert "was stopped after 0.1 s" in late["message"]
    check_looks(found["version"], found["looks"])
    assert "main" in found["stack"]


def check_recording(process: Path) -> None:
    """The rows as they were written, read here."""
    rings = Path(Meta.read(process).rings)
    texts = read_strings(rings / "strings")
    assert texts == [None, "plain", " ", "ü\\ud800\0", "x" * 1999 + "…"]
    with RingFile(rings / "python.scalars.ring") as ring:
        rows = ring.read(0)
    assert rows["step"].tolist() == list(range(100))
    assert rows["t_ns"].tolist() == [row * 10 for row in range(100)]
    assert [texts[number] for number in rows["name"]][:5] == [*texts[1:], "plain"]
    values = rows["value"].tolist()
    assert math.isnan(values.pop(6)) and values == [row / 3 for row in range(100) if row != 6]
    journal = read_journal(process / "journal.bin")
    assert [record["text"] for record in journal] == ["plain", "", "ü\\ud800\0", "x" * 3000]


def check_looks(version: list[int], looks: dict[str, Any]) -> None:
    """Reading variables from outside, and what the functions saw of it: nothing."""
    assert looks["plain"] == [True, True, {"number": "1", "shared": "2"}, {"number": 1, "inner": 2}]
    readable, _, text, seen = looks["saving"]
    assert seen == {"saved": ["early", "look"], "sum": 3}
    assert readable == (version >= [3, 12])
    assert {name: text.get(name) for name in ("early", "late")} == (
        {"early": "1", "late": "2"} if readable else {"early": None, "late": None}
    )
