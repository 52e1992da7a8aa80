"""`probe JOB ranks`: all ranks of one job, wherever they are, and what is missing. The main thread."""

from __future__ import annotations

import json
from typing import Any, Literal

from probe.base.errors import ServerUnavailable
from probe_cli.commands.ps import age, known, state, write_table
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading

HEADINGS = (
    Heading("RANK", number=True),
    Heading("HOST"),
    Heading("PID", number=True),
    Heading("STEP", number=True),
    Heading("LAG", number=True),
    Heading("LAST STEP"),
    Heading("STATE"),
)


def list_ranks(session: Session, format: Literal["table", "json"]) -> None:
    """Write one line per rank; hosts and ranks that are missing are named on stderr."""
    answer = session.ask("GET", "/v1/ranks", {"endpoint": session.address.endpoint})
    found, missing = answer.get("ranks"), answer.get("missing")
    if not isinstance(found, list) or not isinstance(missing, list):
        raise ServerUnavailable("the list of ranks cannot be read")
    if format == "json":
        text = json.dumps(answer, ensure_ascii=False)
        session.out.line(escape_controls(text) if session.out.terminal else text)
        return
    write_table(session, HEADINGS, [row(rank) for rank in found if isinstance(rank, dict)])
    for sentence in missing:
        session.note(f"missing: {sentence}")


def row(rank: dict[str, Any]) -> list[str]:
    """Cells of one rank; what is not known is `-`."""
    step, lag = rank.get("step"), rank.get("lag_steps")
    return [
        known(rank.get("rank")),
        escape_controls(known(rank.get("host"))),
        known(rank.get("pid")),
        "-" if step is None else f"{step:,}",
        "-" if lag is None else f"{lag:,}",
        age(rank.get("last_step_s")),
        escape_controls(state(rank)),
    ]
