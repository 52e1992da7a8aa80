"""`probe archive`: ship recordings to an archive, show its status, compact it, delete old runs."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probe.base.errors import EndpointUnknown, RecordingError, UsageError
from probe.recording import places
from probe.recording.recording import Meta
from probe_cli.core.figures import age, size
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.core.wait_line import waiting

if TYPE_CHECKING:
    from probe.archive.store import Store

EXAMPLES = (
    "probe archive --status",
    "probe archive JOB /shared/probe",
    "probe archive --compact /shared/probe",
    "probe archive --older-than 90d --yes /shared/probe",
)
_UNITS_S = {"h": 3600, "d": 86400, "w": 7 * 86400}
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_LONGEST_LIST = 20


def command(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN…] [URL]", help="Runs or jobs, then the archive."),
    ] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Show what this host has archived and what is waiting.")
    ] = False,
    compact: Annotated[bool, typer.Option("--compact", help="Merge the small files of the archive.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Delete runs that ended before then, e.g. 90d."),
    ] = None,
    keep_bytes: Annotated[
        str | None,
        typer.Option(
            "--keep-bytes", metavar="SIZE", help="Delete the oldest runs until the rest fit, e.g. 2T."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before deleting.")] = False,
) -> None:
    """Ship recordings of this host to an archive of many runs.

    Skips rows that are already in the archive. Without a URL, PROBE_ARCHIVE is used. The options act on an
    existing archive.
    """
    session: Session = context.obj
    session.no_endpoint("archive")
    names = list(words or ())
    if status:
        _status(session, names)
    elif compact:
        _compact(session, _only_url(session, names))
    elif older_than is not None or keep_bytes is not None:
        _delete_old(session, _only_url(session, names), older_than, keep_bytes, yes)
    else:
        _ship(session, names)


def _ship(session: Session, names: list[str]) -> None:
    from probe.archive.shipping import Shipper
    from probe.archive.store import open_store
    from probe.archive.throttle import Pace

    settings = session.settings
    url = names.pop() if names and (len(names) > 1 or not settings.archive) else settings.archive
    if not names or not url:
        raise UsageError(
            "name the runs and the archive",
            hint="For example `probe archive JOB /shared/probe`; `probe ps` lists the runs.",
        )
    home = places.home(settings)
    shipper = Shipper(home, open_store(url), Pace(0, 1.0, threading.Event()))
    running = 0
    for folder, meta in _chosen(home, names):
        name = escape_controls(f"{meta.job}/{meta.rank} (pid {meta.pid}, run {meta.run})")
        with waiting(session.err, f"shipping {name}"):
            done = shipper.ship(folder)
        rows = "rows" if done.rows is None else f"{done.rows:,} rows"
        session.out.line(f"{name}: {rows} in {escape_controls(done.url)}")
        running += not done.complete
    shipper.close()
    if running:
        session.note(f"{running} of them have not ended: unsealed rows are not in the archive yet")


def _chosen(home: Path, names: list[str]) -> list[tuple[Path, Meta]]:
    """The recordings with these job or run names; raises `EndpointUnknown` for a name without one."""
    found = []
    for folder, meta in _recordings(home):
        if any(name in (meta.run, meta.job) for name in names):
            found.append((folder, meta))
    for name in names:
        if not any(name in (meta.run, meta.job) for _, meta in found):
            raise EndpointUnknown(f"no recording on this host is called {name[:80]!r}")
    return found


def _recordings(home: Path) -> list[tuple[Path, Meta]]:
    found = []
    for folder in places.process_folders(home):
        try:
            found.append((folder, Meta.read(folder)))
        except RecordingError:  # damaged: `probe doctor` reports it
            continue
    return found


def _status(session: Session, names: list[str]) -> None:
    """Print what each archive has and lacks; works while an archive is unreachable."""
    from probe.archive import archive_state, shipped
    from probe.archive.shipping import destination
    from probe.archive.store import normal_url

    settings = session.settings
    home = places.home(settings)
    only = normal_url(_only_url(session, names)) if names else ""
    archives: dict[str, list[tuple[Path, Meta]]] = {}
    nowhere = 0
    for folder, meta in _recordings(home):
        url = only or destination(meta, settings)
        nowhere += not url
        if url:
            archives.setdefault(url, []).append((folder, meta))
    known = archive_state.read(home)
    for url, recordings in archives.items():
        states = [(folder, meta, shipped.read(folder, url)) for folder, meta in recordings]
        whole = sum(one.complete for _, _, one in states)
        rows = sum(one.rows or 0 for _, _, one in states)
        least = "at least " if any(one.rows is None for _, _, one in states) else ""
        session.out.line(
            f"{escape_controls(url)}: {whole} of {len(states)} recordings of this host are complete there, "
            f"{least}{rows:,} rows"
        )
        for folder, meta, one in states[-_LONGEST_LIST:]:
            if not one.complete:
                number = shipped.waiting(folder, meta.rank, meta.pid, one).rows
                last = f"last shipped {_ago(one.shipped_ns)}" if one.shipped_ns else "not shipped yet"
                name = escape_controls(f"{meta.job}/{meta.rank} (pid {meta.pid})")
                session.out.line(f"  {name}: {number:,} sealed rows wait, {last}")
        state = known.get(url, archive_state.State())
        if state.error:
            since = _ago(state.failing_since_ns or 0)
            session.out.line(f"  first failed {since}: {escape_controls(state.error)}")
            if state.hint:
                session.out.line(f"  {escape_controls(state.hint)}")
    if nowhere:
        session.note(
            f"{nowhere} recordings have no archive: set PROBE_ARCHIVE, or run `probe archive RUN URL`"
        )
    elif not archives:
        session.note(f"nothing is recorded in {home}")


def _compact(session: Session, url: str) -> None:
    from probe.archive import compaction

    store = _opened(url)
    with waiting(session.err, "merging files") as progress:

        def told(what: str) -> None:
            progress.what = f"merging files: {what}"

        done = compaction.compact(store, told=told)
    session.out.line(
        f"{escape_controls(store.url)}: {done.merged:,} files merged into {done.made:,}, "
        f"{done.deleted:,} deleted"
    )
    for note in done.notes:
        session.note(note)
    if done.waiting:
        session.note(
            f"{done.waiting:,} replaced files are kept for readers that still use them; a --compact in "
            f"{compaction.GRACE_S / 60:.0f} minutes or later deletes them"
        )


def _delete_old(
    session: Session, url: str, older_than: str | None, keep_bytes: str | None, yes: bool
) -> None:
    from probe.archive import retention

    age_s = None if older_than is None else _number(older_than, _UNITS_S, "90d")
    most = None if keep_bytes is None else int(_number(keep_bytes, _UNITS, "2T"))
    store = _opened(url)
    with waiting(session.err, "listing the archive"):
        wanted = retention.chosen(retention.runs(store), age_s, most)
    for run in wanted[:_LONGEST_LIST]:
        name = escape_controls(f"{run.job}, run {run.run}, attempt {run.attempt}")
        session.out.line(f"{name}: ended {_ago(run.last_ns)}, {size(run.size_bytes)}")
    total = f"{len(wanted):,} runs, {size(sum(run.size_bytes for run in wanted))}"
    if not wanted or not yes:
        if wanted and session.input.isatty():
            session.err.line(f"Delete {total} from {escape_controls(store.url)}? [y/N]")
            yes = session.input.readline().strip().lower() in ("y", "yes")
        if not yes:
            session.out.line(f"would delete: {total}")
            if wanted:
                session.note("nothing was deleted: add --yes")
            return
    retention.delete(store, wanted)
    session.out.line(f"deleted: {total}")


def _opened(url: str) -> Store:
    from probe.archive.store import open_store

    return open_store(url)


def _only_url(session: Session, names: list[str]) -> str:
    url = names[0] if names else session.settings.archive
    if len(names) > 1 or not url:
        raise UsageError("name one archive", hint="For example `probe archive --compact s3://bucket/probe`.")
    return url


def _number(text: str, units: dict[str, int], example: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]?)(?:i?B)?", text.strip())
    unit = None if found is None else next((one for one in units if one.lower() == found[2].lower()), None)
    if found is None or unit is None:
        raise UsageError(f"invalid value {text!r}", hint=f"For example {example}.")
    return float(found[1]) * units[unit]


def _ago(t_ns: int) -> str:
    return age(time.time() - t_ns * 1e-9)


