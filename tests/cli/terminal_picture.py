"""Terminals as pictures for the documents, as SVG: what a full-screen view drew, or commands and answers."""

from __future__ import annotations

import html
import re

_DRAWN = re.compile(r"\x1b\[(\d+);1H\x1b\[(2K|J)([^\r\n]*?)(?=\x1b\[\d+;1H|\x1b\[\?|\x1b\[2J|$)")
"""A line, or the end of what is drawn, and where."""
_OTHER_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Zac-ln-z]")
_STYLED = re.compile(r"\x1b\[([0-9;]+)m(.*?)\x1b\[0m")
_COLOURS = {
    "1": "#ffffff", "2": "#8a909c", "31": "#ff8a80", "32": "#9cdcaa", "33": "#e6c57a", "34": "#7fb2f0",
    "35": "#d6a6ee", "36": "#7fd4e0",
}
_WIDE_PX, _HIGH_PX, _EDGE_PX = 7.8, 18, 14


def screen(shown: str) -> list[str]:
    """The lines on a terminal after all that a view wrote to it, with their colours."""
    lines: dict[int, str] = {}
    for row, kind, text in _DRAWN.findall(shown):
        if kind == "J":
            lines = {place: line for place, line in lines.items() if place < int(row)}
        else:
            lines[int(row)] = text
    return [lines.get(row, "") for row in range(1, max(lines, default=0) + 1)]


def session(asked: list[tuple[str, str]], sign: str = "$") -> list[str]:
    """The lines of commands and of what a terminal shows after each: progress that was removed again is not
    in it."""
    lines: list[str] = []
    for command, shown in asked:
        written = shown.replace("\r\n", "\n").rstrip().split("\n")
        lines += [*([""] if lines else []), f"\x1b[1m{sign} {command}\x1b[0m", *map(_left, written)]
    return lines


def _left(line: str) -> str:
    """What is left of a line, after returns to its beginning: its text and colours."""
    return _OTHER_ESCAPES.sub("", line.rpartition("\r")[2])


def svg(lines: list[str], columns: int, title: str) -> str:
    """Lines of a terminal, as wide as so many columns."""
    width, height = round(columns * _WIDE_PX + 2 * _EDGE_PX), len(lines) * _HIGH_PX + 2 * _EDGE_PX
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="13"',
        ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" role="img">',
        f"<title>{html.escape(title)}</title><style>text {{ fill: #d7dae0; white-space: pre }}</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#1d2027"/>',
    ]
    for place, line in enumerate(lines):
        coloured = _STYLED.sub(_span, html.escape(line, quote=False))
        parts.append(f'<text x="{_EDGE_PX}" y="{_EDGE_PX + (place + 1) * _HIGH_PX - 5}">{coloured}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _span(found: re.Match[str]) -> str:
    """Text in the colour that is named last, of several styles."""
    return f'<tspan fill="{_COLOURS[found[1].rpartition(";")[2]]}">{found[2]}</tspan>'
