"""The SQL prompt of `probe query`: a query ends with `;`, a command begins with `\\` or `.`.

Runs in the command's main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from probe.base.errors import ProbeError, UsageError
from probe.client.answer import Answer
from probe.recording.tables import Table
from probe_cli.core.session import Session
from probe_cli.prompts import sql_words
from probe_cli.prompts.completions import own_tables
from probe_cli.prompts.line_reader import LineReader
from probe_cli.render.row_output import Format, write_rows

MODES: tuple[Format, ...] = ("table", "csv", "json", "ndjson", "markdown")
_HELP = (
    "A query ends with ; and may have many lines. Ctrl-C stops it, Ctrl-D leaves the prompt.",
    "  \\d            list the tables",
    "  \\d TABLE      list the columns of a table",
    f"  .mode MODE    {', '.join(MODES)}",
    "  \\q            leave",
)
_LEAVE = ("\\q", ".quit", ".exit", "exit", "quit", "exit;", "quit;")


class SqlPrompt:
    """Runs queries until Ctrl-D. `after` writes the notes of an answer."""

    def __init__(
        self, session: Session, limit: int | None, timeout_s: float | None,
        after: Callable[[Session, Answer], None],
    ) -> None:
        self._session = session
        self._limit = limit
        self._timeout_s = timeout_s
        self._after = after
        self._mode: Format = "table"
        self._reader = LineReader(session, "sql", is_whole, self._candidates)

    def run(self) -> None:
        """Run until Ctrl-D."""
        session = self._session
        session.err.line(f"SQL on {session.named or 'the only live process'}; " + _HELP[0])
        session.err.line("\\d lists the tables, \\? shows help")
        for text in self._reader.inputs("sql> "):
            text = text.strip()
            if text.lower() in _LEAVE:
                return
            try:
                self._answer(text)
            except KeyboardInterrupt:
                session.note("stopped")
            except ProbeError as error:
                session.report(error)
            session.out.stream.flush()
            session.err.stream.flush()

    def _candidates(self, before: str) -> Iterator[tuple[str, int]]:
        # Read again at each key: the job may have declared another table.
        yield from candidates(before, own_tables(self._session, self._session.named))

    def _answer(self, text: str) -> None:
        session = self._session
        if text.startswith(("\\", ".")) or text.lower() in ("help", "help;"):
            self._command(*(text.rstrip(";").split() or [""]))
            return
        answer = Answer.query(session, text, self._limit, self._timeout_s)
        write_rows(session, answer, self._mode, None)
        self._after(session, answer)

    def _command(self, word: str, *rest: str) -> None:
        session = self._session
        if word in ("\\d", "\\dt", ".tables", ".schema"):
            session.dispatch(["-t", session.named, "tables", *rest[:1]], session)
        elif word in (".mode", "\\mode"):
            found = next((mode for mode in MODES if rest and mode == rest[0]), None)
            if found is None:
                raise UsageError(f"the mode is {self._mode}", hint=f".mode {'|'.join(MODES)}")
            self._mode = found
        elif word in ("\\?", "\\h", ".help", "help"):
            session.out.lines(_HELP)
        else:
            raise UsageError(f"no such prompt command: {word}", hint="\\? lists them; SQL ends with ;")


def is_whole(text: str) -> bool:
    """Whether Enter runs the text: a query that ends with `;`, a prompt command, or nothing."""
    stripped = text.strip()
    return not stripped or stripped.endswith(";") or stripped.startswith(("\\", ".")) or (
        stripped.lower() in (*_LEAVE, "help")
    )


def candidates(before: str, own: Sequence[Table] = ()) -> Iterator[tuple[str, int]]:
    """SQL completions, including the job's `own` tables; after `.mode`, the modes."""
    if before.lstrip().startswith(".mode "):
        word = before.rpartition(" ")[2]
        yield from ((mode, len(word)) for mode in MODES if mode.startswith(word))
        return
    yield from sql_words.candidates(before, own)
