"""`probe plot`: plot the result of a query, in the terminal or as an image."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated

from probe.base.errors import UsageError
from probe.client.answer import Answer
from probe_cli.commands.query import say_about
from probe_cli.core.options import File, Timeout
from probe_cli.core.parameters import Argument, Option
from probe_cli.core.session import Session
from probe_cli.render.plot_lines import plot_of, png, svg, terminal_lines
from probe_cli.render.row_output import number_of_rows, write_file

EXAMPLES = (
    'probe PID plot "SELECT step, loss FROM python.steps ORDER BY step"',
    'probe PID plot "SELECT step, data_s, wall_s FROM python.steps ORDER BY step" -o steps.svg',
)
_PIPE_COLUMNS = 80


def command(
    session: Session,
    sql: Annotated[
        str | None,
        Argument(metavar="[SQL]", help="One SELECT statement (`-` or omitted: read from stdin)."),
    ] = None,
    file: File = None,
    output: Annotated[
        str | None,
        Option("--output", "-o", metavar="FILE", help="Write an image: .svg, or .png with matplotlib."),
    ] = None,
    timeout: Timeout = None,
) -> None:
    """Plot the result of an SQL query.

    The first column is x; each other column is a line. NULL leaves a gap.
    """
    kind = PurePath(output or "x.svg").suffix.lower()
    if kind not in (".svg", ".png"):
        raise UsageError(f"cannot write {output}: not .svg or .png", hint="`query -o` writes rows as text.")
    answer = Answer.query(session, session.read_text(sql, file, "SQL"), None, timeout)
    plot = plot_of(answer)
    if output is None:
        session.out.lines(terminal_lines(plot, session.out, session.out.width or _PIPE_COLUMNS))
        session.out.stream.flush()
    else:
        title = session.address.endpoint
        write_file(output, png(plot, title) if kind == ".png" else svg(plot, title).encode())
        drawn = "1 line" if len(plot.lines) == 1 else f"{len(plot.lines)} lines"
        session.out.line(f"{drawn} of {number_of_rows(answer)}: {output}")
    if plot.endless:
        some = "1 value is" if plot.endless == 1 else f"{plot.endless:,} values are"
        session.note(f"{some} NaN or infinite: a gap in the line")
    say_about(session, answer, count=False)
