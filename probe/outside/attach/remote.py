"""Attaches with `sys.remote_exec` (PEP 768), which is tried first with Python 3.14 and newer.

The call runs in the job's own binary, because both sides must have the same version. The script runs when the
main thread next reaches bytecode; if it never does, nothing is reported. Not tested: there was no Python 3.14
on the development machine. Runs in the command; standard library only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

SINCE = (3, 14)
PATIENCE_S = 3.0
"""How long the script may take to start; then it expires, and other ways are tried."""
_REMOTE_EXEC = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])"


def execute(pid: int, folder: Path, source: str) -> str:
    """Have process `pid` run `source`. Returns the problem, empty if there is none.

    The script stays in `folder` until `remove_script`: it is read when it runs.
    """
    script = _script(folder, pid)
    descriptor = os.open(script, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(source)
    try:
        done = subprocess.run(
            [f"/proc/{pid}/exe", "-I", "-c", _REMOTE_EXEC, str(pid), str(script)], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=20.0, check=False, cwd="/",
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"its own Python cannot be run: {error}"
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["no reason"])[-1]


def remove_script(pid: int, folder: Path) -> None:
    """Remove the script."""
    with contextlib.suppress(FileNotFoundError):
        _script(folder, pid).unlink()


def _script(folder: Path, pid: int) -> Path:
    return folder / f"{pid}.py"
