"""`probe query`: run SQL on a recording."""

from __future__ import annotations

from typing import Annotated

import typer

from probe.base.errors import UsageError
from probe.client.answer import Answer
from probe_cli.core.figures import duration
from probe_cli.core.options import File, QueryFormat, Timeout
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls
from probe_cli.render import query_answer

EXAMPLES = (
    'probe PID query "SELECT step, wall_s, loss FROM python.steps ORDER BY step DESC LIMIT 5"',
    "probe JOB/0 query -f slow.sql --format csv -o slow.csv",
    'echo "FROM python.losses" | probe query --format ndjson',
)


def command(
    context: typer.Context,
    sql: Annotated[
        str | None,
        typer.Argument(metavar="[SQL]", help="One SELECT statement (`-` or omitted: read from stdin)."),
    ] = None,
    file: File = None,
    output_format: QueryFormat = "table",
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the result to FILE.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Maximum number of rows.")
    ] = None,
    timeout: Timeout = None,
) -> None:
    """Run an SQL query. `probe tables` describes the tables."""
    session: Session = context.obj
    text = session.read_text(sql, file, "SQL")
    to_file = output is not None and output != "-"
    if output_format == "parquet" and not to_file and session.out.terminal:
        raise UsageError("refusing to write Parquet to a terminal", hint="Add --output FILE.")
    answer = Answer.query(session, text, limit, timeout)
    if output is not None and to_file:
        _write_file(output, answer, output_format)
        session.note(f"{_rows(answer)} written to {output}")
    else:
        _write_stream(session.out, answer, output_format)
        session.out.stream.flush()
        if output_format == "table" and (session.out.terminal or not answer.rows):
            elapsed = "" if answer.elapsed_ms is None else f" in {duration(answer.elapsed_ms / 1000)}"
            session.err.line(session.err.style(f"{_rows(answer)}{elapsed}", "dim"))
    for note in answer.notes:
        session.note(note)
    if answer.truncated:
        session.note(f"truncated to the first {_rows(answer)}")
        session.err.line("  next: raise --limit N, or select fewer rows with WHERE")


def _rows(answer: Answer) -> str:
    return "1 row" if len(answer.rows) == 1 else f"{len(answer.rows):,} rows"


def _text(answer: Answer, output_format: QueryFormat) -> str:
    """The answer as text, with a final newline."""
    if output_format == "json":
        return query_answer.json_text(answer) + "\n"
    if output_format == "ndjson":
        lines = query_answer.ndjson_lines(answer)
    elif output_format == "csv":
        lines = query_answer.csv_lines(answer)
    else:
        lines = query_answer.table_lines(answer, None)
    return "".join(line + "\n" for line in lines)


def _write_file(path: str, answer: Answer, output_format: QueryFormat) -> None:
    if output_format == "parquet":
        data = answer.parquet()
    else:
        data = _text(answer, output_format).encode("utf-8", "backslashreplace")
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Give another file with --output."
        ) from None


def _write_stream(out: Output, answer: Answer, output_format: QueryFormat) -> None:
    if output_format == "parquet":
        out.stream.flush()
        out.stream.buffer.write(answer.parquet())
    elif output_format == "table":

        def paint(row: int, column: int, text: str) -> str:
            if row < 0:
                return out.style(text, "bold")
            return out.style(text, "dim") if answer.rows[row][column] is None else text

        out.lines(query_answer.table_lines(answer, out.width, paint))
    else:
        text = _text(answer, output_format)
        out.stream.write(escape_controls(text, "\n") if out.terminal else text)
