"""Formats a verdict or finding: state, severity, what, why, next; its consequences below it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe_cli.core.terminal import Output, escape_controls

_COLOURS = {"ok": ("green",), "notice": ("yellow",), "alarm": ("red",)}
_NAMED = ("notice", "alarm")
"""Severities that are written out, because colour is not always available."""
_INDENT = " " * 9
"""Indent of evidence and commands."""


def verdict_lines(verdict: Mapping[str, Any], out: Output) -> Iterator[str]:
    """One verdict: state, severity, what, why, next; a consequence in one line, below its cause.

    On a terminal, lines are wrapped, except for commands, so that they can be copied."""
    if verdict.get("explained_by"):
        yield from wrapped(f"  {'hence':<6} {safe(verdict['state'])}: {safe(verdict['what'])}", out)
        return
    state = safe(str(verdict["state"]).upper())
    severity = str(verdict["severity"])
    named = f" ({severity})" if severity in _NAMED else ""
    first, *more = wrapped(f"{state}{named}  {safe(verdict['what'])}", out)
    yield out.style(state, *_COLOURS.get(severity, ())) + first[len(state) :]
    yield from more
    for number, text in enumerate(verdict.get("why") or ()):
        yield from wrapped(f"  {'' if number else 'why':<6} {safe(text)}", out)
    for number, text in enumerate(verdict.get("next") or ()):
        yield f"  {'' if number else 'next':<6} {safe(text)}"


def wrapped(line: str, out: Output, indent: str = _INDENT) -> list[str]:
    """The line, wrapped to the width of a terminal."""
    if out.width is None or len(line) <= out.width:
        return [line]
    import textwrap

    return textwrap.wrap(
        line, out.width, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False
    )


def safe(text: object) -> str:
    """Any value as text that is safe on a terminal."""
    return escape_controls(str(text))
