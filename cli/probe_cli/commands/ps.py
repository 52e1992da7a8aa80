"""`probe ps`: the processes known here. The command's main thread."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from probe.base.errors import ServerUnavailable
from probe.recording import places
from probe.recording.waiting import all_waiting
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, grid

HEADINGS = (
    Heading("JOB"),
    Heading("RANK", number=True),
    Heading("PID", number=True),
    Heading("STEP", number=True),
    Heading("LAST STEP"),
    Heading("STATE"),
)
COLOURS = {
    "running": ("green",), "idle": ("yellow",), "dead": ("red",), "failed": ("red",), "finished": ("dim",),
    "waiting for torch": ("yellow",), "stalled": ("red",), "paused": ("yellow",), "stopped": ("yellow",),
}
WAITING = "waiting for torch"
_LONGEST_HOW = 60


def list_processes(session: Session, everything: bool, format: Literal["table", "json"]) -> None:
    """Write one line per process: those that live and those that ended lately, or all."""
    known, notes = _ask(session, everything)
    known += _waiting(session, {process.get("pid") for process in known if process.get("ended_ns") is None})
    found = [process for process in known if _meant(process, session.address.endpoint)]
    if format == "json":
        text = json.dumps({"processes": found, "notes": notes}, ensure_ascii=False)
        session.out.line(escape_controls(text) if session.out.terminal else text)
        return
    for note in notes:
        session.note(note)
    if found:
        write_table(session, HEADINGS, [row(process) for process in found])
    else:
        _say_how_to_start(session, everything)
    _say_where_else(session)


def _say_where_else(session: Session) -> None:
    """Somebody who takes our names and leaves them again may have parted our own recordings."""
    directory = session.address.directory
    if directory is None or session.settings.directory or directory != places.home(session.settings):
        return
    for other in places.own_homes():
        if other != directory and _anything_recorded(other):
            session.note(f"there are recordings in {other} too: PROBE_DIR={other} probe ps")


def write_table(session: Session, headings: Sequence[Heading], rows: list[list[str]]) -> None:
    """Write rows of processes under their headings, each state in its colour."""

    def paint(number: int, column: int, text: str) -> str:
        if number < 0:
            return session.out.style(text, "bold")
        is_state = headings[column].name == "STATE"
        word = rows[number][column].partition(":")[0]
        return session.out.style(text, *COLOURS.get(word, ())) if is_state else text

    for line in grid(headings, rows, session.out.width, paint):
        session.out.line(line)


def _ask(session: Session, everything: bool) -> tuple[list[dict[str, Any]], list[str]]:
    directory = session.address.directory
    if directory is not None and not session.has_own_transport and not _anything_recorded(directory):
        return [], []
    answer = session.ask("GET", "/v1/processes", {"all": "1" if everything else "0"})
    processes = answer.get("processes")
    if not isinstance(processes, list):
        raise ServerUnavailable("the list of processes cannot be read")
    notes = answer.get("notes")  # a server of an older version has none
    return processes, [str(note) for note in notes] if isinstance(notes, list) else []


def _waiting(session: Session, live: set[Any]) -> list[dict[str, Any]]:
    """Processes that were attached to and have not imported torch: this machine alone knows of them."""
    directory = session.address.directory
    if directory is None or session.has_own_transport:
        return []
    unknown = dict.fromkeys((
        "job", "run", "attempt", "rank", "local_rank", "world_size", "host", "pid", "state", "step",
        "last_step_s", "last_seen_s", "started_ns", "ended_ns", "folder", "argv",
    ))
    return [
        {**unknown, "pid": one.pid, "state": WAITING} for one in all_waiting(directory) if one.pid not in live
    ]


def _anything_recorded(directory: Path) -> bool:
    """Without a recording there is nothing to start a server for."""
    try:
        places.check_private(directory, os.lstat(directory))
    except FileNotFoundError:
        return False
    return bool(places.process_folders(directory))


def _meant(process: dict[str, Any], endpoint: str) -> bool:
    """Whether `probe ENDPOINT ps` is about this process."""
    job, rank = str(process.get("job")), process.get("rank")
    names = ("", str(process.get("pid")), job, f"{job}/{rank}", str(process.get("folder")))
    return endpoint in names


def row(process: dict[str, Any]) -> list[str]:
    """Cells of one process; what is not known is `-`."""
    step = process.get("step")
    return [
        escape_controls(str(process.get("job") or "-")),
        known(process.get("rank")),
        known(process.get("pid")),
        "-" if step is None else f"{step:,}",
        age(process.get("last_step_s")),
        escape_controls(state(process)),
    ]


def state(process: dict[str, Any]) -> str:
    """`running`, `dead: SIGKILL`, `failed: ValueError`, …: how it ended, where that is known."""
    word, how = known(process.get("state")), str(process.get("how") or "")
    how = how.removeprefix("exception ").removeprefix(f"{word}, ")
    kind, separator, _ = how.partition(": ")
    if separator and kind.isidentifier():  # an exception: its text is in python.exceptions
        how = kind
    return word if how in ("", word) else f"{word}: {how[:_LONGEST_HOW]}"


def known(value: object) -> str:
    """The value as text, `-` for none."""
    return "-" if value is None else str(value)


def age(seconds: float | None) -> str:
    """How long ago, readable: `0.4 s ago`, `12 s ago`, `3 min ago`, `5 h ago`, `2 d ago`."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s ago"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    for unit, length, until in (("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < until:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{seconds // 86400:.0f} d ago"


def _say_how_to_start(session: Session, everything: bool) -> None:
    asked = session.named or session.settings.endpoint
    which = f" called {asked}" if asked else ""
    session.note(
        f"no process{which} is running under probe here" + ("" if everything else " or ended lately")
    )
    session.err.line("  next: start one with `probe run python train.py`, or with PROBE=1 in its environment")
    if not everything:
        session.err.line("        `probe ps --all` lists every recording that is kept")
