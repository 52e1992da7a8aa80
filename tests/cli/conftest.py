"""The command, run in this process or as one of its own, and a server that says what it is told."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # pytest imports this file by its path alone

from command_harness import TIMEOUT_S, FakeServer, Result, Screen

from probe_cli.main import run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeServer]:
    made = FakeServer(tmp_path / "fake.sock")
    yield made
    made.close()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment without settings of whoever runs the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    kept["PROBE_DIR"] = str(tmp_path / "home")
    kept["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "cli")])
    return kept


@pytest.fixture
def command(environment: dict[str, str]) -> Callable[..., Result]:
    """Run the command in this process: `command("query", "SELECT 1", terminal=True, stdin="")`."""

    def runner(
        *words: str, terminal: bool = False, stdin: str = "", transport: Any = None, **variables: str
    ) -> Result:
        out, err = (Screen(), Screen()) if terminal else (io.StringIO(), io.StringIO())
        environ = {**environment, "COLUMNS": "80", **variables}
        code = run(words, environ, out, err, io.StringIO(stdin), transport)
        return Result(code, out.getvalue(), err.getvalue())

    return runner


@pytest.fixture
def process(environment: dict[str, str], tmp_path: Path) -> Callable[..., Result]:
    """Run the command as a process of its own."""

    def runner(*words: str, stdin: str = "", python: tuple[str, ...] = (), **variables: str) -> Result:
        done = subprocess.run(
            [sys.executable, *python, "-m", "probe_cli", *words],
            input=stdin, capture_output=True, text=True, encoding="utf-8", timeout=TIMEOUT_S,
            env={**environment, **variables}, cwd=tmp_path, check=False,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return runner
