"""`probe query`: run SQL on a recording."""

from __future__ import annotations

from typing import Annotated

from probe.client.answer import Answer
from probe_cli.core.figures import duration
from probe_cli.core.options import File, OutputFile, RowsFormat, Timeout
from probe_cli.core.parameters import Argument, Option
from probe_cli.core.session import Session
from probe_cli.render.row_output import chosen_format, number_of_rows, write_rows

EXAMPLES = (
    'probe PID query "SELECT step, wall_s, loss FROM python.steps ORDER BY step DESC LIMIT 5"',
    "probe JOB/0 query -f slow.sql --format csv -o slow.csv",
    'echo "FROM python.losses" | probe query --format ndjson',
)


def command(
    session: Session,
    sql: Annotated[
        str | None,
        Argument(
            metavar="[SQL]",
            help="One SELECT statement (`-`: read from stdin; omitted: a prompt, or stdin).",
        ),
    ] = None,
    file: File = None,
    output_format: RowsFormat = None,
    output: OutputFile = None,
    limit: Annotated[
        int | None, Option("--limit", metavar="N", min=1, help="Maximum number of rows.")
    ] = None,
    timeout: Timeout = None,
) -> None:
    """Run an SQL query. `probe tables` describes the tables.

    Without SQL: a prompt in a terminal, else SQL from stdin.
    """
    chosen = chosen_format(output_format, output, session.out)
    unasked = sql is None and file is None and output is None and output_format is None
    if unasked and session.may_prompt():
        from probe_cli.prompts.sql_prompt import SqlPrompt

        SqlPrompt(session, limit, timeout, lambda own, answer: say_about(own, answer, count=True)).run()
        return
    text = session.read_text(sql, file, "SQL")
    answer = Answer.query(session, text, limit, timeout)
    write_rows(session, answer, chosen, output)
    say_about(session, answer, count=chosen == "table" and output in (None, "-"))


def say_about(session: Session, answer: Answer, *, count: bool) -> None:
    """Write to stderr what an answer has in addition to its rows: their number, the time, notes."""
    if count and (session.out.terminal or not answer.rows):
        elapsed = "" if answer.elapsed_ms is None else f" in {duration(answer.elapsed_ms / 1000)}"
        session.err.line(session.err.style(f"{number_of_rows(answer)}{elapsed}", "dim"))
    for note in answer.notes:
        session.note(note)
    if answer.truncated:
        session.note(f"truncated to the first {number_of_rows(answer)}")
        session.err.line("  next: raise --limit N, or select fewer rows with WHERE")
