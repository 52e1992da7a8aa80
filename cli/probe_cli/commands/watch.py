"""`probe watch`: expressions of the job, step by step, as they come; and what was seen deep inside of steps.

The job records them (python.variables, and python.gradients, python.activations, python.histograms); here
the rows are asked for and written.
Ctrl-C ends the watch in the job too. The command's main thread.
"""

from __future__ import annotations

import json
import time
from typing import Any, Literal, NamedTuple

from probe.base.errors import BadRequest, ProbeError, ServerUnavailable
from probe_cli.commands.deep_watch_report import write_deep
from probe_cli.core.act_client import ask_to_act, ask_to_undo, command
from probe_cli.core.session import Session
from probe_cli.core.terminal import cut, escape_controls
from probe_cli.render.query_answer import Answer, readable

DEFAULT_STEPS, DEEP_STEPS = 100, 5
_LOOK_S = 0.25
_NARROWEST_COLUMN = 10
_WIDEST_COLUMN = 40
_ENDED = ("ended", "undone", "failed", "cancelled", "refused", "done")
_GONE = ("dead", "failed", "finished")


class Row(NamedTuple):
    """What the expressions were at the end of one step of one rank."""

    t_ns: int
    step: int | None
    rank: int
    values: dict[str, Any]


class Written:
    """What was written so far, under headings once those are known."""

    def __init__(self, session: Session, format: Literal["table", "ndjson"], ranks: list[int]) -> None:
        """`ranks`: of a job of several, empty for one process."""
        self._session = session
        self._format = format
        self._several = bool(ranks)
        self._widths: list[int] = []
        self._latest_ns = dict.fromkeys(ranks, 0)

    @property
    def t_ns(self) -> int:
        """Every rank's rows up to here are written."""
        return min(self._latest_ns.values(), default=0)

    def write(self, row: Row) -> None:
        """One step's values by expression, once."""
        t_ns, step, rank, values = row
        if t_ns <= self._latest_ns.get(rank, 0):
            return
        self._latest_ns[rank] = t_ns
        if self._format == "ndjson":
            of = {"rank": rank} if self._several else {}
            text = json.dumps({"step": step, **of, "t_ns": t_ns, "values": values}, ensure_ascii=False)
            self._session.out.line(escape_controls(text) if self._session.out.terminal else text)
            return
        if not self._widths:
            self._widths = [min(max(len(name), _NARROWEST_COLUMN), _WIDEST_COLUMN) for name in values]
            self._line("STEP", "RANK", list(values))
        number = "-" if step is None else f"{step:,}"
        self._line(number, str(rank), [_text(value) for value in values.values()])

    def _line(self, step: str, rank: str, cells: list[str]) -> None:
        widths = [*self._widths, *[_NARROWEST_COLUMN] * (len(cells) - len(self._widths))]
        shown = [
            f"{cut(escape_controls(cell), width):>{width}}" for cell, width in zip(cells, widths, strict=True)
        ]
        of = [f"{rank:>4}"] if self._several else []
        self._session.out.line("  ".join([f"{step:>8}", *of, *shown]))


def _text(value: object) -> str:
    if isinstance(value, float):
        return readable(value)
    return "-" if value is None else str(value)


def watch(
    session: Session,
    expressions: str | None,
    kinds: list[str],
    steps: int | None,
    every: int | None,
    wait_s: float | None,
    format: Literal["table", "ndjson"],
) -> None:
    """Have the job record expressions for some steps, and write them as they come; of `kinds` of deep
    statistics, the worst at the end."""
    if expressions is None and not kinds:
        raise BadRequest(
            "watch needs expressions, or something to look into",
            hint="Such as `probe PID watch loss`, or `probe PID watch --gradients`.",
        )
    session.connect()  # without a server there is nobody to read the rows from: ask before anything is begun
    steps = steps or (DEFAULT_STEPS if expressions is not None else DEEP_STEPS)
    arguments: dict[str, Any] = {"expressions": expressions, "steps": steps, "every": every}
    arguments.update(dict.fromkeys(kinds, True))
    answer = ask_to_act(session, "watch", arguments, wait_s=wait_s)
    for note in answer.get("notes") or ():
        session.note(str(note))
    action_id = str(answer["id"])
    if not action_id.replace("-", "").isalnum():
        raise ServerUnavailable(f"{action_id!r} is no id of an action")
    try:
        those = [one for one in answer.get("answers") or () if "answer" in one]
        pids = [int(one["pid"]) for one in those] or [_pid(action_id)]
        written = Written(session, format, [int(one["rank"]) for one in those])
        watched = Watched(action_id, pids)
        _follow(session, watched, written)
        if kinds:
            write_deep(session, kinds, action_id, [int(one["rank"]) for one in those], format)
    except (KeyboardInterrupt, BrokenPipeError):
        _end(session, action_id)
        raise


class Watched(NamedTuple):
    """A watch, and the processes that it is in."""

    action_id: str
    pids: list[int]


def _follow(session: Session, watched: Watched, written: Written) -> None:
    """Write rows until the watch has ended or its process has, on every rank."""
    ended = False
    while True:
        state, process = _states(session, watched)
        for row in _rows(session, watched, written.t_ns):
            written.write(row)
        session.out.stream.flush()
        if ended:  # once more after the end: the last rows may be written down after it
            return
        if process in _GONE:
            session.note(f"the process has ended: {process}")
        ended = state in _ENDED or process in _GONE
        time.sleep(_LOOK_S)


def _states(session: Session, watched: Watched) -> tuple[str, str]:
    """Of the action, and of its process; of several the one that goes on longest."""
    pids = ", ".join(str(pid) for pid in watched.pids)
    found = _ask(
        session,
        "SELECT 'action', state FROM (SELECT state FROM probe.actions"
        f" WHERE action_id = '{watched.action_id}'"
        " QUALIFY row_number() OVER (PARTITION BY pid ORDER BY t_ns DESC) = 1)"
        f" UNION ALL SELECT 'process', state FROM cluster.ranks WHERE pid IN ({pids})",
    )
    states = [str(state or "") for what, state in found if what == "action"]
    processes = [str(state or "") for what, state in found if what == "process"]
    return _last(states, _ENDED), _last(processes, _GONE)


def _last(states: list[str], over: tuple[str, ...]) -> str:
    """One that is not over, if there is any."""
    going = [state for state in states if state not in over]
    return (going or states or [""])[0]


def _rows(session: Session, watched: Watched, after_ns: int) -> list[Row]:
    """Of each step after a time."""
    rows = _ask(
        session,
        "SELECT t_ns, step, rank, name, value, text FROM python.variables"
        f" WHERE watch_id = '{watched.action_id}' AND t_ns > {after_ns} ORDER BY t_ns, rank",
    )
    found: dict[tuple[int, int | None, int], dict[str, Any]] = {}
    for t_ns, step, rank, name, value, text in rows:
        found.setdefault((t_ns, step, rank), {})[name] = text if value is None else value
    return [Row(*key, values) for key, values in found.items()]


def _pid(action_id: str) -> int:
    """Of an action of one process; what goes into a statement is a number, or of letters that are ours."""
    pid, _, number = action_id.partition("-")
    try:
        return int(pid) if int(number) >= 0 else 0
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
