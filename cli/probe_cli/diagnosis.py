"""`probe diagnose`: how a process or a job is, with the evidence and what to do next.

The command's main thread."""

from __future__ import annotations

import json
from typing import Any, Literal

from probe_cli.session import Session
from probe_cli.terminal import Output, escape_controls

_COLOURS = {"ok": ("green",), "notice": ("yellow",), "alarm": ("red",)}


def show_verdict(session: Session, format: Literal["text", "json"]) -> None:
    """Ask the server for its verdict on one process, or on all ranks of a job, and write it."""
    answer = session.ask("GET", "/v1/diagnose", {"endpoint": session.address.endpoint})
    if format == "json":
        text = json.dumps(answer, ensure_ascii=False)
        session.out.line(escape_controls(text) if session.out.terminal else text)
        return
    for line in verdict_lines(answer, session.out):
        session.out.line(line)
    for note in answer.get("notes") or ():
        session.note(str(note))


def verdict_lines(verdict: dict[str, Any], out: Output) -> list[str]:
    """The verdict as people read it: what, why, next."""
    state = out.style(
        escape_controls(str(verdict["state"]).upper()), *_COLOURS.get(str(verdict["severity"]), ())
    )
    lines = [f"{state}  {escape_controls(str(verdict['what']))}"]
    for heading, name in (("why", "why"), ("next", "next")):
        for number, text in enumerate(verdict.get(name) or ()):
            lines.append(f"  {heading if number == 0 else '':<6} {escape_controls(str(text))}")
    return lines
