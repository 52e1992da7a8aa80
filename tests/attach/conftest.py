"""Fixtures of the tests of attaching: processes in a chosen state, in any Python and environment."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent.nursery import Forked, Nursery
from attach.reading import Bare
from harness import PROGRAMS, Job

WITH_TORCH = frozenset({"torch", "asleep_with_torch", "held"})
"""States that import torch: forks, which have it."""


def quiet() -> dict[str, str]:
    """Our environment without settings of probe."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}


class Target(Job):
    """`attach_states.py` in one state, started without probe."""

    def __init__(
        self, state: str, folder: Path, loops: str, *, python: str = sys.executable,
        environ: Mapping[str, str] | None = None, cwd: Path | None = None, user: int | None = None,
    ) -> None:
        with tempfile.NamedTemporaryFile("w", dir=folder, prefix="stderr-", delete=False) as errors:
            self._errors = Path(errors.name)
            program = str(PROGRAMS / "attach_states.py")
            if user is not None:  # who may not enter our folders
                program = shutil.copy(program, tempfile.mkdtemp(prefix="probe-test-state-"))
                os.chmod(Path(program).parent, 0o755)
            self._process = subprocess.Popen(
                [python, program, state, loops], env=dict(quiet() if environ is None else environ),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
                cwd=cwd or (None if user is None else "/"), user=user,
            )
        self._copied = None if user is None else Path(program).parent
        self.pid = self._process.pid
        self._unread = b""

    def counts(self) -> dict[str, int]:
        """What must not grow from one attach to the next."""
        maps = Path(f"/proc/{self.pid}/maps").read_text().splitlines()
        return {
            "threads": len(os.listdir(f"/proc/{self.pid}/task")),
            "descriptors": len(os.listdir(f"/proc/{self.pid}/fd")),
            "files": sum(" /" in line for line in maps),
            "maps": len(maps),
        }

    def state(self) -> str:
        """Its letter, with a `+` while somebody traces it."""
        status = dict(
            line.split(":\t") for line in Path(f"/proc/{self.pid}/status").read_text().splitlines()
            if ":\t" in line
        )
        return status["State"][0] + "+" * (status["TracerPid"].strip() != "0")

    def thread_names(self) -> list[str]:
        """As the kernel has them."""
        found = []
        for path in Path(f"/proc/{self.pid}/task").glob("*/comm"):
            with contextlib.suppress(OSError):
                found.append(path.read_text().strip())
        return found

    def finish(self) -> dict[str, Any]:
        """Release it; it must have computed right and end well. Its result."""
        self.signal(signal.SIGUSR1)
        found = json.loads(self.wait_for("RESULT").removeprefix("RESULT "))
        assert (found["wrong"], self.wait(), self.errors()) == (0, 0, "")
        assert found["rounds"] >= 2
        assert not any("Dummy" in name for name in found["threads"])
        return dict(found)

    def kill(self) -> None:
        super().kill()
        if self._copied is not None:
            shutil.rmtree(self._copied, ignore_errors=True)


class ForkedTarget(Target, Forked):
    """The same in a fork."""

    def __init__(self, nursery: Nursery, state: str, folder: Path, loops: str) -> None:
        Forked.__init__(self, nursery, "attach_states", state, loops,
                        environ={**quiet(), "WHOLE_END": "1"}, folder=folder)
        self._copied = None


@pytest.fixture(scope="session")
def loops(tmp_path_factory: pytest.TempPathFactory) -> str:
    """attach_loops.c, compiled."""
    made = tmp_path_factory.mktemp("loops") / "loops.so"
    subprocess.run(
        ["cc", "-O2", "-shared", "-fPIC", "-o", str(made), str(PROGRAMS / "attach_loops.c")], check=True
    )
    return str(made)


@pytest.fixture
def target(tmp_path: Path, loops: str, nursery: Nursery) -> Iterator[Callable[..., Target]]:
    """`target(state, python=…, environ=…, cwd=…, user=…)`: one that said READY; killed at the end."""
    with contextlib.ExitStack() as stack:

        def start(state: str, **more: Any) -> Target:
            a_fork = state in WITH_TORCH and not more
            found = (ForkedTarget(nursery, state, tmp_path, loops) if a_fork
                     else Target(state, tmp_path, loops, **more))
            stack.callback(found.kill)
            found.wait_for("READY")
            return found

        yield start


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """`bare(program, *options, python=…)`: a process that said READY; killed at the end."""
    with contextlib.ExitStack() as stack:

        def start(program: str, *options: str, word: str = "READY", **more: str) -> Job:
            job = Bare(program, *options, folder=tmp_path, **more)
            stack.callback(job.kill)
            if word:
                job.wait_for(word)
            return job

        yield start
