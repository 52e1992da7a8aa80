"""`probe watch`: the values of expressions step by step, and deep statistics of some steps.

The job records them (python.variables; python.gradients, python.activations, python.histograms); this command
queries the rows and prints them. Ctrl-C also stops the watch in the job.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import typer

from probe.base.errors import BadRequest, ProbeError, ServerUnavailable
from probe.client.answer import Answer
from probe.client.endpoints import names_agent
from probe_cli.core.act_client import request_action, request_undo, typed
from probe_cli.core.figures import count
from probe_cli.core.options import Wait, WatchFormat
from probe_cli.core.session import Session
from probe_cli.core.terminal import cut, escape_controls
from probe_cli.render.deep_watch_report import value_text, write_deep

EXAMPLES = (
    "probe PID watch \"loss, optimizer.param_groups[0]['lr']\" --steps 5",
    "probe PID watch \"loss\" --steps 10 --every 5 --format ndjson",
    "probe PID watch --gradients --histograms --activations --updates --steps 3",
)
_DEFAULT_STEPS, _DEEP_STEPS = 100, 5
_POLL_S = 0.25
_NARROWEST_COLUMN = 10
_WIDEST_COLUMN = 40
_ENDED = ("ended", "undone", "failed", "cancelled", "refused", "done")
_GONE = ("dead", "failed", "finished")
_MOST_ROWS = 1_000_000


def is_endpoint(word: str, _words: Sequence[str], session: Session) -> bool:
    """Whether the only argument is an endpoint and not an expression: `probe watch PID --gradients`."""
    return names_agent(word, session.address)


class Row(NamedTuple):
    """Values of the expressions at the end of one step of one rank."""

    t_ns: int
    step: int | None
    rank: int
    values: dict[str, Any]


class Written:
    """Writes rows, with headings before the first."""

    def __init__(self, session: Session, output_format: Literal["table", "ndjson"], ranks: list[int]) -> None:
        """`ranks`: the ranks of a multi-rank job, empty for a single process."""
        self._session = session
        self._format = output_format
        self._several = bool(ranks)
        self._widths: list[int] = []
        self._latest_ns = dict.fromkeys(ranks, 0)

    @property
    def t_ns(self) -> int:
        """All rows up to this time are written, on every rank."""
        return min(self._latest_ns.values(), default=0)

    def write(self, row: Row) -> None:
        """Write one row, unless it was written before."""
        t_ns, step, rank, values = row
        if t_ns <= self._latest_ns.get(rank, 0):
            return
        self._latest_ns[rank] = t_ns
        if self._format == "ndjson":
            of = {"rank": rank} if self._several else {}
            self._session.out.json({"step": step, **of, "t_ns": t_ns, "values": values})
            return
        if not self._widths:
            self._widths = [min(max(len(name), _NARROWEST_COLUMN), _WIDEST_COLUMN) for name in values]
            self._line("STEP", "RANK", list(values))
        self._line(count(step), str(rank), [value_text(value) for value in values.values()])

    def _line(self, step: str, rank: str, cells: list[str]) -> None:
        widths = [*self._widths, *[_NARROWEST_COLUMN] * (len(cells) - len(self._widths))]
        shown = [
            f"{cut(escape_controls(cell), width):>{width}}" for cell, width in zip(cells, widths, strict=True)
        ]
        of = [f"{rank:>4}"] if self._several else []
        self._session.out.line("  ".join([f"{step:>8}", *of, *shown]))


def command(
    context: typer.Context,
    expressions: Annotated[
        str | None,
        typer.Argument(
            metavar="[EXPRESSIONS]", help='Comma-separated Python expressions, e.g. "loss, x.norm()".'
        ),
    ] = None,
    gradients: Annotated[
        bool, typer.Option("--gradients", help="Gradient, weight and update statistics of every parameter.")
    ] = False,
    histograms: Annotated[
        bool, typer.Option("--histograms", help="Histograms of gradients, weights and activations.")
    ] = False,
    activations: Annotated[
        bool, typer.Option("--activations", help="Output statistics of every module.")
    ] = False,
    updates: Annotated[
        bool, typer.Option("--updates", help="Measure every parameter's update, not only a sample.")
    ] = False,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="Number of steps.")
    ] = None,
    every: Annotated[
        int | None, typer.Option("--every", metavar="K", min=1, help="Only every K-th step.")
    ] = None,
    wait: Wait = None,
    output_format: WatchFormat = "table",
) -> None:
    """Watch expressions or deep statistics step by step. Ctrl-C stops it."""
    session: Session = context.obj
    deep = {
        "gradients": gradients, "histograms": histograms, "activations": activations, "updates": updates,
    }
    kinds = [name for name, wanted in deep.items() if wanted]
    if expressions is None and not kinds:
        raise BadRequest(
            "nothing to watch: give expressions or statistics",
            hint="For example `probe PID watch loss`, or `probe PID watch --gradients`.",
        )
    session.connect()  # rows are read through the server: without one, fail before the watch starts
    steps = steps or (_DEFAULT_STEPS if expressions is not None else _DEEP_STEPS)
    answer = request_action(session, "watch", wait, expressions=expressions, steps=steps, every=every, **deep)
    for note in answer.get("notes") or ():
        session.note(str(note))
    action_id = str(answer["id"])
    if not action_id.replace("-", "").isalnum():
        raise ServerUnavailable(f"invalid action ID {action_id!r}")
    try:
        those = [one for one in answer.get("answers") or () if "answer" in one]
        ranks = [int(one["rank"]) for one in those]
        watched = Watched(action_id, [int(one["pid"]) for one in those] or [_pid(action_id)])
        _follow(session, watched, Written(session, output_format, ranks))
        if kinds:
            write_deep(session, kinds, action_id, ranks, output_format)
    except (KeyboardInterrupt, BrokenPipeError):
        _end(session, action_id)
        raise


class Watched(NamedTuple):
    """A watch and its processes."""

    action_id: str
    pids: list[int]


def _follow(session: Session, watched: Watched, written: Written) -> None:
    """Write rows until the watch or its process has ended, on every rank."""
    ended = False
    while True:
        state, process = _states(session, watched)
        for row in _rows(session, watched, written.t_ns):
            written.write(row)
        session.out.stream.flush()
        if ended:  # once more: the last rows may be recorded after the end
            return
        if process in _GONE:
            session.note(f"the process has ended: {process}")
        ended = state in _ENDED or process in _GONE
        time.sleep(_POLL_S)


def _states(session: Session, watched: Watched) -> tuple[str, str]:
    """States of the action and of its process; of a running rank if there is one."""
    pids = ", ".join(str(pid) for pid in watched.pids)
    found = _rows_of(
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
    """A state that is not final if there is one, else the first."""
    going = [state for state in states if state not in over]
    return (going or states or [""])[0]


def _rows(session: Session, watched: Watched, after_ns: int) -> list[Row]:
    """The rows of each step after a time."""
    rows = _rows_of(
        session,
        "SELECT t_ns, step, rank, name, value, text FROM python.variables"
        f" WHERE watch_id = '{watched.action_id}' AND t_ns > {after_ns} ORDER BY t_ns, rank",
    )
    found: dict[tuple[int, int | None, int], dict[str, Any]] = {}
    for t_ns, step, rank, name, value, text in rows:
        found.setdefault((t_ns, step, rank), {})[name] = text if value is None else value
    return [Row(*key, values) for key, values in found.items()]


def _pid(action_id: str) -> int:
    """The PID in a single-process action's ID; ensures that only a number gets into the SQL."""
    pid, _, number = action_id.partition("-")
    try:
        return int(pid) if int(number) >= 0 else 0
    except ValueError:
        raise ServerUnavailable(f"invalid action ID {action_id!r}") from None


def _rows_of(session: Session, sql: str) -> list[list[Any]]:
    return Answer.query(session, sql, _MOST_ROWS).rows


def _end(session: Session, action_id: str) -> None:
    """Stop the watch in the job."""
    try:
        session.note(str(request_undo(session, action_id, None)["what"]))
    except ProbeError as error:
        session.note(f"{error.message}; `{typed(session, 'actions')}` shows whether it is still running")
