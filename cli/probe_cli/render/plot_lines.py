"""Plots the columns of an answer over its first column: in a terminal, as SVG or as PNG.

NULL is a gap in its line, never 0. NaN and infinity have no place on an axis: they are gaps too, and are
counted. plotille draws in the terminal, matplotlib draws the PNG; both are imported on use. Runs in the
command's main thread.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from typing import NamedTuple

from probe.base.errors import PackageMissing, UsageError
from probe.client.answer import Answer
from probe_cli.core.figures import figure, value
from probe_cli.core.terminal import Output, cut, escape_controls

ROWS = 16
"""Height of a terminal plot without axis and legend, so that the whole fits into 80 × 24."""
_COLOURS = ("blue", "yellow", "magenta", "green", "cyan", "red")
_MARKERS = "abcdefghij"
_FILLS = ("#0072b2", "#e69f00", "#cc79a7", "#009e73", "#56b4e9", "#d55e00")
"""Colours that are distinguishable with colour blindness (Okabe and Ito 2008)."""
_DASHES = ("", "8 3", "2 3", "10 3 2 3", "5 5", "1 4")
_WIDTH_PX, _HEIGHT_PX = 900, 420
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 70, 20, 30, 45
_TICKS = 5

Point = tuple[float, float]


class Line(NamedTuple):
    """One value column, split at its gaps into parts of at least one point."""

    name: str
    parts: list[list[Point]]

    @property
    def points(self) -> Iterator[Point]:
        """All its points."""
        return (point for part in self.parts for point in part)


class Plot(NamedTuple):
    """The data of a plot; `endless`: number of values that were NaN or infinite."""

    x_name: str
    lines: list[Line]
    endless: int

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Smallest and largest x, smallest and largest y; never equal."""
        points = [point for line in self.lines for point in line.points]
        x_low, x_high = _apart([x for x, _ in points])
        y_low, y_high = _apart([y for _, y in points])
        return x_low, x_high, y_low, y_high


def plot_of(answer: Answer) -> Plot:
    """The plot of an answer's rows; raises `UsageError` if they are not numeric, or nothing is left."""
    if len(answer.columns) < 2:
        raise UsageError(
            "a plot needs two columns: x and a value", hint='E.g. "SELECT step, loss FROM python.steps".'
        )
    x_name, *names = answer.names
    endless = 0
    parts: list[list[list[Point]]] = [[[]] for _ in names]
    for row in answer.rows:
        x, *ys = (_number(one, name) for one, name in zip(row, answer.names, strict=True))
        endless += sum(one is not None and not math.isfinite(one) for one in (x, *ys))
        if x is None or not math.isfinite(x):
            continue
        for found, y in zip(parts, ys, strict=True):
            if y is not None and math.isfinite(y):
                found[-1].append((x, y))
            elif found[-1]:
                found.append([])
    lines = [Line(name, [part for part in found if part]) for name, found in zip(names, parts, strict=True)]
    if not any(line.parts for line in lines):
        raise UsageError("nothing to plot: no row has an x and a value", hint="`query` shows the rows.")
    return Plot(x_name, lines, endless)


def _number(found: object, column: str) -> float | None:
    number = value(found)
    if number is None and found is not None:
        raise UsageError(f"column {column} is not numeric: {found!r:.40}", hint="CAST it, or leave it out.")
    return number


def _apart(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    if low < high:
        return low, high
    return low - (abs(low) or 1.0) / 2, high + (abs(high) or 1.0) / 2


# Terminal -----------------------------------------------------------------------


def terminal_lines(plot: Plot, out: Output, width: int) -> Iterator[str]:
    """The plot as lines of text, at most `width` columns wide; without colour, letters mark the lines."""
    try:
        from plotille import Canvas
    except ImportError:
        raise PackageMissing(
            "plotille, which draws in a terminal, is not installed in this Python",
            hint="pip install plotille, or write an image with -o x.svg.",
        ) from None
    x_low, x_high, y_low, y_high = plot.bounds
    labels = [figure(y_high), figure((y_low + y_high) / 2), figure(y_low)]
    left = max(map(len, labels))
    columns = max(10, width - left - 2)
    # A canvas excludes its upper bound: extend it so that the largest value gets the last dot.
    x_end = x_low + (x_high - x_low) * 2 * columns / (2 * columns - 1)
    y_end = y_low + (y_high - y_low) * 4 * ROWS / (4 * ROWS - 1)
    canvas = Canvas(columns, ROWS, x_low, y_low, x_end, y_end)
    marked = len(plot.lines) > 1 and not out.colour
    for number, line in enumerate(plot.lines):
        colour = _COLOURS[number % len(_COLOURS)] if out.colour else None
        for part in line.parts:
            canvas.point(*part[0], color=colour)
            for one, other in pairwise(part):
                canvas.line(*one, *other, color=colour)
        if marked:
            points = list(line.points)
            for x, y in points[:: max(1, len(points) // 8)]:
                canvas.point(x, y, marker=_MARKERS[number % len(_MARKERS)])
    for row, text in enumerate(canvas.plot(linesep="\n").split("\n")[:ROWS]):
        label = {0: labels[0], ROWS // 2: labels[1], ROWS - 1: labels[2]}.get(row, "")
        yield f"{label:>{left}} │{text}".rstrip()
    yield " " * left + " └" + "─" * columns
    ends = figure(x_low), figure(x_high)
    name = cut(escape_controls(plot.x_name), max(1, columns - sum(map(len, ends)) - 2))
    yield f"{' ' * (left + 2)}{ends[0]}{name:^{max(0, columns - sum(map(len, ends)))}}{ends[1]}"
    for number, line in enumerate(plot.lines):
        key = _MARKERS[number % len(_MARKERS)] if marked else "─"
        yield cut(f"{' ' * (left + 2)}{key} {escape_controls(line.name)}", width) if not out.colour else (
            f"{' ' * (left + 2)}{_coloured('─', number)} {cut(escape_controls(line.name), columns - 2)}"
        )


def _coloured(text: str, number: int) -> str:
    codes = {"red": 31, "green": 32, "yellow": 33, "blue": 34, "magenta": 35, "cyan": 36}
    return f"\x1b[{codes[_COLOURS[number % len(_COLOURS)]]}m{text}\x1b[0m"


# Files --------------------------------------------------------------------------


def svg(plot: Plot, title: str) -> str:
    """The plot as SVG without scripts; names are escaped."""
    x_low, x_high, y_low, y_high = plot.bounds

    def at(x: float, y: float) -> tuple[float, float]:
        inside_px = _WIDTH_PX - _LEFT_PX - _RIGHT_PX, _HEIGHT_PX - _TOP_PX - _BOTTOM_PX
        return (
            _LEFT_PX + (x - x_low) / (x_high - x_low) * inside_px[0],
            _HEIGHT_PX - _BOTTOM_PX - (y - y_low) / (y_high - y_low) * inside_px[1],
        )

    bottom_px, right_px = _HEIGHT_PX - _BOTTOM_PX, _WIDTH_PX - _RIGHT_PX
    made = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH_PX} {_HEIGHT_PX}" width="{_WIDTH_PX}"'
        f' height="{_HEIGHT_PX}" font-family="sans-serif" font-size="12" role="img">',
        f"<title>{_text(title)}</title>", f'<rect width="{_WIDTH_PX}" height="{_HEIGHT_PX}" fill="#fff"/>',
    ]
    for tick in _ticks(y_low, y_high):
        _, y_px = at(x_low, tick)
        made.append(f'<path d="M{_LEFT_PX} {y_px:.1f}H{right_px}" stroke="#ddd"/>')
        made.append(f'<text x="{_LEFT_PX - 6}" y="{y_px + 4:.1f}" text-anchor="end">{figure(tick)}</text>')
    for tick in _ticks(x_low, x_high):
        x_px, _ = at(tick, y_low)
        made.append(f'<text x="{x_px:.1f}" y="{bottom_px + 16}" text-anchor="middle">{figure(tick)}</text>')
    made.append(f'<path d="M{_LEFT_PX} {_TOP_PX}V{bottom_px}H{right_px}" fill="none" stroke="#333"/>')
    middle_px = (_LEFT_PX + right_px) / 2
    made.append(
        f'<text x="{middle_px}" y="{_HEIGHT_PX - 8}" text-anchor="middle">{_text(plot.x_name)}</text>'
    )
    for number, line in enumerate(plot.lines):
        fill, dash = _FILLS[number % len(_FILLS)], _DASHES[number % len(_DASHES)]
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        made.append(f'<g fill="none" stroke="{fill}" stroke-width="1.5"{dashed}>')
        made.append(f"<title>{_text(line.name)}</title>")
        for part in line.parts:
            places = " ".join("{:.1f},{:.1f}".format(*at(*point)) for point in part)
            x_px, y_px = at(*part[0])
            made.append(
                f'<polyline points="{places}"/>' if len(part) > 1
                else f'<circle cx="{x_px:.1f}" cy="{y_px:.1f}" r="2" fill="{fill}"/>'
            )
        x_px = _LEFT_PX + 10 + number * 150
        made.append(f'<path d="M{x_px} 16h20"/></g>')
        made.append(f'<text x="{x_px + 26}" y="20">{_text(cut(line.name, 18))}</text>')
    return "\n".join([*made, "</svg>\n"])


def png(plot: Plot, title: str) -> bytes:
    """The plot as PNG; raises `PackageMissing` without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise PackageMissing(
            "a PNG needs matplotlib, which is not installed in this Python",
            hint="pip install matplotlib, or write x.svg, which needs no package.",
        ) from None
    drawn = Figure(figsize=(9, 4.2), dpi=120, layout="constrained")
    FigureCanvasAgg(drawn)
    axes = drawn.add_subplot()
    for number, line in enumerate(plot.lines):
        for place, part in enumerate(line.parts):
            axes.plot(
                [x for x, _ in part], [y for _, y in part], color=_FILLS[number % len(_FILLS)],
                marker="." if len(part) == 1 else "", label=None if place else _plain(line.name),
            )
    axes.set_xlabel(_plain(plot.x_name))
    axes.set_title(_plain(title), fontsize=10)
    axes.legend()
    file = io.BytesIO()
    drawn.savefig(file, format="png")
    return file.getvalue()


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between `low` and `high`."""
    rough = (high - low) / _TICKS
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * one for one in (1, 2, 5, 10) if unit * one >= rough)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _plain(text: str) -> str:
    """A name with `$` escaped, because matplotlib parses text between two `$` as a formula."""
    return escape_controls(text).replace("$", r"\$").encode("utf-8", "backslashreplace").decode()


def _text(text: str) -> str:
    """Text for the SVG: markup escaped, characters that XML does not allow replaced."""
    safe = escape_controls(text).encode("utf-8", "backslashreplace").decode()
    return escape("".join(one if one not in "\ufffe\uffff" else "\ufffd" for one in safe))
