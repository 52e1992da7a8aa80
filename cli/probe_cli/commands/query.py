"""`probe query`: SQL in, an answer in the wanted format out. The command's main thread."""

from __future__ import annotations

from typing import Literal

from probe.base.errors import UsageError
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls
from probe_cli.render import query_answer
from probe_cli.render.query_answer import Answer

Format = Literal["table", "json", "ndjson", "csv", "parquet"]


def run_query(
    session: Session, sql: str, format: Format, output: str | None, limit: int | None, timeout_s: float | None
) -> None:
    """Ask, write the result, then say on stderr what else the answer says."""
    to_file = output is not None and output != "-"
    if format == "parquet" and not to_file and session.out.terminal:
        raise UsageError("Parquet is not for a terminal", hint="Add --output FILE.")
    body = {"endpoint": session.address.endpoint, "sql": sql, "limit": limit, "timeout_s": timeout_s}
    answer = Answer.parse(session.ask("POST", "/v1/query", body=body, timeout_s=timeout_s))
    if output is not None and to_file:
        _write_file(output, answer, format)
        session.note(f"{_rows(answer)} written to {output}")
    else:
        _write_stream(session.out, answer, format)
        session.out.stream.flush()
        if format == "table" and (session.out.terminal or not answer.rows):
            elapsed = "" if answer.elapsed_ms is None else f" in {answer.elapsed_ms:.0f} ms"
            session.err.line(session.err.style(f"{_rows(answer)}{elapsed}", "dim"))
    for note in answer.notes:
        session.note(note)
    if answer.truncated:
        session.note(f"truncated: these are the first {_rows(answer)}, there are more")
        session.err.line("  next: --limit N asks for more rows, WHERE for the ones that matter")


def _rows(answer: Answer) -> str:
    return "1 row" if len(answer.rows) == 1 else f"{len(answer.rows):,} rows"


def _text(answer: Answer, format: Format) -> str:
    """The answer as exact text, ending in a line end."""
    if format == "json":
        return query_answer.json_text(answer) + "\n"
    if format == "ndjson":
        lines = query_answer.ndjson_lines(answer)
    elif format == "csv":
        lines = query_answer.csv_lines(answer)
    else:
        lines = query_answer.table_lines(answer, None)
    return "".join(line + "\n" for line in lines)


def _write_file(path: str, answer: Answer, format: Format) -> None:
    if format == "parquet":
        data = query_answer.parquet_bytes(answer)
    else:
        data = _text(answer, format).encode("utf-8", "backslashreplace")
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Name another file with --output."
        ) from None


def _write_stream(out: Output, answer: Answer, format: Format) -> None:
    if format == "parquet":
        out.stream.flush()
        out.stream.buffer.write(query_answer.parquet_bytes(answer))
    elif format == "table":

        def paint(row: int, column: int, text: str) -> str:
            if row < 0:
                return out.style(text, "bold")
            return out.style(text, "dim") if answer.rows[row][column] is None else text

        for line in query_answer.table_lines(answer, out.width, paint):
            out.line(line)
    else:
        text = _text(answer, format)
        out.stream.write(escape_controls(text, "\n") if out.terminal else text)
