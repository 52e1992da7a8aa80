"""Artifacts: files that an action writes for people: traces, tensors, memory.

Written like a checkpoint (`saving`), under a temporary name that is then renamed: there is a complete file or
none, and an existing one is never damaged. On the request's thread. Standard library only.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from probe.base import descriptors
from probe.base.errors import ActionRefused
from probe.base.isolation import capture
from probe.job.actions.action import flag
from probe.job.actions.saving import verified_file
from probe.job.actions.saving.verified_file import size_text


class Artifact(verified_file.Writing):
    """One file. `arguments`: `path`, and `overwrite` to replace an existing one."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self.path = verified_file.place_of(arguments.get("path"))
        self._overwrite = flag(arguments, "overwrite")
        if not self.path.parent.is_dir():
            raise ActionRefused(f"there is no folder {self.path.parent}", hint="Make it first.")
        verified_file.check_target(self.path, self._overwrite)
        super().__init__(self.path, threading.Event())

    def __str__(self) -> str:
        return f"{self.path} ({size_text(self.size_bytes)})"

    def check_room(self, size_bytes: int) -> None:
        """Raise `ActionRefused` if the disk lacks this much space."""
        verified_file.check_free(self.path.parent, size_bytes, self.path.name)

    def fill(self, write_to: Callable[[Path], object], *, ends_with: bytes = b"") -> int:
        """Have a function write it under a temporary name, and rename it; its size.

        `ends_with`: the last bytes of a complete file, for writers that do not report a full disk. Raises
        `ActionFailed`."""
        _, error = capture(lambda: self._fill(write_to, ends_with))
        if error is not None:
            self.discard()
            raise self._failure("writing", error)
        self.publish(overwrite=self._overwrite)
        return self.size_bytes

    def _fill(self, write_to: Callable[[Path], object], ends_with: bytes) -> None:
        made, self._temporary = verified_file.make_temporary(self.path)
        made.close()
        write_to(self._temporary)
        with descriptors.reading(self._temporary) as file:
            self.size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, self.size_bytes - 64))
            if not file.read().rstrip().endswith(ends_with):
                raise OSError(None, "the file is incomplete: the disk may be full")
            os.fsync(file.fileno())
