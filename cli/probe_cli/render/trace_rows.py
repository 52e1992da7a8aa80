"""Converts the rows of a recording into slices, instants and counters of a trace, for all ranks.

Every event has the time recorded in its row; values without a recorded time are omitted, or become arguments
of their step. Rows are read page by page, ordered by rank and time. Standard library only; runs in the
command's main thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import groupby
from typing import Any, NamedTuple

from probe.client.answer import Answer, Asker
from probe_cli.render import host_clocks
from probe_cli.render.trace_file import ROUNDING_NS, Slice

PAGE_ROWS = 20_000
_OPEN_NS = 1 << 62
_STEP_FIGURES = (
    "loss", "grad_norm", "lr", "micro_steps", "boundary", "data_s", "forward_s", "backward_s", "optimizer_s",
    "comm_s", "held_s", "eval_s", "checkpoint_s", "other_s", "samples", "tokens", "skipped", "sampled",
)
_COUNTERS = (
    ("python.steps", ("loss", "grad_norm", "lr")),
    ("process.memory", ("rss_bytes", "allocated_bytes", "reserved_bytes")),
)
_MOMENTS = (
    ("action", "probe.actions", "action || ' ' || state", ("state", "what", "arguments", "caller_role")),
    ("verdict", "probe.verdicts", "severity || ': ' || state",
     ("what", "why", "next", "recipe", "incident")),
    ("event", "python.events", "name", ("text", "value")),
    ("nonfinite", "python.nonfinite", "kind || ' in ' || direction", ("module", "param", "op", "cause")),
    ("exception", "python.exceptions", "type", ("message", "thread_name")),
    ("eval", "probe.evals", "'eval ' || outcome", ("code", "class", "held_s")),
)
"""Category, table, name and arguments of instant events."""


class Window(NamedTuple):
    """The time range of one rank in the trace, by its own clock."""

    rank: int
    start_ns: int
    end_ns: int


class TraceRows:
    """Reads one attempt's rows within the windows; `since` and `until` are steps, None means to the end."""

    def __init__(
        self, asker: Asker, attempt: int, windows: Sequence[Window], since: int, until: int | None
    ) -> None:
        self._asker = asker
        self._attempt = attempt
        self._windows = sorted(windows)
        self._until = until
        self._steps = f"step BETWEEN {since} AND {_OPEN_NS if until is None else until}"

    # Slices -------------------------------------------------------------------

    def steps(self) -> Iterator[Slice]:
        """Steps with their phases and data waits, ordered by rank and time."""
        return merge(self._steps_and_phases(), self._waits(), key=_order)

    def modules(self) -> Iterator[Slice]:
        """Module calls of sampled steps."""
        start = "coalesce(s.t_ns - CAST(round(s.wall_s * 1e9) AS BIGINT), before.t_ns)"
        sql = f"""
            SELECT m.rank, {start} + CAST(round(m.time_offset * 1e9) AS BIGINT) AS start, m.step,
                m.micro_step, m.module, m.stage, m.duration, m.recompute, m.allocated
            FROM (FROM python.torch_trace WHERE attempt = {self._attempt} AND {self._steps}) AS m
            JOIN w ON w.rank = m.rank
            LEFT JOIN (FROM python.steps WHERE attempt = {self._attempt}) AS s
                ON s.rank = m.rank AND s.step = m.step
            LEFT JOIN (FROM python.steps WHERE attempt = {self._attempt}) AS before
                ON before.rank = m.rank AND before.step = m.step - 1
            WHERE start IS NOT NULL AND m.duration IS NOT NULL
            ORDER BY m.rank, start, m.duration DESC, m.seq"""
        for row in self._rows(sql):
            name = row["module"] if row["stage"] == "forward" else f"{row['module']} {row['stage']}"
            end_ns = row["start"] + _ns(row["duration"])
            arguments = _known(row, ("step", "micro_step", "stage", "recompute", "allocated"))
            yield Slice(row["rank"], row["start"], end_ns, str(name), "module", arguments)

    def collectives(self) -> Iterator[Slice]:
        """Collectives, sends and receives. Without a recorded end, a slice has the length of the call."""
        names = ("pg", "ranks", "seq", "dtype", "shapes", "bytes", "peer", "call_site", "asynchronous",
                 "wait_s", "state", "source", "step")
        for row in self._table("python.collectives", ("op", "duration_s", *names)):
            seen = row["duration_s"] if row["duration_s"] is not None else row["wait_s"]
            if seen is None and row["state"] != "pending":
                continue
            going_on = row["duration_s"] is None and row["state"] == "pending"
            end_ns = None if going_on else row["t_ns"] + _ns(seen)
            arguments = _known(row, names)
            if row["duration_s"] is None and not going_on:
                arguments["end"] = "not seen: the length is that of the call"
            yield Slice(row["rank"], row["t_ns"], end_ns, str(row["op"]), "collective", arguments)

    def intervals(self) -> Iterator[Slice]:
        """Evaluations, checkpoints and other intervals between two steps."""
        names = ("step", "batches", "samples", "data_s", "loader", "recognised_by", "state")
        for row in self._table("python.intervals", ("kind", "duration_s", *names)):
            yield _slice(row, row["duration_s"], str(row["kind"]), "interval", names)

    def spans(self) -> Iterator[Slice]:
        """Blocks that the job timed itself."""
        names = ("step", "training", "failed")
        for row in self._table("python.spans", ("name", "duration_s", *names)):
            yield _slice(row, row["duration_s"], str(row["name"]), "span", names)

    # Moments and values ---------------------------------------------------------

    def moments(self) -> Iterator[tuple[int, int, str, str, dict[str, Any]]]:
        """Rank, time, name, category and arguments of instant events."""
        for category, table, name, names in _MOMENTS:
            for row in self._table(table, (f"{name} AS shown", "step", *names)):
                if row["shown"] is not None:
                    arguments = _known(row, ("step", *names))
                    yield row["rank"], row["t_ns"], str(row["shown"]), category, arguments

    def counters(self) -> Iterator[tuple[int, int, str, float]]:
        """Rank, time, name and value of counters. NULL, NaN and infinity are skipped."""
        for table, names in _COUNTERS:
            for row in self._table(table, names):
                for name in names:
                    if isinstance(row[name], (int, float)):
                        yield row["rank"], row["t_ns"], name, row[name]

    def meetings(self) -> Iterator[list[tuple[int, int, int | None]]]:
        """The (rank, start, end) of each collective recorded by several ranks. A sequence number that occurs
        twice on a rank (successive groups of the same name) is ambiguous and left out."""
        sql = f"""
            SELECT * FROM (
                SELECT c.rank, c.t_ns, c.pg, c.ranks, c.seq, c.duration_s,
                    count(*) OVER (PARTITION BY c.pg, c.ranks, c.seq) AS several,
                    count(*) OVER (PARTITION BY c.pg, c.ranks, c.seq, c.rank) AS twice
                FROM python.collectives AS c JOIN w ON w.rank = c.rank
                WHERE c.attempt = {self._attempt} AND c.t_ns BETWEEN w.start_ns AND w.end_ns
                    AND c.seq IS NOT NULL)
            WHERE several > 1 ORDER BY pg, ranks, seq, rank"""
        for _, same in groupby(self._rows(sql), key=lambda row: (row["pg"], row["ranks"], row["seq"])):
            rows = list(same)
            if all(row["twice"] == 1 for row in rows):
                yield [
                    (row["rank"], row["t_ns"],
                     None if row["duration_s"] is None else row["t_ns"] + _ns(row["duration_s"]))
                    for row in rows
                ]

    # Reading --------------------------------------------------------------------

    def _steps_and_phases(self) -> Iterator[Slice]:
        """Each step, then its phases: from python.pulse for the newest steps; for older steps derived from
        the time of their only loss, at which backward began."""
        sql = f"""
            SELECT s.rank, s.step, s.t_ns, s.wall_s, l.t_ns AS backward_ns,
                {', '.join(f's.{name}' for name in _STEP_FIGURES)}
            FROM python.steps AS s JOIN w ON w.rank = s.rank
            LEFT JOIN (
                SELECT rank, step, min(t_ns) AS t_ns FROM python.losses WHERE attempt = {self._attempt}
                GROUP BY rank, step HAVING count(*) = 1
            ) AS l ON l.rank = s.rank AND l.step = s.step AND s.micro_steps = 1
            WHERE s.attempt = {self._attempt} AND s.{self._steps} ORDER BY s.rank, s.t_ns"""
        changes = self._phase_changes()
        ranks = groupby(self._rows(sql), key=lambda row: row["rank"])
        rank, rows = next(ranks, (None, iter(())))
        for window in self._windows:
            if window.rank != rank:
                yield from self._of_rank(iter(()), changes.get(window.rank, []))
            else:
                yield from self._of_rank(rows, changes.get(window.rank, []))
                rank, rows = next(ranks, (None, iter(())))

    def _of_rank(self, rows: Iterator[dict[str, Any]], changes: list[Slice]) -> Iterator[Slice]:
        """Steps and phases of one rank. `changes`: the phases that python.pulse still has, in order."""
        oldest_ns = changes[0].start_ns if changes else _OPEN_NS
        last = -1
        for row in rows:
            rank, last = row["rank"], row["step"]
            start_ns, end_ns = row["t_ns"] - _ns(row["wall_s"]), row["t_ns"]
            yield Slice(rank, start_ns, end_ns, f"step {last}", "step", _known(row, ("step", *_STEP_FIGURES)))
            exact = [one for one in changes if one.arguments["step"] == last] if start_ns >= oldest_ns else []
            for one in exact or _phases(row, end_ns):
                until_ns = end_ns if one.end_ns is None else min(one.end_ns, end_ns)
                if until_ns > start_ns:
                    yield one._replace(start_ns=max(one.start_ns, start_ns), end_ns=until_ns)
        if self._until is None:
            yield from (one for one in changes if one.arguments["step"] > last)

    def _phase_changes(self) -> dict[int, list[Slice]]:
        """The newest phases of each rank, from python.pulse; a rank's last phase has no end."""
        found: dict[int, list[Slice]] = {}
        rows = self._table("python.pulse", ("step", "micro_step", "phase"))
        for rank, of_rank in groupby(rows, key=lambda row: row["rank"]):
            changes = [row for row in of_rank if row["step"] is not None]
            ends = [row["t_ns"] for row in changes[1:]]
            found[rank] = [
                Slice(
                    rank, row["t_ns"], end_ns, str(row["phase"]), "phase",
                    _known(row, ("step", "micro_step")),
                )
                for row, end_ns in zip(changes, [*ends, None], strict=True)
                if row["phase"] != "other"
            ]
        return found

    def _waits(self) -> Iterator[Slice]:
        names = ("step", "micro_step", "loader", "samples", "state", "epoch", "place")
        for row in self._table("python.batches", ("fetch_s", *names)):
            if row["fetch_s"] is not None or row["state"] == "pending":
                yield _slice(row, row["fetch_s"], "data", "data", names)

    def _table(self, table: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Rows of a table within the windows, ordered by rank and time."""
        return self._rows(
            f"SELECT rank, t_ns, {', '.join(names)} FROM {table} JOIN w USING (rank) WHERE attempt ="
            f" {self._attempt} AND t_ns BETWEEN start_ns AND end_ns ORDER BY rank, t_ns"
        )

    def _rows(self, sql: str) -> Iterator[dict[str, Any]]:
        """All rows of a statement, which can read the windows as table `w`."""
        windows = ", ".join(f"({one.rank}, {one.start_ns}, {one.end_ns})" for one in self._windows)
        offset = 0
        while True:
            page = f"{sql} LIMIT {PAGE_ROWS} OFFSET {offset}"
            whole = f"WITH w(rank, start_ns, end_ns) AS (VALUES {windows}) {page}"
            answer = Answer.query(self._asker, whole, PAGE_ROWS)
            yield from answer.records()
            offset += len(answer)
            if not len(answer) or (len(answer) < PAGE_ROWS and not answer.truncated):
                return


def offsets(
    asker: Asker, attempt: int, windows: Sequence[Window], hosts: dict[int, str]
) -> dict[str, host_clocks.Offset | None]:
    """The clock offset of each host from the host of the lowest rank, from their common collectives within
    the windows; None if there are none."""
    first = hosts[min(hosts)]
    others = sorted(set(hosts.values()) - {first})
    if not others:
        return {}
    number = {host: place for place, host in enumerate([first, *others])}
    shown = ", ".join(
        f"({one.rank}, {number[hosts[one.rank]]}, {one.start_ns}, {one.end_ns})" for one in windows
    )
    operations = ", ".join(f"'{name}'" for name in host_clocks.MEETINGS)
    sql = f"""
        WITH w(rank, host, start_ns, end_ns) AS (VALUES {shown}),
        met AS (
            SELECT host, pg, ranks, seq, max(t_ns) AS last_start, count(*) AS many,
                min(t_ns + CAST(round(duration_s * 1e9) AS BIGINT)) AS first_end
            FROM python.collectives JOIN w USING (rank)
            WHERE attempt = {attempt} AND t_ns BETWEEN start_ns AND end_ns AND seq IS NOT NULL
                AND duration_s IS NOT NULL AND op IN ({operations})
            GROUP BY host, pg, ranks, seq HAVING count(*) = count(DISTINCT rank)
        ),
        apart AS (
            SELECT b.host, b.last_start - a.first_end AS low, b.first_end - a.last_start AS high,
                b.first_end - a.first_end AS ends
            FROM met AS a JOIN met AS b USING (pg, ranks, seq) WHERE a.host = 0 AND b.host > 0
        )
        SELECT host, max(low) AS low, min(high) AS high, median(ends) AS usual,
            greatest(quantile_cont(ends, 0.95) - median(ends), median(ends) - quantile_cont(ends, 0.05))
                AS spread,
            count(*) AS meetings
        FROM apart GROUP BY host"""
    found: dict[str, host_clocks.Offset | None] = dict.fromkeys(others)
    for row in Answer.query(asker, sql, len(others)).records():
        common = host_clocks.Common(row["low"], row["high"], row["usual"], row["spread"], row["meetings"])
        found[others[row["host"] - 1]] = host_clocks.offset(common)
    return found


def _phases(row: dict[str, Any], end_ns: int) -> list[Slice]:
    """The phases of a step whose times follow from its rows: forward ends where its only backward begins, and
    the optimizer ends the step. Their durations exclude communication inside them."""
    found: list[tuple[str, int, int]] = []
    began_ns = row["backward_ns"]
    if began_ns is not None and row["forward_s"] is not None:
        found.append(("forward", began_ns - _ns(row["forward_s"]), began_ns))
    if began_ns is not None and row["backward_s"] is not None:
        found.append(("backward", began_ns, began_ns + _ns(row["backward_s"])))
    if row["boundary"] == "optimizer" and row["optimizer_s"] is not None:
        found.append(("optimizer", end_ns - _ns(row["optimizer_s"]), end_ns))
    return [
        Slice(row["rank"], from_ns, to_ns, name, "phase", {"step": row["step"]})
        for name, from_ns, to_ns in found
    ]


def _slice(
    row: dict[str, Any], length_s: float | None, name: str, category: str, names: Sequence[str]
) -> Slice:
    end_ns = None if length_s is None else row["t_ns"] + _ns(length_s)
    return Slice(row["rank"], row["t_ns"], end_ns, name, category, _known(row, names))


def _order(one: Slice) -> tuple[int, int, int]:
    """Sort key: a step comes before its contents, even if their clock readings differ slightly."""
    before_ns = ROUNDING_NS if one.category == "step" else 0
    return one.rank, one.start_ns - before_ns, -(_OPEN_NS if one.end_ns is None else one.end_ns)


def _known(row: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The measured values: NULL is left out."""
    return {name: row[name] for name in names if row[name] is not None}


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
