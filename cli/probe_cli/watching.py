"""`probe watch`: expressions of the job, step by step, as they come.

The job records them (python.variables); here the rows are asked for and written.
Ctrl-C ends the watch in the job too. The command's main thread.
"""

from __future__ import annotations

import json
import time
from typing import Any, Literal

from probe.errors import ProbeError, ServerUnavailable
from probe_cli.acting import ask_to_act, ask_to_undo, command
from probe_cli.answers import Answer, readable
from probe_cli.session import Session
from probe_cli.terminal import cut, escape_controls

_LOOK_S = 0.25
_NARROWEST_COLUMN = 10
_WIDEST_COLUMN = 40
_ENDED = ("ended", "undone", "failed", "cancelled", "refused", "done")
_GONE = ("dead", "failed", "finished")


class Written:
    """What was written so far: rows up to `t_ns`, under headings once those are known."""

    def __init__(self, session: Session, format: Literal["table", "ndjson"]) -> None:
        self._session = session
        self._format = format
        self._widths: list[int] = []
        self.t_ns = 0

    def write(self, t_ns: int, step: int | None, values: dict[str, Any]) -> None:
        """One step's values by expression."""
        self.t_ns = t_ns
        if self._format == "ndjson":
            text = json.dumps({"step": step, "t_ns": t_ns, "values": values}, ensure_ascii=False)
            self._session.out.line(escape_controls(text) if self._session.out.terminal else text)
            return
        if not self._widths:
            self._widths = [min(max(len(name), _NARROWEST_COLUMN), _WIDEST_COLUMN) for name in values]
            self._line("STEP", list(values))
        self._line("-" if step is None else f"{step:,}", [_text(value) for value in values.values()])

    def _line(self, step: str, cells: list[str]) -> None:
        widths = [*self._widths, *[_NARROWEST_COLUMN] * (len(cells) - len(self._widths))]
        shown = [
            f"{cut(escape_controls(cell), width):>{width}}" for cell, width in zip(cells, widths, strict=True)
        ]
        self._session.out.line("  ".join([f"{step:>8}", *shown]))


def _text(value: object) -> str:
    if isinstance(value, float):
        return readable(value)
    return "-" if value is None else str(value)


def watch(
    session: Session,
    expressions: str,
    steps: int,
    every: int | None,
    wait_s: float | None,
    format: Literal["table", "ndjson"],
) -> None:
    """Have the job record expressions for some steps, and write them as they come."""
    session.connect()  # without a server there is nobody to read the rows from: ask before anything is begun
    arguments = {"expressions": expressions, "steps": steps, "every": every}
    answer = ask_to_act(session, "watch", arguments, wait_s=wait_s)
    for note in answer.get("notes") or ():
        session.note(str(note))
    action_id = str(answer["id"])
    try:
        _follow(session, action_id, Written(session, format))
    except (KeyboardInterrupt, BrokenPipeError):
        _end(session, action_id)
        raise


def _follow(session: Session, action_id: str, written: Written) -> None:
    """Write rows until the watch has ended or its process has."""
    ended = False
    while True:
        state, process = _states(session, action_id)
        for row in _rows(session, action_id, written.t_ns):
            written.write(*row)
        session.out.stream.flush()
        if ended:  # once more after the end: the last rows may be written down after it
            return
        if process in _GONE:
            session.note(f"the process has ended: {process}")
        ended = state in _ENDED or process in _GONE
        time.sleep(_LOOK_S)


def _states(session: Session, action_id: str) -> tuple[str, str]:
    """Of the action, and of its process."""
    pid = int(action_id.partition("-")[0])
    found = _ask(
        session,
        f"SELECT (SELECT state FROM probe.actions WHERE action_id = '{pid}-{_number(action_id)}'"
        f" ORDER BY t_ns DESC LIMIT 1), (SELECT state FROM cluster.ranks WHERE pid = {pid} LIMIT 1)",
    )
    state, process = found[0] if found else ("", "")
    return str(state or ""), str(process or "")


def _rows(session: Session, action_id: str, after_ns: int) -> list[tuple[int, int | None, dict[str, Any]]]:
    """(t_ns, step, values by expression) of each step after a time."""
    pid = int(action_id.partition("-")[0])
    rows = _ask(
        session,
        "SELECT t_ns, step, name, value, text FROM python.variables"
        f" WHERE watch_id = '{pid}-{_number(action_id)}' AND t_ns > {after_ns} ORDER BY t_ns",
    )
    found: dict[tuple[int, int | None], dict[str, Any]] = {}
    for t_ns, step, name, value, text in rows:
        found.setdefault((t_ns, step), {})[name] = text if value is None else value
    return [(t_ns, step, values) for (t_ns, step), values in found.items()]


def _number(action_id: str) -> int:
    try:
        return int(action_id.partition("-")[2])
    except ValueError:
        raise ServerUnavailable(f"{action_id!r} is no id of an action") from None


def _ask(session: Session, sql: str) -> list[list[Any]]:
    body = {"endpoint": session.address.endpoint, "sql": sql, "limit": 1_000_000}
    return Answer.parse(session.ask("POST", "/v1/query", body=body)).rows


def _end(session: Session, action_id: str) -> None:
    """End it in the job: nobody reads it any more."""
    try:
        session.note(str(ask_to_undo(session, action_id, None)["what"]))
    except ProbeError as error:
        session.note(f"{error.message}; `{command(session, 'actions')}` says whether it goes on")
