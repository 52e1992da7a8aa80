"""`probe ps`: list the recorded processes of this host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from probe.base.errors import ServerUnavailable
from probe.recording import places
from probe.recording.waiting import all_waiting
from probe_cli.core.figures import age, count, known, span
from probe_cli.core.options import OutputFile, RowsFormat
from probe_cli.core.parameters import Option
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls
from probe_cli.render.grid import Heading, state_lines
from probe_cli.render.process_state import COLOURS, WAITING, state_text

EXAMPLES = (
    "probe ps",
    "probe ps --all --format json",
)
_LAST_STEP = Heading("LAST STEP")
_HEADINGS = (
    Heading("JOB"),
    Heading("RANK", number=True),
    Heading("PID", number=True),
    Heading("STEP", number=True),
    _LAST_STEP,
    Heading("STATE"),
)


def command(
    session: Session,
    everything: Annotated[
        bool, Option("--all", help="Include processes that ended long ago.")
    ] = False,
    output_format: RowsFormat = None,
    output: OutputFile = None,
) -> None:
    """List running and recently ended processes."""
    found, notes = known_processes(session, everything)
    if output_format == "json" and output is None:
        session.out.json({"processes": found, "notes": notes})
        return
    for note in notes:
        session.note(note)
    if output_format or output:
        from probe_cli.render.row_output import write_records

        write_records(session, found, output_format, output)
    elif found:
        session.out.page(table_lines(found, session.out))
    else:
        _say_how_to_start(session, everything)
    _say_where_else(session)


def known_processes(
    session: Session, everything: bool = False, figures: bool = False
) -> tuple[list[dict[str, Any]], list[str]]:
    """The processes of the session's endpoint (all without one) in the form of `/v1/processes`, and notes.

    `everything`: include processes that ended long ago; `figures`: include the figures of live processes.
    Starts no server if nothing was recorded."""
    listed, notes = _ask(session, everything, figures)
    listed += _waiting(session, {process.get("pid") for process in listed if process.get("ended_ns") is None})
    endpoint = session.address.endpoint
    found = [process for process in listed if _matches(process, endpoint)]
    if not found and endpoint.startswith("/"):  # a recording elsewhere, a bundle
        found = session.request("GET", "/v1/ranks", {"endpoint": endpoint})["ranks"]
    return found, notes


def table_lines(processes: Sequence[dict[str, Any]], out: Output) -> Iterator[str]:
    """One line per process, under headings; with the time left if known for any of them."""
    headings, rows = list(_HEADINGS), [_cells(process) for process in processes]
    if any(process.get("left_s") is not None for process in processes):
        place = headings.index(_LAST_STEP)
        headings.insert(place, Heading("LEFT"))
        for process, row in zip(processes, rows, strict=True):
            row.insert(place, span(process.get("left_s")))
    return state_lines(out, headings, rows, "STATE", COLOURS)


def _say_where_else(session: Session) -> None:
    """Report recordings in another home: the default PROBE_DIR moves while another user holds its name."""
    directory = session.address.directory
    if directory is None or session.settings.directory or directory != places.home(session.settings):
        return
    for other in places.own_homes():
        if other != directory and _anything_recorded(other):
            session.note(f"there are also recordings in {other}: PROBE_DIR={other} probe ps")


def _ask(session: Session, everything: bool, figures: bool) -> tuple[list[dict[str, Any]], list[str]]:
    directory = session.address.directory
    if directory is not None and not session.has_own_transport and not _anything_recorded(directory):
        return [], []
    asked = {"all": "1" if everything else "0", "figures": "1" if figures else ""}
    answer = session.request("GET", "/v1/processes", asked)
    processes = answer.get("processes")
    if not isinstance(processes, list):
        raise ServerUnavailable("invalid list of processes")
    notes = answer.get("notes")  # absent from an older server
    return processes, [str(note) for note in notes] if isinstance(notes, list) else []


def _waiting(session: Session, live: set[Any]) -> list[dict[str, Any]]:
    """Rows for attached processes that have not imported torch yet; only this host knows them."""
    directory = session.address.directory
    if directory is None or session.has_own_transport:
        return []
    unknown = dict.fromkeys((
        "job", "name", "run", "attempt", "rank", "local_rank", "world_size", "host", "pid", "state", "step",
        "last_step_s", "last_seen_s", "started_ns", "ended_ns", "elapsed_s", "total_steps", "total_source",
        "left_s", "folder", "argv",
    ))
    return [
        {**unknown, "pid": one.pid, "state": WAITING} for one in all_waiting(directory) if one.pid not in live
    ]


def _anything_recorded(directory: Path) -> bool:
    """Whether the directory has any recording, so that a server is worth starting."""
    try:
        places.check_private(directory, os.lstat(directory))
    except FileNotFoundError:
        return False
    return bool(places.process_folders(directory))


def _matches(process: dict[str, Any], endpoint: str) -> bool:
    """Whether `probe ENDPOINT ps` selects this process."""
    rank = process.get("rank")
    jobs = [str(process.get(key)) for key in ("job", "name", "run")]
    return endpoint in ("", str(process.get("pid")), str(process.get("folder"))) or any(
        endpoint in (job, f"{job}/{rank}") for job in jobs
    )


def _cells(process: dict[str, Any]) -> list[str]:
    found = [
        process.get("name") or process.get("job") or "-",
        known(process.get("rank")), known(process.get("pid")),
        count(process.get("step")), age(process.get("last_step_s")), state_text(process),
    ]
    return [escape_controls(str(cell)) for cell in found]


def _say_how_to_start(session: Session, everything: bool) -> None:
    endpoint = session.named or session.settings.endpoint
    called = f" called {endpoint}" if endpoint else ""
    recently = "" if everything else ", and none ended recently"
    session.note(f"no process{called} is running under probe{recently}")
    session.err.line("  next: start one with `probe run python train.py`, or with PROBE=1 in its environment")
    if not everything:
        session.err.line("        `probe ps --all` lists every recording")
