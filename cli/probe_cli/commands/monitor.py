"""`probe monitor`: incidents that are open, where alerts go, and what is done automatically.

What a person types after `--on RECIPE` is read by the command that it names, here and now, so that a mistake
is told at once and not in the night it is meant for. The command's main thread.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from probe.base.errors import UsageError
from probe_cli.commands.ps import age
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, grid

REFRESH_S = 2.0
_CLEAR = "\x1b[H\x1b[J"
_COLOURS = {"alarm": ("red",), "notice": ("yellow",)}
_HEADINGS = (
    Heading("SEVERITY"), Heading("JOB"), Heading("RANK", number=True), Heading("RECIPE"), Heading("SINCE"),
    Heading("WHAT", prose=True),
)
_PATH = "/v1/monitor"
_SHOWS = frozenset({"lr", "loss_scale"})
"""Actions that without arguments only show something."""


class Change(NamedTuple):
    """What is to be changed; all empty: nothing, the state is shown."""

    notify: Sequence[str] = ()
    remove: Sequence[str] = ()
    test: bool = False
    on: Sequence[tuple[str, str]] = ()
    off: Sequence[str] = ()


def monitor(session: Session, change: Change, once: bool, format: Literal["table", "json"]) -> None:
    """Change what is to be changed, or show the state: again and again at a terminal."""
    if any(change):
        body = {
            "endpoint": session.address.endpoint, "notify": list(change.notify) or None,
            "remove": list(change.remove) or None, "test": change.test or None,
            "on": [rule(session, *one) for one in change.on] or None, "off": list(change.off) or None,
        }
        _show(session, session.ask("POST", _PATH, body=body), format)
        return
    while True:
        answer = session.ask("GET", _PATH, {"endpoint": session.address.endpoint})
        live = not once and format == "table" and session.out.terminal
        if live:
            session.out.text(_CLEAR)
        _show(session, answer, format)
        if not live:
            return
        session.out.stream.flush()
        time.sleep(REFRESH_S)


# What is shown --------------------------------------------------------------------


def _show(session: Session, answer: dict[str, Any], format: Literal["table", "json"]) -> None:
    if format == "json":
        text = json.dumps(answer, ensure_ascii=False)
        session.out.line(escape_controls(text) if session.out.terminal else text)
        return
    for note in answer.get("notes", ()):
        session.note(note)
    if not answer.get("monitor", True):
        session.note("recipes are not run here (PROBE_MONITOR=0); hangs and deaths are noticed all the same")
    _incidents(session, answer["incidents"])
    for one in answer.get("tests", ()):
        what = "delivered" if one["error"] is None else f"failed: {one['error']}"
        session.out.line(escape_controls(f"test  {one['destination']}  {what}"))
    _destinations(session, answer.get("destinations"))
    for one in answer.get("rules", ()):
        last = "" if one["last"] is None else f"   last: {one['last']}"
        session.out.line(escape_controls(f"on    {one['recipe']}  {one['job']}: {one['words']}{last}"))


def _incidents(session: Session, incidents: list[dict[str, Any]]) -> None:
    if not incidents:
        session.out.line("no incident is open")
        return
    cells = [_cells(one) for one in incidents]

    def paint(number: int, column: int, text: str) -> str:
        if number < 0:
            return session.out.style(text, "bold")
        return session.out.style(text, *_COLOURS.get(cells[number][0], ())) if column == 0 else text

    for line in grid(_HEADINGS, cells, session.out.width, paint):
        session.out.line(line)
    for command in incidents[0]["next"][:2]:
        session.out.line(f"next  {escape_controls(command)}")


def _cells(one: dict[str, Any]) -> list[str]:
    subject = "" if not one["subject"] or one["subject"].startswith("rank ") else f" ({one['subject']})"
    ended = "" if one["lives"] else " [its run has ended]"
    since = age(time.time() - one["opened_ns"] / 1e9).removesuffix(" ago")
    rank = "-" if one["rank"] is None else str(one["rank"])
    found = [one["severity"], one["job"], rank, one["recipe"], since, f"{one['what']}{subject}{ended}"]
    return [escape_controls(str(cell)) for cell in found]


def _destinations(session: Session, destinations: list[dict[str, Any]] | None) -> None:
    if destinations is None:  # a viewer is not told
        return
    if not destinations:
        session.note("nobody is told: `probe monitor --notify URL` adds a destination")
    for one in destinations:
        source = "" if one["added"] else "  (PROBE_NOTIFY)"
        text = f"to    {one['number']}  {one['destination']}  {one['least']} and above{source}"
        session.out.line(escape_controls(text))


# Actions --------------------------------------------------------------------------


class _Captured(Exception):
    """The action that a command would have asked for."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.body = body


class _Reading:
    """A transport that goes nowhere: it holds what would have been asked."""

    def ask(self, method: str, target: str, body: object, timeout_s: float) -> Any:
        """See `Transport`."""
        if (method, target) == ("POST", "/v1/act") and isinstance(body, dict):
            raise _Captured(body)
        raise UsageError("that is no action, so it cannot be done automatically", hint=_HINT)


class _Parsing(Session):
    """A session in which commands are read and not done. Files are of this user's folder, as always."""

    @property
    def has_own_transport(self) -> bool:
        """No: what it has carries nothing."""
        return False


_HINT = 'An action is what `probe PID …` does to a job: "lr --scale 0.5", "checkpoint rescue.pt", "stop".'


def pairs(recipes: Sequence[str], actions: Sequence[str]) -> list[tuple[str, str]]:
    """What stands behind each `--on`: a recipe and an action; raises `UsageError`."""
    if len(recipes) != len(actions):
        what = f"{len(recipes)} --on and {len(actions)} actions: each recipe takes one action, in quotes"
        raise UsageError(what, hint=_HINT)
    return list(zip(recipes, actions, strict=True))


def rule(session: Session, recipe: str, words: str) -> dict[str, Any]:
    """What `--on RECIPE "ACTION …"` means; raises the error of the command that it names."""
    try:
        split = shlex.split(words)
    except ValueError as error:
        raise UsageError(f"--on {recipe} {words!r}: {error}", hint=_HINT) from None
    parsing = _Parsing(
        session.environ, session.out.stream, session.err.stream, session.input, session.dispatch, _Reading()
    )
    try:
        session.dispatch(["-t", session.named or session.address.endpoint, *split], parsing)
    except _Captured as captured:
        body = captured.body
    except UsageError as error:
        raise UsageError(f"--on {recipe} {words!r}: {error.message}", hint=error.hint) from None
    else:
        raise UsageError(f"--on {recipe} {words!r}: that is no action", hint=_HINT)
    if body["action"] in _SHOWS and not body["arguments"]:
        raise UsageError(f"--on {recipe} {words!r}: that only shows something", hint=_HINT)
    return {
        "recipe": recipe, "words": words, "action": body["action"], "arguments": body["arguments"],
        "now": bool(body.get("now")),
    }
