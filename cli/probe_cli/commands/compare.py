"""`probe RUN_A compare RUN_B`: the differences between two runs, live or ended."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from probe.base.errors import UsageError
from probe_cli.core.endpoints import Address, parse
from probe_cli.core.options import TextFormat
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls
from probe_cli.render.comparison import SECTIONS, Comparison, Difference, compare

EXAMPLES = (
    "probe PID compare JOB",
    "probe JOB compare PID --all --format json",
)
_LONGEST, _BEFORE = 48, 16


def command(
    context: typer.Context,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The other run: any endpoint, live or ended.")
    ],
    everything: Annotated[bool, typer.Option("--all", help="Include what does not differ.")] = False,
    output_format: TextFormat = "text",
) -> None:
    """Show the differences between two runs.

    Compares learning, speed, memory, configuration, environment and code.
    """
    session: Session = context.obj
    if not session.named and not session.settings.endpoint:
        raise UsageError("missing the first run", hint="Run `probe RUN_A compare RUN_B`.")
    second = _session_of(session, other)
    ends = _summary(session, None), _summary(second, None)
    last = [one["steps"]["last"] for one in ends]
    a, b = ends
    if None not in last and last[0] != last[1]:
        until = min(last)
        a = a if last[0] == until else _summary(session, until)
        b = b if last[1] == until else _summary(second, until)
    names = (session.named or "the first", other)
    found = compare(a, b, ends, names)
    if output_format == "json":
        session.out.json(_as_dict(found, ends, names, everything))
    else:
        session.out.lines(_lines(found, everything, session.out))
    for name, one in zip(names, ends, strict=True):
        for note in one.get("notes") or ():
            session.note(f"{name}: {note}")


def _session_of(session: Session, other: str) -> Session:
    """A session for the second run, which may be in another folder or on another host."""
    second = Session(session.environ, session.out.stream, session.err.stream, session.input, session.dispatch)
    second.named = other
    if session.has_own_transport or _server(session.address) == _server(parse(other, session.settings)):
        if not session.has_own_transport:
            session.connect()
        second._transport = session._transport
    return second


def _server(address: Address) -> tuple[object, ...]:
    return address.directory, address.socket, address.url


def _summary(session: Session, until: int | None) -> dict[str, Any]:
    asked = {"endpoint": session.address.endpoint}
    if until is not None:
        asked["until"] = str(until)
    return session.ask("GET", "/v1/summary", asked)


def _as_dict(
    found: Comparison, ends: tuple[dict[str, Any], dict[str, Any]], names: tuple[str, str], everything: bool
) -> dict[str, Any]:
    shown = [line for line in found.lines if everything or line.differs]
    keys = ("name", "run", "pid", "state", "folder", "steps")
    runs = [
        {"endpoint": name, **{key: one.get(key) for key in keys}}
        for name, one in zip(names, ends, strict=True)
    ]
    return {
        "runs": runs, "conclusion": found.conclusion, "differences": [line._asdict() for line in shown],
        "unknown": [line.name for line in found.lines if line.differs is None],
    }


def _lines(found: Comparison, everything: bool, out: Output) -> Iterator[str]:
    """The conclusion, then section by section."""
    yield out.style(escape_controls(found.conclusion), "bold")
    for section in SECTIONS:
        shown = [line for line in found.lines if line.section == section and (everything or line.differs)]
        hidden = [line for line in found.lines if line.section == section and line.differs is None]
        if shown:
            yield ""
            yield out.style(section, "bold")
            yield from _table(shown, out)
        if hidden and not everything and section in SECTIONS[:3]:
            yield out.style(f"  unknown for one run: {', '.join(line.name for line in hidden)}", "dim")


def _table(shown: list[Difference], out: Output) -> Iterator[str]:
    cells = [(line.name, *_short(line.a, line.b)) for line in shown]
    widths = [max(len(row[place]) for row in cells) for place in range(3)]
    for line, (name, a, b) in zip(shown, cells, strict=True):
        change = "" if line.change is None or not line.differs else f"{100 * line.change:+.0f} %"
        note = line.note if line.section not in SECTIONS[3:] else ""
        text = f"  {name:<{widths[0]}}  {a:>{widths[1]}} → {b:<{widths[2]}}  {change:>7}  "
        yield (text + out.style(note, "dim")).rstrip()
        if line.name == "git.diff_summary" and line.differs:
            for one in (line.a, line.b):
                yield from (f"      {escape_controls(row)}" for row in one.splitlines()[:10])


def _short(*texts: str) -> tuple[str, ...]:
    """First lines, truncated; long ones with a common prefix start shortly before their first difference."""
    firsts = [escape_controls(text.partition("\n")[0].strip()) for text in texts]
    alike = sum(itertools.takewhile(bool, (len(set(signs)) == 1 for signs in zip(*firsts, strict=False))))
    skip = alike - _BEFORE if max(map(len, firsts)) > _LONGEST and alike > _BEFORE else 0
    cut = [f"…{text[skip:]}" if skip else text for text in firsts]
    return tuple(text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…" for text in cut)
