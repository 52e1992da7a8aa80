"""Formats a live view: one line per job or rank, with curves and bars, cut to the terminal. Pure.

Only names, states, bars and verdicts are cut to fit, never numbers. Severity, phase and selection are written
as text, so that nothing is lost without colour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from probe.diagnose.recent_steps import PHASES
from probe_cli.core import figures
from probe_cli.core.live_figures import UNREAD, Figures
from probe_cli.core.terminal import Output, cut, display_width, escape_controls
from probe_cli.render.process_state import COLOURS

LETTERS = {"data": "d", "forward": "f", "backward": "b", "optimizer": "o", "comm": "c", "other": "."}
"""The letter of each phase in a bar."""
LEGEND = "  ".join(f"{letter} {name}" for name, letter in LETTERS.items())
_PHASE_COLOURS = {
    "data": "yellow", "forward": "green", "backward": "cyan", "optimizer": "magenta", "comm": "red",
    "other": "dim",
}
_SEVERITY_COLOURS = {"alarm": "red", "notice": "yellow"}
_LEAST_VERDICT = 20
"""Least columns for a verdict next to its row; with less space it appears only below the table."""


class Verdict(NamedTuple):
    """An open incident: severity, its rank (None: the whole job), what happened, and since when."""

    severity: str
    rank: int | None
    what: str
    opened_ns: int


class Row(NamedTuple):
    """A job of this host, or a rank of a job. `endpoint` and `job`: the endpoints of the row and of its job
    for commands; `key`: identifies the row across refreshes; `ranks`: number of live ranks and of all."""

    key: tuple[Any, ...]
    name: str
    endpoint: str
    job: str
    ranks: tuple[int, int]
    process: Mapping[str, Any]
    """The rank's row of `/v1/processes`; for a job, the row of its lowest live rank."""
    state: str
    """State and how it ended; for a job, the worst state of its ranks."""
    lives: bool
    steps_per_s: float | None = None
    figures: Figures = UNREAD
    memory_bytes: int | None = None
    """For a job, the memory of the rank that uses most."""
    verdict: Verdict | None = None
    """The newest open verdict."""


class _Column(NamedTuple):
    """A column: its usual width, the least width it can be cut to (None: never cut), and a function for its
    text at a given width."""

    heading: str
    width: int
    text: Callable[[Row, int], str]
    least: int | None = None
    number: bool = False


def _number(found: object) -> str:
    return "-" if found is None else figures.figure(found)


def _rate(found: float | None) -> str:
    return "-" if found is None else f"{found:.0f}" if found >= 99.95 else f"{found:#.3g}"


def _ranks(alive: int, known: int) -> str:
    return str(known) if alive in (0, known) else f"{alive}/{known}"


def _size(found: int | None) -> str:
    return "-" if found is None else figures.size(found)


_NAME = _Column("JOB", 6, lambda row, _: row.name, 6)
_RANKS = _Column("RANKS", 5, lambda row, _: _ranks(*row.ranks), number=True)
_FIGURES = (
    _Column("STATE", 9, lambda row, _: row.state, 9),
    _Column("STEP", 8, lambda row, _: figures.count(row.process.get("step")), number=True),
    _Column("STEP/S", 6, lambda row, _: _rate(row.steps_per_s), number=True),
    _Column("LOSS", 7, lambda row, _: _number(row.figures.loss), number=True),
    _Column("", 8, lambda row, width: figures.sparkline(row.figures.curve, width), 4),
    _Column("PHASES", 12, lambda row, width: stacked(row.figures.shares, width), 6),
    _Column("MEMORY", 8, lambda row, _: _size(row.memory_bytes), number=True),
)
_LEFT = _Column("LEFT", 10, lambda row, _: figures.span(row.process.get("left_s")), number=True)
_WIDE = 100
"""Least width of a terminal for the column `_LEFT`."""
_CUT_FIRST = ("STATE", "JOB", "PHASES", "")
"""The columns that are narrowed if not all fit, in this order."""


def stacked(shares: Mapping[str, float], width: int) -> str:
    """The phases' shares as a bar of letters that fills the width; `-` if none is known."""
    if not shares:
        return "-"
    parts = {name: shares.get(name, 0.0) * width for name in PHASES}
    sizes = {name: int(part) for name, part in parts.items()}
    left = width - sum(sizes.values())
    for name in sorted(parts, key=lambda name: sizes[name] - parts[name])[:left]:
        sizes[name] += 1
    return "".join(LETTERS[name] * size for name, size in sizes.items())


def table_lines(
    rows: Sequence[Row], out: Output, width: int | None, *, of_ranks: bool, selected: int | None = None
) -> Iterator[str]:
    """The heading and one line per row; `of_ranks`: rows are ranks, not jobs; `selected`: index of the
    selected row; `width`: None cuts nothing."""
    names = [_NAME._replace(heading="RANK", width=4, least=None)] if of_ranks else [_NAME, _RANKS]
    columns = [*names, *_FIGURES]
    if (width is None or width >= _WIDE) and any(row.process.get("left_s") is not None for row in rows):
        columns.append(_LEFT)
    widths, spare = _widths(columns, rows, width)
    beside = spare is None or spare > _LEAST_VERDICT
    headings = [_padded(one.heading, size, one.number) for one, size in zip(columns, widths, strict=True)]
    yield out.style(_cut("  " + " ".join([*headings, *(["VERDICT"] if beside else [])]), width), "bold")
    for place, row in enumerate(rows):
        cells = [
            _padded(cut(escape_controls(column.text(row, size)), size), size, column.number)
            for column, size in zip(columns, widths, strict=True)
        ]
        mark = "!" if row.verdict and row.verdict.severity in _SEVERITY_COLOURS else " "
        start = (">" if place == selected else " ") + mark
        if spare is not None and spare < 0:  # a terminal too narrow for its numbers
            yield _cut(start + " ".join(cells), width)
            continue
        verdict = _beside(row, None if spare is None else spare - 1) if beside else ""
        yield (start + " ".join([*_painted(cells, row, columns, out), verdict])).rstrip()


def _widths(
    columns: Sequence[_Column], rows: Sequence[Row], terminal: int | None
) -> tuple[list[int], int | None]:
    """The width of each column, and the columns of the terminal left over (negative: too narrow; None: no
    terminal). If there is room, never less than the usual width, so that columns keep their positions."""
    longest = [
        max([len(one.heading), *(display_width(escape_controls(one.text(row, one.width))) for row in rows)])
        for one in columns
    ]
    if terminal is None:
        return longest, None
    widths = [max(one.width, size) for one, size in zip(columns, longest, strict=True)]
    spare = terminal - len("> ") - sum(widths) - (len(widths) - 1)
    for heading in _CUT_FIRST:
        for place, one in enumerate(columns):
            if one.heading == heading and one.least is not None and spare < 0:
                narrower = max(one.least, widths[place] + spare)
                spare += widths[place] - narrower
                widths[place] = narrower
    return widths, spare


def _painted(cells: Sequence[str], row: Row, columns: Sequence[_Column], out: Output) -> Iterator[str]:
    for cell, column in zip(cells, columns, strict=True):
        if not row.lives and column.heading != "STATE":
            yield out.style(cell, "dim")
        elif column.heading == "STATE":
            colour = COLOURS.get(row.state.partition(":")[0])
            yield out.style(cell, colour) if colour else cell
        elif column.heading == "PHASES" and row.figures.shares:
            yield "".join(
                out.style(letter * cell.count(letter), _PHASE_COLOURS[name])
                for name, letter in LETTERS.items() if letter in cell
            ) + " " * cell.count(" ")
        else:
            yield cell


def _padded(text: str, width: int, number: bool) -> str:
    space = " " * max(0, width - display_width(text))
    return space + text if number else text + space


def _beside(row: Row, width: int | None) -> str:
    if row.verdict is None:
        return ""
    return _cut(f"{row.verdict.severity}: {escape_controls(row.verdict.what)}", width)


def _cut(text: str, width: int | None) -> str:
    return text if width is None else cut(text, width)


def verdict_line(found: Verdict, now_ns: int, out: Output, width: int) -> str:
    """A verdict in one line: severity, rank, age, and what happened."""
    since = figures.age(max(0.0, (now_ns - found.opened_ns) / 1e9))
    whom = "" if found.rank is None else f" rank {found.rank},"
    line = _cut(escape_controls(f"{found.severity.upper()}{whom} {since}: {found.what}"), width)
    colour = _SEVERITY_COLOURS.get(found.severity)
    return out.style(line, colour) if colour else line
