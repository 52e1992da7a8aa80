"""Text tables: headings and aligned columns, fitted to the terminal.

Numbers are never truncated, because a truncated number is wrong; text columns shrink,
the widest first. If that is not enough, each row is written as `name  value` lines.
Runs in the command's main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from probe_cli.core.terminal import Output, cut, display_width

GAP = 2
_SHORTEST_TEXT = 12
_SHORTEST_HEADING = 6
_NARROWEST_PROSE = 24
"""Least width of prose; below it prose becomes one word per line, so other columns are cut too."""


class Heading(NamedTuple):
    """A column. `number` aligns right and is never truncated; a `path` keeps its end;
    `prose` wraps instead of being truncated (last column only); `whole`, such as a name to be
    copied, is never truncated."""

    name: str
    number: bool = False
    path: bool = False
    prose: bool = False
    whole: bool = False


Paint = Callable[[int, int, str], str]
"""Colours the padded text of (row, column); row -1 is the heading."""


def _plain(_row: int, _column: int, text: str) -> str:
    return text


def grid(
    headings: Sequence[Heading], rows: Sequence[Sequence[str]], width: int | None, paint: Paint = _plain
) -> Iterator[str]:
    """Lines of a table at most `width` columns wide (None: unlimited); needs at least one heading."""
    values = [max((display_width(row[index]) for row in rows), default=0) for index in range(len(headings))]
    natural = [max(size, display_width(heading.name)) for size, heading in zip(values, headings, strict=True)]
    shortest = [
        wanted if heading.whole
        else max(size, min(wanted, _SHORTEST_HEADING)) if heading.number else min(wanted, _SHORTEST_TEXT)
        for size, wanted, heading in zip(values, natural, headings, strict=True)
    ]
    if width is None:
        widths: Sequence[int] | None = natural
    else:
        widths = _before_prose(headings, natural, width) or fit(natural, shortest, width)
    if widths is None:
        yield from _listed(headings, rows, paint, width)
        return
    yield _line(-1, [heading.name for heading in headings], headings, widths, paint)
    indent = " " * (sum(widths[:-1]) + GAP * (len(widths) - 1))
    for number, row in enumerate(rows):
        first, *more = _wrapped(row[-1], widths[-1]) if headings[-1].prose else [row[-1]]
        yield _line(number, [*row[:-1], first], headings, widths, paint)
        for text in more:
            yield indent + text


def state_lines(
    out: Output, headings: Sequence[Heading], rows: Sequence[Sequence[str]], coloured: str,
    colours: Mapping[str, str],
) -> Iterator[str]:
    """Lines of a table with bold headings; cells of the column `coloured` take the colour of their first word
    (up to a colon)."""

    def paint(number: int, column: int, text: str) -> str:
        if number < 0:
            return out.style(text, "bold")
        colour = colours.get(rows[number][column].partition(":")[0])
        return out.style(text, colour) if colour and headings[column].name == coloured else text

    return grid(headings, rows, out.width, paint)


def _wrapped(text: str, width: int, *, long_words: bool = True) -> list[str]:
    """The text in lines; `long_words`: whether to break a word longer than a line."""
    if display_width(text) <= width:
        return [text]
    import textwrap

    return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=long_words) or [text]


def _before_prose(headings: Sequence[Heading], natural: Sequence[int], width: int) -> list[int] | None:
    """Widths that narrow the prose column, which wraps, before any other is cut; None if that fails."""
    room = width - GAP * (len(natural) - 1) - sum(natural[:-1])
    if not headings[-1].prose or room < min(natural[-1], _NARROWEST_PROSE):
        return None
    return [*natural[:-1], min(natural[-1], room)]


def fit(natural: Sequence[int], shortest: Sequence[int], width: int) -> list[int] | None:
    """Column widths that fit into `width`, shrinking the widest first; None if impossible."""
    room = width - GAP * (len(natural) - 1)
    if sum(natural) <= room:
        return list(natural)
    if sum(shortest) > room:
        return None
    limit = max(natural)
    while _limited_sum(natural, shortest, limit) > room:
        limit -= 1
    widths = [max(least, min(wanted, limit)) for wanted, least in zip(natural, shortest, strict=True)]
    spare = room - sum(widths)
    for index, wanted in enumerate(natural):
        if spare and widths[index] < wanted:
            widths[index] += 1
            spare -= 1
    return widths


def _limited_sum(natural: Sequence[int], shortest: Sequence[int], limit: int) -> int:
    return sum(max(least, min(wanted, limit)) for wanted, least in zip(natural, shortest, strict=True))


def _line(
    number: int, row: Sequence[str], headings: Sequence[Heading], widths: Sequence[int], paint: Paint
) -> str:
    parts: list[str] = []
    for index, (text, heading, width) in enumerate(zip(row, headings, widths, strict=True)):
        shown = cut(text, width, keep_end=heading.path and number >= 0)
        padding = " " * (width - display_width(shown))
        last = index == len(headings) - 1
        padded = padding + shown if heading.number else shown if last else shown + padding
        parts.append(paint(number, index, padded))
    return (" " * GAP).join(parts)


def _listed(
    headings: Sequence[Heading], rows: Sequence[Sequence[str]], paint: Paint, width: int | None
) -> Iterator[str]:
    """Each row as `name  value` lines; a value that does not fit continues on the next line."""
    longest = max(display_width(heading.name) for heading in headings)
    for number, row in enumerate(rows):
        yield paint(-1, 0, f"row {number + 1}")
        for index, (text, heading) in enumerate(zip(row, headings, strict=True)):
            padding = " " * (longest - display_width(heading.name))
            room = None if width is None else width - longest - 2 * GAP
            lines = [text] if room is None else _wrapped(text, max(_NARROWEST_PROSE, room), long_words=False)
            yield f"  {heading.name}{padding}  {paint(number, index, lines[0])}"
            for part in lines[1:]:
                yield " " * (longest + 2 * GAP) + paint(number, index, part)
