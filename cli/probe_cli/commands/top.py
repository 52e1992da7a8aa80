"""`probe top`: a live view of the jobs of this host, or of the ranks of one job.

The command's main thread draws and reads keys; another thread queries the server (`prompts.live_jobs`). A key
such as `b` runs the command `backtrace` on its own thread and shows the output as a scrollable page.
"""

from __future__ import annotations

import gc
import io
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

from probe.base.errors import ProbeError
from probe.base.isolation import capture
from probe_cli.commands.ps import known_processes
from probe_cli.core.figures import age
from probe_cli.core.parameters import Option
from probe_cli.core.session import Session
from probe_cli.core.terminal import cut, display_width, escape_controls
from probe_cli.core.wait_line import waiting
from probe_cli.prompts.full_screen import FullScreen
from probe_cli.prompts.live_jobs import LiveJobs
from probe_cli.render.live_table import LEGEND, Row, table_lines, verdict_line
from probe_cli.render.process_state import time_left_parts

EXAMPLES = (
    "probe top",
    "probe JOB top",
    "probe JOB top --once",
)
_STALE_S = 3.0
"""If an answer is overdue by this long, the view shows the age of the last one."""
_PAUSE_S = 600.0
"""A pause ends by itself after this time, in case nobody comes back."""
_BUSY_S = 0.5
"""Redraw interval of the elapsed time while a page waits for its command."""
_IDLE_S = 5.0
_LONGEST_NAME = 40
_KEYS = "up/down select  b backtrace  d diagnose  p pause  r resume  h help  q quit"
_PAGE_KEYS = "up/down scroll  Esc back  q quit"
_HELP = f"""\
up, down, page up/down   select a job or a rank
Enter or b               where it is: its stack; for a job, the stacks of all ranks
d                        what is wrong, why, and what to do
p                        pause the job before its next step; asks first
r                        resume a paused job
Esc                      back from a page like this one
q, Ctrl-C                quit

STEP/S  over the last 32 steps, without evaluations, checkpoints and pauses;
        drops once no step has ended for three times the usual step time
LOSS    of the last step that has one; curve: the last 256 steps
PHASES  shares of step time: {LEGEND}
MEMORY  at the last step: tensors on the device; without a device, resident memory
!       an open verdict; the newest is next to the row or below the table
-       not measured, or not yet

A job shows the figures of its lowest live rank, the worst state of its ranks,
and the memory of the rank that uses most."""


def command(
    session: Session,
    once: Annotated[bool, Option("--once", help="Print once and exit, as in a pipe.")] = False,
    interval: Annotated[
        float, Option("--interval", metavar="S", min=0.2, help="Seconds between refreshes.")
    ] = 2.0,
) -> int:
    """Watch all jobs, or the ranks of one job, live. Press h for the keys, q to quit.

    Shows step, rate, loss, phases, memory, state and newest verdict. In a pipe it prints once.
    """
    drawn = session.out.moves and session.input.isatty() and not once
    jobs = LiveJobs(session, interval, partial(known_processes, figures=True))
    with waiting(session.err, "listing the jobs"):
        jobs.refresh(everything=not drawn)
    if drawn:
        gc.enable()  # `main` disables it for commands that end at once
        return View(session, jobs).run()
    if session.out.terminal and not once:
        session.note("this terminal does not support the live view: printed once")
    of_ranks = bool(jobs.endpoint)
    session.out.lines(table_lines(jobs.seen.rows, session.out, session.out.width, of_ranks=of_ranks))
    for note in (*jobs.seen.notes, *filter(None, [jobs.seen.problem])):
        session.note(note)
    if not jobs.seen.rows:
        session.note("no process is running under probe, and none ended recently")
    return 0


class _Screen(io.StringIO):
    """Captures a command's output for a page, as a terminal without colours or cursor movement."""

    def isatty(self) -> bool:
        return True


class Page:
    """The output of a command, or another text, shown in place of the table. `began_s`: start of its command,
    None once it has ended."""

    def __init__(self, title: str, text: str = "") -> None:
        self.title = title
        self.top = 0
        self.began_s: float | None = None
        self._screen = _Screen(text)

    def run(self, session: Session, words: Sequence[str], columns: int, changed: object) -> None:
        """Run a command line on a thread, and call `changed` when it has ended."""
        beside = session.beside(self._screen, TERM="dumb", PAGER="cat", COLUMNS=str(columns))
        self.began_s = time.monotonic()

        def work() -> None:
            _, error = capture(lambda: session.dispatch(words, beside))
            if isinstance(error, ProbeError):
                beside.report(error)
            elif error is not None:
                beside.note(f"{type(error).__name__}: {error}")
            self.began_s = None
            changed()  # type: ignore[operator]

        threading.Thread(target=work, name="page", daemon=True).start()

    def lines(self, columns: int, height: int) -> Iterator[str]:
        """At most `height` lines, from `top` on."""
        found = self._screen.getvalue().splitlines()
        self.top = max(0, min(self.top, len(found) - height))
        for line in found[self.top : self.top + height]:
            yield cut(escape_controls(line), columns)


class View:
    """The live view: the selected row, the open page, the pending question."""

    def __init__(self, session: Session, jobs: LiveJobs) -> None:
        self._session = session
        self._jobs = jobs
        self._selected: tuple[object, ...] = ()
        self._page: Page | None = None
        self._question: Row | None = None
        """The row whose job is paused once the user confirms."""
        self._message = ""
        self._left = False
        self._place = self._first = self._room = 0
        self._screen = FullScreen(session.input, session.out)

    def run(self) -> int:
        """Run until the user or a signal ends it; returns the exit code."""
        with self._screen as screen:
            self._jobs.start(screen.wake)
            try:
                while screen.ended is None and not self._left and self._jobs.failure is None:
                    screen.draw(self._lines(*screen.size()))
                    busy = self._page is not None and self._page.began_s is not None
                    for key in screen.keys(_BUSY_S if busy else _IDLE_S):
                        self._press(key)
            finally:
                self._jobs.stop()
        if self._jobs.failure is not None:
            raise self._jobs.failure
        return 0 if screen.ended is None else 128 + screen.ended

    # Keys -----------------------------------------------------------------------

    def _press(self, key: str) -> None:
        self._message = ""
        if self._question is not None:
            asked, self._question = self._question, None
            if key in ("y", "Y"):
                self._open(asked.job, "pause", "--for", f"{_PAUSE_S:g}")
            else:
                self._message = "not paused"
        elif key == "q":
            self._left = True
        elif self._page is not None:
            self._scroll(self._page, key)
        elif key in ("h", "?"):
            self._page = Page("help", _HELP)
        elif key in _MOVES:
            self._place += _MOVES[key] * (self._room if key.startswith("page") else 1)
            self._select(self._place)
        elif (row := self._row()) is not None:
            self._act(row, key)

    def _scroll(self, page: Page, key: str) -> None:
        if key in ("escape", "enter", "h", "?"):
            self._page = None
        elif key in _MOVES:
            page.top += _MOVES[key] * (self._room if key.startswith("page") else 1)

    def _act(self, row: Row, key: str) -> None:
        if key in ("enter", "b"):
            self._open(row.endpoint, "backtrace")
        elif key == "d":
            self._open(row.endpoint, "diagnose")
        elif key in ("p", "r"):
            if not self._jobs.may_act:
                self._message = "a viewer's token is read-only: pausing and resuming need an operator's"
            elif not row.lives:
                self._message = f"{row.endpoint} has ended"
            elif key == "r":
                self._open(row.job, "resume")
            else:
                self._question = row

    def _open(self, endpoint: str, *command: str) -> None:
        columns, _ = self._screen.size()

        def changed() -> None:
            self._jobs.refresh_soon()
            self._screen.wake()

        self._page = Page(" ".join(["probe", endpoint, *command]))
        self._page.run(self._session, ["-t", self._addressed(endpoint), *command], columns, changed)

    def _addressed(self, endpoint: str) -> str:
        """The endpoint, prefixed with the server of this view."""
        address = self._session.address
        if address.url:
            return f"{address.url}/{endpoint}"
        if address.socket is not None:
            return f"{address.socket}/{endpoint}"
        if ".sock" in self._session.named and address.directory is not None:
            return f"{address.directory}/server.sock/{endpoint}"
        return endpoint

    def _select(self, place: int) -> None:
        rows = self._jobs.seen.rows
        self._place = max(0, min(place, len(rows) - 1))
        self._selected = rows[self._place].key if rows else ()

    def _row(self) -> Row | None:
        """The selected row; the same job or rank after a refresh, if it is still there."""
        rows = self._jobs.seen.rows
        places = [place for place, row in enumerate(rows) if row.key == self._selected]
        self._select(places[0] if places else self._place)
        return rows[self._place] if rows else None

    # Lines ------------------------------------------------------------------------

    def _lines(self, columns: int, height: int) -> list[str]:
        """The lines of the whole screen."""
        page = self._page
        self._room = max(1, height - (3 if page is not None else 5))
        if page is not None:
            took = "" if page.began_s is None else f"{time.monotonic() - page.began_s:.1f} s"
            found = [self._ends(page.title, took, columns), "", *page.lines(columns, self._room)]
            keys = _PAGE_KEYS
        else:
            found = list(self._table(columns))
            keys = _KEYS
        below = self._below(columns) if page is None else []
        body = height - 1 - len(below)
        found = [*found[:body], *[""] * (body - len(found)), *below]
        return [*found, self._session.out.style(cut(keys, columns), "dim")]

    def _table(self, columns: int) -> Iterator[str]:
        seen, out = self._jobs.seen, self._session.out
        self._row()
        last = max(0, len(seen.rows) - self._room)
        self._first = max(0, min(self._first, self._place, last), self._place - self._room + 1)
        shown = seen.rows[self._first : self._first + self._room]
        more = len(seen.rows) > len(shown)
        counted = f"{self._first + 1}-{self._first + len(shown)} of {len(seen.rows)}  " if more else ""
        what = self._session.named or self._jobs.endpoint or "all jobs of this host"
        title = f"probe top  {escape_controls(what)}"
        yield self._ends(title, counted + time.strftime("%H:%M:%S"), columns)
        selected, of_ranks = self._place - self._first, bool(self._jobs.endpoint)
        yield from table_lines(shown, out, columns, of_ranks=of_ranks, selected=selected)
        if not seen.rows:
            yield "no process is running under probe, and none ended recently"

    def _below(self, columns: int) -> list[str]:
        """The pending question; or the verdict on the selected row, and a message, else the time left."""
        out, row, seen = self._session.out, self._row(), self._jobs.seen
        found = (row.verdict if row is not None else None) or seen.verdict
        verdict = "" if found is None else verdict_line(found, time.time_ns(), out, columns)
        old = age(time.monotonic() - seen.at_s)
        if self._question is not None:
            return self._question_lines(self._question, columns)
        if seen.problem:
            message = f"as of {old}, retrying: {seen.problem}"
        elif time.monotonic() - seen.at_s > self._jobs.interval_s + _STALE_S:
            message = f"as of {old}, waiting for the server"
        else:
            message = self._message or next(iter(seen.notes), "")
        if not message and row is not None:
            return [verdict, cut(escape_controls(", ".join(time_left_parts(row.process))), columns)]
        return [verdict, out.style(cut(escape_controls(message), columns), "yellow")]

    def _question_lines(self, row: Row, columns: int) -> list[str]:
        several = row.process.get("world_size") or row.ranks[1]
        ranks = f", all {several} ranks," if several > 1 else ""
        job = cut(escape_controls(row.job), _LONGEST_NAME)
        what = (
            f"Pause {job}{ranks} before the next step? It then waits there, with its memory and devices, "
            f"until r resumes it or {_PAUSE_S:g} s have passed. y/n"
        )
        return [self._session.out.style(line, "bold") for line in textwrap.wrap(what, columns)]

    def _ends(self, left: str, right: str, columns: int) -> str:
        """A title line with text at both ends."""
        left = cut(left, max(1, columns - len(right) - 1))
        space = " " * max(0, columns - display_width(left) - len(right))
        return self._session.out.style(left + space + right, "bold")


_MOVES = {"up": -1, "down": 1, "k": -1, "j": 1, "page up": -1, "page down": 1}
