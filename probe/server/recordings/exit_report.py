"""Exit report: how a process ended, from the files of its recording and its exit status.

Only reads: `exit_watch` notices ends, `end_record` writes them. Any thread of the server. Standard library,
and numpy through the ring reader.
"""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import Any, NamedTuple

from probe.base.errors import RecordingError
from probe.recording import places
from probe.recording.journal import read_journal, read_payloads
from probe.recording.reader import open_ring
from probe.recording.recording import Meta
from probe.server.recordings import end_record

FINISHED, FAILED, DEAD = "finished", "failed", "dead"
"""Ended normally; with an exception, or an exit status other than 0; killed."""
ENDING = "ending"
"""Its recording is closed and the process still exists: torch or a library takes time to exit."""
STOPPED = "recording stopped"
REPLACED = "executed another program"
INTERRUPTED = "interrupted"
OUT_OF_MEMORY = "killed by the kernel: out of memory"
NOT_SEEN = "exit status not seen"
UNKNOWN = "unknown: no server saw its end"
LIVES_ON = (STOPPED, REPLACED)
"""The recording ended and its process lives on: there is no verdict."""
DAMAGE = "damage"
"""Name of the record in `watch.bin` about damage that was found when rows were sealed."""
_LONGEST_HOW = 200
KERNEL_SHUTDOWN = "kernel shutdown"
"""Event of the job's journal: a front end asked the notebook kernel to end, and ends it a moment later."""
_AFTER_SHUTDOWN = (None, 0, -signal.SIGTERM, -signal.SIGKILL)
"""Exit statuses of a kernel that was asked to end: front ends send these signals if it takes seconds."""
_END_EVENTS = ("exit", "stop", "os._exit")


class OwnReport(NamedTuple):
    """A process's own records about its end; each is None if there is none."""

    end: dict[str, Any] | None
    """The record that the recording was closed (`exit`, `stop`) or that `os._exit` was called."""
    exception: dict[str, Any] | None
    """The last row of python.exceptions that may have ended the process, or its training."""
    shutdown: dict[str, Any] | None = None
    """The record that the front end asked the notebook kernel to end."""


def read_own_report(folder: Path) -> OwnReport:
    """The records about its end of the process that is recorded in `folder`."""
    end: dict[str, Any] | None = None
    exception: dict[str, Any] | None = None
    shutdown: dict[str, Any] | None = None
    for record in read_journal(places.journals(folder)[0]):
        if record.get("event") in _END_EVENTS:
            end = record
        elif record.get("event") == KERNEL_SHUTDOWN:
            shutdown = record
        elif record.get("table") == "python.exceptions":
            rows = [row for row in record.get("rows", []) if row.get("main") or row.get("training")]
            exception = rows[-1] if rows else exception
    return OwnReport(end, exception, shutdown)


class _NotYet(Exception):
    """The process has not recorded its start yet: on a busy machine its agent's thread may be late."""


@functools.lru_cache(65536)
def _began(journal: Path, _inode: int) -> bool | None:
    for record in read_journal(journal):
        if record.get("event") == "start":
            return bool(record["midway"]) if "midway" in record else None
    raise _NotYet  # not cached


def began_midway(folder: Path) -> bool | None:
    """Whether recording began while the job was training: its steps are then counted from there.

    None when the recording does not say."""
    journal = places.journals(folder)[0]
    try:
        inode = journal.stat().st_ino
    except OSError:
        return None
    try:
        return _began(journal, inode)
    except _NotYet:
        return None


_MOST_NOTES = 8


def damage_notes(folder: Path, meta: Meta, *, ended: bool) -> list[str]:
    """Notes about damage in a recording, apart from its rows: what was found when it was sealed, holes in its
    journals (in the process's own only once it has `ended`), its end.json."""
    own, beside = places.journals(folder)
    found: list[str] = []
    for record in read_journal(beside):
        if record.get("event") == DAMAGE:
            found.append(str(record.get("what"))[:_LONGEST_HOW])
    for path in (own, beside) if ended else (beside,):
        try:
            found += [hole.said_of(path) for hole in read_payloads(path)[1]]
        except OSError as error:
            found.append(f"{path.name} cannot be read: {error.strerror}")
    rings_exist = Path(meta.rings).exists()  # checked first: they are removed once the record says "sealed"
    unsealed: str | None = None
    try:
        facts = end_record.read(folder, meta)
        unsealed = None if facts["sealed"] else ""
        before = facts.get("journal_bytes", {})
        for name, size_bytes in journal_sizes(folder).items():
            if size_bytes < before.get(name, 0):
                missing = before[name] - size_bytes
                found.append(f"{name} is {missing} bytes shorter than when its process ended")
    except FileNotFoundError:
        unsealed = ", and it has no end.json" if ended else None
    except (OSError, ValueError) as error:
        found.append(f"end.json cannot be used: {error}")
    if unsealed is not None:
        if not rings_exist:
            found.append(f"its rings were deleted before they were completely sealed{unsealed}")
        found += _fewer_rows(folder, meta)
    return at_most(list(dict.fromkeys(found)), _MOST_NOTES)


def at_most(notes: list[str], count: int) -> list[str]:
    """The first `count` notes, and how many more there are."""
    more = len(notes) - count
    return [*notes[:count], *([f"and {more} more"] if more > 0 else [])]


def _fewer_rows(folder: Path, meta: Meta) -> list[str]:
    """Notes about rings that hold fewer rows than the process recorded when it closed them."""
    counts = (read_own_report(folder).end or {}).get("rows")
    found = []
    for table, count in counts.items() if isinstance(counts, dict) else ():
        try:
            with open_ring(meta, table) as ring:
                highest = ring.highest()
        except (OSError, RecordingError):
            continue
        if type(count) is int and highest < count:
            found.append(f"the last {count - highest} rows of {table} are missing")
    return found


def journal_sizes(folder: Path) -> dict[str, int]:
    """Bytes of each journal of a recording, by its name."""
    found = {}
    for path in places.journals(folder):
        try:
            found[path.name] = path.stat().st_size
        except OSError:
            found[path.name] = 0
    return found


def classify_exit(
    report: OwnReport,
    exit_status: int | None,
    *,
    out_of_memory: bool = False,
    crash: str | None = None,
    last_step: int | None = None,
) -> tuple[str, str]:
    """(state, how) of a process that has ended.

    `crash` names the signal in crash.txt, `last_step` is the last finished step."""
    event = report.end.get("event") if report.end is not None else None
    exception = report.exception
    if event == "stop":
        return FINISHED, STOPPED
    if report.shutdown is not None and exit_status in _AFTER_SHUTDOWN and not out_of_memory:
        how = "restarted" if report.shutdown.get("restart") else "shut down"
        return FINISHED, f"its notebook kernel was {how}"
    by_main = exception if exception is not None and exception.get("main") else None
    if exit_status is not None and exit_status < 0:
        return _killed(exit_status, by_main, out_of_memory)
    if event == "os._exit":
        return _left_at_once(report.end or {}, by_main)
    if by_main is not None and exit_status in (None, 1):
        return FAILED, _raised(by_main)
    if exit_status:
        return FAILED, f"exit status {exit_status}"
    if exception is not None and by_main is None and _stopped_training(exception, last_step):
        return FAILED, _short(f"{_raised(exception)} in thread {exception.get('thread_name')}")
    if exit_status == 0:
        return FINISHED, FINISHED
    if event == "exit":
        return FINISHED, f"{FINISHED}, {NOT_SEEN}"
    if out_of_memory:
        return DEAD, OUT_OF_MEMORY
    if crash is not None:
        return DEAD, crash
    return DEAD, UNKNOWN


def _killed(exit_status: int, exception: dict[str, Any] | None, out_of_memory: bool) -> tuple[str, str]:
    name = signal_name(-exit_status)
    if name == "SIGINT" and exception is not None and exception.get("type") == "KeyboardInterrupt":
        return FAILED, INTERRUPTED
    if name == "SIGKILL" and out_of_memory:
        return DEAD, OUT_OF_MEMORY
    return DEAD, name


def _left_at_once(end: dict[str, Any], exception: dict[str, Any] | None) -> tuple[str, str]:
    status = end.get("status")
    if status == 0:
        return FINISHED, "os._exit(0)"
    if exception is not None:
        return FAILED, _short(f"{_raised(exception)}, then os._exit({status})")
    return FAILED, f"os._exit({status})"


def _raised(exception: dict[str, Any]) -> str:
    if exception.get("type") == "KeyboardInterrupt":
        return INTERRUPTED
    message = str(exception.get("message") or "").partition("\n")[0]
    kind = exception.get("type")
    return _short(f"exception {kind}: {message}" if message else f"exception {kind}")


def _stopped_training(exception: dict[str, Any], last_step: int | None) -> bool:
    """Whether no step was finished after the training thread's exception."""
    step = exception.get("step")
    return step is None or last_step is None or last_step < step


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_HOW else text[: _LONGEST_HOW - 1] + "…"


def signal_name(number: int) -> str:
    """`SIGKILL` for 9; `signal 33` for one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def exit_code(wait_status: int) -> int:
    """The kernel's exit code as 0 to 255, or the negative number of the signal."""
    number = wait_status & 0x7F
    return -number if number else wait_status >> 8 & 0xFF
