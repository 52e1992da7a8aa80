"""Reads lines of source code that a process runs, from the current files.

Runs in threads of the server, or in the command. Standard library only.
"""

from __future__ import annotations

import threading
from pathlib import Path

from probe.base.redaction import redact

_LONGEST_SOURCE_BYTES = 4 << 20
_SOURCE_TIMEOUT_S = 0.2


def line_of(pid: int, file: str, lineno: int | None) -> str | None:
    """The text of a line of a file that a process runs. Reads on a thread, which is abandoned if the file
    system hangs: that may be why the process hangs."""
    if lineno is None or file.startswith("<"):
        return None
    lines: list[str] = []
    path = Path(f"/proc/{pid}/cwd", file) if not file.startswith("/") else Path(file)
    reader = threading.Thread(target=_read_lines, args=(path, lines), name="probe-source", daemon=True)
    reader.start()
    reader.join(_SOURCE_TIMEOUT_S)
    known = not reader.is_alive() and lineno <= len(lines)
    return redact(lines[lineno - 1].strip()) if known else None  # code may contain passwords


def _read_lines(path: Path, lines: list[str]) -> None:
    try:
        if path.is_file() and path.stat().st_size <= _LONGEST_SOURCE_BYTES:
            lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return
