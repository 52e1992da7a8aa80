"""`probe monitor`: open incidents, alert destinations and automatic actions.

The action after `--on RECIPE` is parsed immediately by the command it names, so that errors are reported now
and not when the recipe fires.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from probe.base.errors import UsageError
from probe_cli.core.figures import age, known
from probe_cli.core.options import TableFormat
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, state_lines

EXAMPLES = (
    "probe monitor --once",
    "probe JOB monitor --once --format json",
    "probe monitor --notify json://127.0.0.1:8080/alerts",
    "probe monitor --remove 1",
    'probe PID monitor --on loss-nan "skip-nonfinite on" --on loss-spike "lr --scale 0.5"',
    "probe PID monitor --off loss-nan",
)
_REFRESH_S = 2.0
_CLEAR = "\x1b[H\x1b[J"
_COLOURS = {"alarm": "red", "notice": "yellow"}
_HEADINGS = (
    Heading("SEVERITY"), Heading("JOB"), Heading("RANK", number=True), Heading("RECIPE"), Heading("SINCE"),
    Heading("WHAT", prose=True),
)
_PATH = "/v1/monitor"
_SHOWS = frozenset({"lr", "loss_scale"})
"""Actions that only show something if they have no arguments."""
_HINT = 'Give a command that acts on a job: "lr --scale 0.5", "checkpoint rescue.pt", "stop".'


def is_endpoint(_word: str, words: Sequence[str], _session: Session) -> bool:
    """Whether the first argument is an endpoint: actions occur only with `--on`."""
    return not any(word == "--on" or word.startswith("--on=") for word in words)


def command(
    context: typer.Context,
    actions: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ACTION]...", help='An action for each --on, e.g. "lr --scale 0.5".'),
    ] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify", metavar="URL", help="Also send alerts to this Apprise URL; alarm=URL: alarms only."
        ),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="URL|N", help="Remove an alert destination.")
    ] = None,
    test: Annotated[bool, typer.Option("--test", help="Send a test alert to every destination.")] = False,
    on: Annotated[
        list[str] | None,
        typer.Option(
            "--on", metavar='RECIPE "ACTION …"', help="Run ACTION when the recipe fires, once per incident."
        ),
    ] = None,
    off: Annotated[
        list[str] | None,
        typer.Option("--off", metavar="RECIPE", help="Remove the automatic action of this recipe."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show open incidents and exit.")] = False,
    output_format: TableFormat = "table",
) -> None:
    """Show incidents; configure alerts and actions.

    In a terminal the list is refreshed until Ctrl-C.
    """
    session: Session = context.obj
    recipes, words = on or [], actions or []
    if len(recipes) != len(words):
        what = f"{len(recipes)} --on and {len(words)} actions: each --on takes one action, in quotes"
        raise UsageError(what, hint=_HINT)
    if recipes or notify or remove or test or off:
        body = {
            "endpoint": session.address.endpoint, "notify": notify or None, "remove": remove or None,
            "test": test or None, "off": off or None,
            "on": [_rule(session, *one) for one in zip(recipes, words, strict=True)] or None,
        }
        _show(session, session.request("POST", _PATH, body=body), output_format)
        return
    while True:
        answer = session.request("GET", _PATH, {"endpoint": session.address.endpoint})
        live = not once and output_format == "table" and session.out.terminal
        if live:
            session.out.text(_CLEAR)
        _show(session, answer, output_format)
        if not live:
            return
        session.out.stream.flush()
        time.sleep(_REFRESH_S)


def _show(session: Session, answer: dict[str, Any], output_format: Literal["table", "json"]) -> None:
    if output_format == "json":
        session.out.json(answer)
        return
    for note in answer.get("notes", ()):
        session.note(note)
    if not answer.get("monitor", True):
        session.note("recipes are disabled (PROBE_MONITOR=0); hangs and deaths are still detected")
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
        session.out.line("no open incidents")
        return
    rows = [_cells(one) for one in incidents]
    session.out.lines(state_lines(session.out, _HEADINGS, rows, "SEVERITY", _COLOURS))
    for command in incidents[0]["next"][:2]:
        session.out.line(f"next  {escape_controls(command)}")


def _cells(one: dict[str, Any]) -> list[str]:
    subject = "" if not one["subject"] or one["subject"].startswith("rank ") else f" ({one['subject']})"
    ended = "" if one["lives"] else " [run ended]"
    since = age(time.time() - one["opened_ns"] / 1e9).removesuffix(" ago")
    what = f"{one['what']}{subject}{ended}"
    found = [one["severity"], one["job"], known(one["rank"]), one["recipe"], since, what]
    return [escape_controls(str(cell)) for cell in found]


def _destinations(session: Session, destinations: list[dict[str, Any]] | None) -> None:
    if destinations is None:  # hidden from the viewer role
        return
    if not destinations:
        session.note("no alert destinations: add one with `probe monitor --notify URL`")
    for one in destinations:
        source = "" if one["added"] else "  (PROBE_NOTIFY)"
        text = f"to    {one['number']}  {one['destination']}  {one['least']} and above{source}"
        session.out.line(escape_controls(text))


# Actions --------------------------------------------------------------------------


class _Captured(Exception):
    """The action that a command would have requested."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.body = body


class _Reading:
    """A transport that sends nothing and captures the request of an action."""

    def request(self, method: str, target: str, body: object, timeout_s: float) -> Any:
        """See `Transport`."""
        if (method, target) == ("POST", "/v1/act") and isinstance(body, dict):
            raise _Captured(body)
        raise UsageError("not an action, so it cannot run automatically", hint=_HINT)


class _Parsing(Session):
    """A session that parses commands without running them. Paths are relative to this directory."""

    runs_later = True

    @property
    def has_own_transport(self) -> bool:
        """False, so that paths are made absolute."""
        return False


def _rule(session: Session, recipe: str, words: str) -> dict[str, Any]:
    """Parse `--on RECIPE "ACTION …"` into a rule; raises the error of the command it names."""
    try:
        split = shlex.split(words)
    except ValueError as error:
        raise UsageError(f"--on {recipe} {words!r}: {error}", hint=_HINT) from None
    if not split:
        raise UsageError(f"--on {recipe} {words!r}: not an action", hint=_HINT)
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
        raise UsageError(f"--on {recipe} {words!r}: not an action", hint=_HINT)
    if body["action"] in _SHOWS and not body["arguments"]:
        raise UsageError(f"--on {recipe} {words!r}: only shows something", hint=_HINT)
    return {
        "recipe": recipe, "words": words, "action": body["action"], "arguments": body["arguments"],
        "now": bool(body.get("now")),
    }
