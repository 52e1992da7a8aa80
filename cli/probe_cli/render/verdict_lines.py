"""A verdict or finding as text: state, what, why, next; its consequences beneath it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from probe_cli.core.terminal import Output, escape_controls

_COLOURS = {"ok": ("green",), "notice": ("yellow",), "alarm": ("red",)}


def verdict_lines(verdict: Mapping[str, Any], out: Output) -> Iterator[str]:
    """One verdict: state, what, why, next; a consequence in one line, to follow its cause."""
    if verdict.get("explained_by"):
        yield f"  {'hence':<6} {safe(verdict['state'])}: {safe(verdict['what'])}"
        return
    state = out.style(safe(str(verdict["state"]).upper()), *_COLOURS.get(str(verdict["severity"]), ()))
    yield f"{state}  {safe(verdict['what'])}"
    for name in ("why", "next"):
        for number, text in enumerate(verdict.get(name) or ()):
            yield f"  {'' if number else name:<6} {safe(text)}"


def safe(text: object) -> str:
    """Any value as text that is safe on a terminal."""
    return escape_controls(str(text))
