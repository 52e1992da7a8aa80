"""Detects that this process's recording was deleted, so that nobody can read it any more.

The agent's thread checks two names every few seconds. Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from probe.recording.recording import Recording


class Deleted:
    """Checks the files of one recording; calls `leave` once, with a text that names what is gone."""

    def __init__(self, recording: Recording, leave: Callable[[str], object]) -> None:
        rings = Path(recording.meta.rings)
        self._needed = ((recording.process, "meta.json"), (rings, "strings"))
        self._root = _identity("/")
        self._leave: Callable[[str], object] | None = leave

    @property
    def elsewhere(self) -> bool:
        """Whether the job has changed its root: paths lead into its own files then."""
        return _identity("/") != self._root

    def check(self) -> None:
        """Leave if a file that readers need is gone, and not just out of reach (changed root)."""
        if self._leave is None or self.elsewhere:
            return
        for folder, name in self._needed:
            if _is_gone(folder / name):
                leave, self._leave = self._leave, None
                leave(f"{folder} was deleted")
                return


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _is_gone(path: Path) -> bool:
    """Whether there is no such file; not if access is just denied."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
