"""`probe RUN_A compare RUN_B`: the differences between two runs, live or ended."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from probe.base.errors import UsageError
from probe.client.endpoints import Address, parse
from probe_cli.core.options import TextFormat
from probe_cli.core.session import Session

EXAMPLES = (
    "probe PID compare JOB",
    "probe JOB compare PID --all --format json",
)


def command(
    context: typer.Context,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The other run: any endpoint, live or ended.")
    ],
    everything: Annotated[bool, typer.Option("--all", help="Include values that do not differ.")] = False,
    output_format: TextFormat = "text",
) -> None:
    """Show the differences between two runs.

    Compares learning, speed, memory, configuration, environment and code.
    """
    from probe_cli.render.comparison import tell

    session: Session = context.obj
    if not session.named and not session.settings.endpoint:
        raise UsageError("missing the first run", hint="Run `probe RUN_A compare RUN_B`.")
    second = _session_of(session, other)
    summaries = partial(_summary, session), partial(_summary, second)
    tell(session, (session.named or "the first", other), summaries, everything, output_format == "json")


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
    return session.request("GET", "/v1/summary", asked)
