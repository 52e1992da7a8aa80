"""Moment: the state of a process at the time its bundle was made, `moment.json` in the bundle.

A bundle may be of a living job, or of one that hangs. Where it is opened the process cannot be inspected, so
its verdict, facts and stacks are kept, with their time. Written by the command that makes a bundle, read by
the server that opens it; standard library only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from probe.base.errors import RecordingError
from probe.recording import checked

FILE = "moment.json"
STATE = "bundled"
"""State of a process that lived when its bundle was made: what happened later is unknown."""
BOOT = "in a bundle"
"""Stands for the boot id of the host, so that no process is ever taken for the recorded one."""


class Moment(NamedTuple):
    """The known state of one process. `verdict` is a finding and `facts` are those of a rank, both as on the
    wire; `capture` has its stacks. None where unknown."""

    made_ns: int
    verdict: dict[str, Any] | None
    facts: dict[str, Any] | None
    capture: dict[str, Any] | None


def write(folder: Path, moment: Moment) -> None:
    """Write it next to the other facts of a recording. Raises `OSError`."""
    (folder / FILE).write_bytes(checked.sealed(FILE, moment._asdict()))


def read(folder: Path) -> Moment | None:
    """The moment of the process recorded in `folder`; None if the recording is not in a bundle.

    Raises `RecordingError`."""
    try:
        raw = checked.read_sealed(folder / FILE)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RecordingError(f"{folder / FILE} cannot be used: {error}") from None
    parts = [raw.get(name) for name in ("verdict", "facts", "capture")]
    made_ns = raw.get("made_ns")
    if type(made_ns) is not int or not all(one is None or isinstance(one, dict) for one in parts):
        raise RecordingError(f"{folder / FILE} cannot be used: a field is missing or invalid")
    return Moment(made_ns, *parts)
