"""Other Pythons of this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def interpreter(minor: int) -> str:
    """A Python 3.MINOR of this machine that runs; skips without one."""
    found = found_interpreter(minor)
    if found is None:
        pytest.skip(f"no Python 3.{minor} on this machine")
    return found


def found_interpreter(minor: int) -> str | None:
    """The same; None without one."""
    if sys.version_info[1] == minor:
        return sys.executable
    own = Path.home() / ".pyenv" / "versions"
    names = [shutil.which(f"python3.{minor}"), *map(str, sorted(own.glob(f"3.{minor}.*/bin/python")))]
    for name in filter(None, names):
        if subprocess.run([name, "-c", ""], capture_output=True, check=False).returncode == 0:
            return name
    return None
