"""Makes the source text that is sent to a job: `inside.py`, and one call with its arguments.

Runs in the command; standard library only.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import probe

EXPIRES_S = 600.0
"""A source that gets the GIL only after this time does nothing: nobody expects it any more."""
_HERE = Path(__file__).parent


def hook_file() -> Path:
    """The start-up hook of this installation: in `probe/boot`, or beside the package (in a wheel)."""
    package = Path(probe.__file__).resolve().parent
    within = package / "boot" / "torch_probe_boot.py"
    return within if within.is_file() else package.parent / within.name


def source(settings: Mapping[str, str], *, directory: Path, expires_in_s: float = EXPIRES_S) -> str:
    """The source to run in a job, where `probe_fd` is the descriptor to report to.

    `settings` are PROBE_… variables of the command; the recording goes to `directory`. By default the server
    runs with this Python, because the job's may lack packages that the server imports.
    """
    given = {
        "PROBE_SERVER_PYTHON": sys.executable, **settings, "PROBE_DIR": os.path.abspath(directory),
    }
    text = (_HERE / "inside.py").read_text(encoding="utf-8")
    arguments = (time.monotonic() + expires_in_s, str(hook_file()), given)
    return f"{text}\n\nbegin(probe_fd, *{arguments!r})\n"


def calling_source(inner: str, address: str, *, expires_in_s: float = EXPIRES_S) -> str:
    """One line for the main thread: connect to `address`, then run `inner`.

    It uses the boot library's protocol, never raises, and leaves nothing in `__main__`.
    """
    text = (_HERE / "calling.py").read_text(encoding="utf-8")
    called = f"{text}\n\ncall({address!r}, {inner!r}, {time.monotonic() + expires_in_s!r})\n"
    return f"exec(compile({called!r}, 'probe', 'exec'), {{'__name__': 'probe_calling'}})\n"
