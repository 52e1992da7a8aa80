"""Writes the rows of an answer to stdout or a file, in the chosen format.

Runs in the command's main thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Literal

from probe.base.errors import UsageError
from probe.client.answer import Answer
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls
from probe_cli.render import query_answer

Format = Literal["table", "json", "ndjson", "csv", "markdown", "parquet", "arrow"]
_BINARY = {"parquet": Answer.parquet, "arrow": query_answer.arrow_bytes}
_OF_SUFFIX: dict[str, Format] = {
    ".json": "json", ".ndjson": "ndjson", ".jsonl": "ndjson", ".csv": "csv", ".md": "markdown",
    ".parquet": "parquet", ".arrow": "arrow",
}


def chosen_format(given: Format | None, output: str | None, out: Output) -> Format:
    """The output format: from `--format`, else from the suffix of the file, else a table.

    Raises `UsageError` for a binary format on a terminal."""
    to_file = output is not None and output != "-"
    chosen = given or (_OF_SUFFIX.get(PurePath(str(output)).suffix.lower(), "table") if to_file else "table")
    if chosen in _BINARY and not to_file and out.terminal:
        raise UsageError(f"refusing to write {chosen.title()} to a terminal", hint="Add --output FILE.")
    return chosen


def write_rows(session: Session, answer: Answer, output_format: Format, output: str | None) -> None:
    """Write an answer to a file, with a note on stderr, or to stdout."""
    if output is None or output == "-":
        _write_stream(session.out, answer, output_format)
        session.out.stream.flush()
        return
    made = _BINARY.get(output_format)
    data = made(answer) if made else _text(answer, output_format).encode("utf-8", "backslashreplace")
    write_file(output, data)
    session.note(f"{number_of_rows(answer)} written to {output}")


def write_file(path: str, data: bytes) -> None:
    """Write a file at the path given by the user; raises `UsageError`."""
    try:
        with open(path, "wb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", hint="Give another file with --output."
        ) from None


def number_of_rows(answer: Answer) -> str:
    """`1 row`, `1,200 rows`."""
    return "1 row" if len(answer.rows) == 1 else f"{len(answer.rows):,} rows"


def write_records(
    session: Session, records: Sequence[Mapping[str, Any]], given: Format | None, output: str | None
) -> None:
    """Write records of a list (processes, ranks, actions) as rows, with their keys as columns."""
    write_rows(session, answer_of(records), chosen_format(given, output, session.out), output)


def answer_of(records: Sequence[Mapping[str, Any]]) -> Answer:
    """Records as the rows of an answer, with the keys as columns and the types of their values."""
    names = list(dict.fromkeys(name for record in records for name in record))
    columns = [(name, _type([record.get(name) for record in records])) for name in names]
    return Answer(columns, [[record.get(name) for name in names] for record in records], False, None, [])


def _type(values: Sequence[Any]) -> str:
    kinds = {type(value) for value in values if value is not None}
    if kinds and kinds <= {bool}:
        return "BOOLEAN"
    if kinds and kinds <= {int}:
        return "BIGINT"
    return "DOUBLE" if kinds and kinds <= {int, float} else "VARCHAR"


def _text(answer: Answer, output_format: Format) -> str:
    """The answer as text, with a final newline."""
    if output_format == "json":
        return query_answer.json_text(answer) + "\n"
    if output_format == "ndjson":
        lines = query_answer.ndjson_lines(answer)
    elif output_format == "csv":
        lines = query_answer.csv_lines(answer)
    elif output_format == "markdown":
        lines = query_answer.markdown_lines(answer)
    else:
        lines = query_answer.table_lines(answer, None)
    return "".join(line + "\n" for line in lines)


def _write_stream(out: Output, answer: Answer, output_format: Format) -> None:
    made = _BINARY.get(output_format)
    if made:
        out.stream.flush()
        out.stream.buffer.write(made(answer))
    elif output_format == "table":

        def paint(row: int, column: int, text: str) -> str:
            if row < 0:
                return out.style(text, "bold")
            return out.style(text, "dim") if answer.rows[row][column] is None else text

        out.page(query_answer.table_lines(answer, out.width, paint))
    else:
        text = _text(answer, output_format)
        out.stream.write(escape_controls(text, "\n") if out.terminal else text)
