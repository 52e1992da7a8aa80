"""`probe trace`: write recorded steps of all ranks on one timeline, as a file for Perfetto.

Rows are read and written page by page. The trace uses only the recording, so it costs the job nothing and
works for an ended job.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, NamedTuple, TextIO

from probe.base import rank_sets
from probe.base.errors import EndpointUnknown, UsageError
from probe.client.answer import Answer
from probe_cli.core.act_client import file_for, one_of
from probe_cli.core.figures import count, duration, size
from probe_cli.core.options import Ranks
from probe_cli.core.parameters import Option
from probe_cli.core.session import Session
from probe_cli.core.wait_line import waiting
from probe_cli.render.host_clocks import Offset
from probe_cli.render.trace_file import MOST_LANES, TraceFile
from probe_cli.render.trace_rows import TraceRows, Window, offsets

EXAMPLES = (
    "probe PID trace -o steps.json",
    "probe JOB trace --last 20 --rank 0-3 -o steps.json.gz",
)
LAST = 100
"""Default number of steps."""
MOST_ROWS = 500_000
"""About 100 MB of JSON, which Perfetto opens in seconds; a longer range is cut to its newest steps."""
_OPEN_NS = 1 << 62


class Rank(NamedTuple):
    """One rank of the newest attempt; `last_step` is None before the first step ended."""

    rank: int
    pid: int
    host: str
    first_ns: int
    last_step: int | None


def command(
    session: Session,
    output: Annotated[
        str | None,
        Option(
            "--output", "-o", metavar="FILE",
            help="Trace file; compressed if its name ends in .gz (default: a new one here).",
        ),
    ] = None,
    since: Annotated[int | None, Option("--since", metavar="STEP", min=0, help="First step.")] = None,
    until: Annotated[int | None, Option("--until", metavar="STEP", min=0, help="Last step.")] = None,
    last: Annotated[
        int | None, Option("--last", metavar="N", min=1, help="The last N steps (default: 100).")
    ] = None,
    rank: Ranks = None,
) -> None:
    """Write recorded steps as a trace for Perfetto.

    Shows all ranks on one timeline: steps, phases, modules of sampled steps, collectives with arrows from the
    rank that entered last, data waits, evaluations, checkpoints, actions, verdicts, loss and memory. Reads
    only the recording and does not contact the job.
    """
    if last is not None and (since is not None or until is not None):
        one_of(last=last, since=since, until=until)
    with waiting(session.err, "reading the recording and writing the trace"):
        attempt, ranks = _ranks(session, None if rank is None else _set(rank))
        since, until, cut = _range(session, attempt, ranks, since, until, LAST if last is None else last)
        windows = list(_windows(session, attempt, ranks, since, until))
        path = _path(session, output)
        clocks = offsets(session, attempt, windows, {one.rank: one.host for one in ranks})
        with _opened(path) as file:
            ahead_ns = {one.rank: _ahead_ns(clocks.get(one.host)) for one in ranks}
            origin_ns = min(one.start_ns - ahead_ns[one.rank] for one in windows)
            trace = TraceFile(file, {one.rank: _name(one) for one in ranks}, ahead_ns, origin_ns)
            arrows = _write(trace, TraceRows(session, attempt, windows, since, until))
            trace.close({
                "made_by": "probe trace", "steps": f"{since}-{'' if until is None else until}",
                "ranks": rank_sets.as_text(one.rank for one in ranks), "attempt": attempt,
                "time_0_unix_ns": str(origin_ns), "clocks": _clock_lines(clocks, ranks), "arrows": arrows,
                "left_out": trace.left_out,
            })
    of = rank_sets.named(one.rank for one in ranks)
    steps = f"steps from {since} on" if until is None else f"steps {since} to {until}"
    session.out.line(f"{count(trace.events)} events of {of}, {steps}: {path} ({size(os.path.getsize(path))})")
    session.out.stream.flush()
    for note in (*cut, *_clock_lines(clocks, ranks)):
        session.note(note)
    if trace.left_out:
        session.note(f"{count(trace.left_out)} slices left out: more than {MOST_LANES} at the same time")
    session.err.line("  next: open it in https://ui.perfetto.dev, read only in the browser")


# Choosing steps and ranks -----------------------------------------------------


def _set(text: str) -> set[int]:
    try:
        return set(rank_sets.from_text(text))
    except ValueError:
        raise UsageError(f"--rank {text}: not a set of ranks", hint="For example 3, or 0,2-7.") from None


def _ranks(session: Session, wanted: set[int] | None) -> tuple[int, list[Rank]]:
    """The newest attempt and its ranks; raises `EndpointUnknown` if none of them is recorded."""
    tables = ("python.steps", "python.batches", "python.collectives", "python.pulse")
    union = " UNION ALL ".join(
        f"SELECT rank, attempt, pid, t_ns, {'step' if table == 'python.steps' else 'NULL'} AS step"
        f" FROM {table}"
        for table in tables
    )
    answer = Answer.query(
        session,
        "SELECT attempt, rank, min(pid) AS pid, min(t_ns) AS first_ns, max(step) AS last_step"
        f" FROM ({union}) GROUP BY attempt, rank ORDER BY attempt DESC, rank",
    )
    rows = answer.records()
    listed = Answer.query(session, "SELECT rank, host FROM cluster.ranks")
    for note in dict.fromkeys((*answer.notes, *listed.notes)):
        session.note(note)  # such as a host that did not answer
    hosts = {row["rank"]: row["host"] for row in listed.records()}
    newest = [row for row in rows if row["attempt"] == rows[0]["attempt"]]
    chosen = [row for row in newest if wanted is None or row["rank"] in wanted]
    if not chosen:
        recorded = f"of {rank_sets.named(row['rank'] for row in newest)} is" if newest else "is"
        raise EndpointUnknown(
            f"nothing to write: only a recording {recorded} here" if newest else "nothing is recorded yet",
            hint="Give other ranks with --rank." if newest else "Try again when the job has finished a step.",
        )
    return newest[0]["attempt"], [
        Rank(row["rank"], row["pid"], str(hosts.get(row["rank"]) or ""), row["first_ns"], row["last_step"])
        for row in chosen
    ]


def _range(
    session: Session, attempt: int, ranks: list[Rank], since: int | None, until: int | None, last: int
) -> tuple[int, int | None, list[str]]:
    """First and last step to write (None: everything recorded after the first), and a note if the range was
    cut."""
    newest = max((one.last_step for one in ranks if one.last_step is not None), default=-1)
    if since is None:
        since = max(0, newest - last + 1) if until is None else 0
    if until is not None and until < since:
        raise UsageError(f"--until {until} is before step {since}", hint="Give the first step with --since.")
    if since > newest >= 0:
        raise UsageError(f"step {since} has not ended: the last one is {newest}", hint="Leave out --since.")
    tables = ("python.steps", "python.batches", "python.collectives", "python.torch_trace")
    only = f"attempt = {attempt} AND rank IN ({', '.join(str(one.rank) for one in ranks)})"
    union = " UNION ALL ".join(
        f"SELECT step FROM {table} WHERE {only} AND step >= {since}" for table in tables
    )
    upto = "" if until is None else f" WHERE step <= {until}"
    # Counting back from the newest step, the first step at which the rows exceed MOST_ROWS.
    found = Answer.query(
        session,
        f"SELECT max(step) AS step FROM (SELECT step, sum(count(*)) OVER (ORDER BY step DESC) AS many"
        f" FROM ({union}){upto} GROUP BY step) WHERE many > {MOST_ROWS}",
    ).records()
    too_far = found[0]["step"]
    if too_far is None:
        return since, until, []
    first = min(too_far + 1, newest if until is None else min(until, newest))  # one step is always written
    if first <= since:
        return since, until, []
    note = (
        f"steps {since} to {first - 1} are left out: a trace has at most {count(MOST_ROWS)} rows;"
        " choose with --since, --until and --rank"
    )
    return first, until, [note]


def _windows(
    session: Session, attempt: int, ranks: list[Rank], since: int, until: int | None
) -> Iterator[Window]:
    """The time window of the steps on each rank; for a rank without any of them, from its last step on."""
    upto = "" if until is None else f" FILTER (WHERE step <= {until})"
    rows = Answer.query(
        session,
        "SELECT rank,"
        f" min(t_ns - CAST(round(wall_s * 1e9) AS BIGINT)) FILTER (WHERE step >= {since}) AS began,"
        f" max(t_ns){upto} AS ended, max(t_ns) AS newest"
        f" FROM python.steps WHERE attempt = {attempt} GROUP BY rank",
    ).records()
    of = {row["rank"]: row for row in rows}
    for one in ranks:
        row = of.get(one.rank, {})
        began_ns = row.get("began") or row.get("newest") or one.first_ns
        passed = until is not None and one.last_step is not None and one.last_step >= until
        yield Window(one.rank, began_ns, row["ended"] if passed else _OPEN_NS)


def _write(trace: TraceFile, rows: TraceRows) -> int:
    """Write all slices, instants, counters and arrows; returns the number of arrows."""
    for track, found in (
        ("steps", rows.steps()), ("modules", rows.modules()), ("intervals", rows.intervals()),
        ("spans", rows.spans()),
    ):
        for _ in trace.slices(track, found):
            pass
    collectives = trace.slices("collectives", rows.collectives())
    lanes = {(one.rank, one.start_ns): lane for one, lane in collectives}
    for moment in rows.moments():
        trace.instant(*moment)
    for counter in rows.counters():
        trace.counter(*counter)
    arrows = 0
    for met in rows.meetings():
        if any((rank, start_ns) not in lanes for rank, start_ns, _ in met):
            continue  # recorded after the slices were read: the job is still running
        shown = [
            (trace.shown_ns(rank, start_ns), None if end_ns is None else trace.shown_ns(rank, end_ns), rank,
             lanes[rank, start_ns])
            for rank, start_ns, end_ns in met
        ]
        entered_ns, _, last, lane = max(shown, key=lambda one: one[0])
        for start_ns, end_ns, rank, other_lane in shown:
            if rank != last:
                arrows += 1
                latest_ns = entered_ns + 1 if end_ns is None else min(entered_ns + 1, end_ns - 1)
                other = (rank, other_lane, max(start_ns, latest_ns))
                trace.arrow(arrows, "entered last", (last, lane, entered_ns), other)
    return arrows


# Notes --------------------------------------------------------------------------


def _name(one: Rank) -> str:
    return f"rank {one.rank} (pid {one.pid}{f' on {one.host}' if one.host else ''})"


def _ahead_ns(found: Offset | None) -> int:
    return 0 if found is None else found.ahead_ns


def _clock_lines(clocks: Mapping[str, Offset | None], ranks: list[Rank]) -> list[str]:
    """Notes on how the hosts' clocks were aligned; none for a single host, whose ranks share one clock."""
    lines = []
    for host, found in clocks.items():
        at = f"{host}: its clock"
        if found is None:
            lines.append(f"{at} is not aligned with that of {ranks[0].host}: no collective in common")
            continue
        ahead_s, error_s = found.ahead_ns / 1e9, found.error_ns / 1e9
        side = "ahead of" if ahead_s >= 0 else "behind"
        lines.append(
            f"{at} is {duration(abs(ahead_s))} {side} that of {ranks[0].host}, give or take"
            f" {duration(error_s)}, by their collectives; the trace is corrected"
            + ("" if found.consistent else "; no single offset fits all: a clock was set, or they drift")
        )
    return lines


# The file -----------------------------------------------------------------------


def _path(session: Session, given: str | None) -> str:
    return file_for(session, None, "trace", ".json") if given is None else given


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    """Open the file to write; it is renamed to `path` once complete. Raises `UsageError`."""
    part = f"{path}.part"
    try:
        if path.endswith(".gz"):
            with gzip.open(part, "wt", compresslevel=4, encoding="utf-8") as file:
                yield file
        else:
            with open(part, "w", encoding="utf-8") as plain:
                yield plain
        os.replace(part, path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Give another file with --output."
        ) from None
    finally:
        if os.path.exists(part):
            os.unlink(part)
