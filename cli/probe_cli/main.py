"""Entry point: runs the command, prints its error, returns its exit code.

Runs in the main thread of the command's own process. Imports are inside functions, so that
Ctrl-C during start-up prints no traceback.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from probe.client.transport import Transport
    from probe_cli.core.arguments import CommandLine
    from probe_cli.core.session import Session


def main() -> int:
    """Run the command in `sys.argv` and return its exit code."""
    # A command creates few reference cycles; garbage collection during imports and at exit takes a
    # tenth of a short command's time.
    gc.disable()
    try:
        for stream in (sys.stdout, sys.stderr):
            # A character missing in the terminal's encoding must not suppress the output.
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        return run(sys.argv[1:], os.environ, sys.stdout, sys.stderr, sys.stdin)
    except KeyboardInterrupt:
        return _silently(130)
    finally:
        if "duckdb" not in sys.modules:  # duckdb complains at exit about uncollected objects
            gc.freeze()


def run(
    words: Sequence[str],
    environ: Mapping[str, str],
    out: TextIO,
    err: TextIO,
    stdin: TextIO,
    transport: Transport | None = None,
) -> int:
    """Run one command with its dependencies passed in; returns the exit code."""
    from probe.base.errors import ProbeError
    from probe_cli.core.exit_codes import CLOSED_PIPE
    from probe_cli.core.session import Session

    session = Session(environ, out, err, stdin, dispatch, transport)
    try:
        try:
            code = dispatch(words, session)
        except ProbeError as error:
            out.flush()
            session.report(error)
            code = error.exit_code
        out.flush()
        err.flush()
        return code
    except BrokenPipeError:
        return _silently(CLOSED_PIPE)


def dispatch(words: Sequence[str], session: Session) -> int:
    """Run a command line in a session; returns its exit code or raises its `ProbeError`."""
    from probe_cli.command_table import VOCABULARY
    from probe_cli.core.arguments import HELP_OPTIONS, read

    line = read(words, VOCABULARY)
    if not line.command or HELP_OPTIONS.intersection(line.options):
        from probe_cli.front_page import front_page

        if front_page(line, session):
            return 0
    elif (plain := plain_command(line, session)) is not None:
        return plain() or 0
    from typer import Exit

    from probe.base.errors import UsageError
    from probe_cli.command_group import command_group, parameters_of, with_endpoint_first

    if line.command == "completion" and line.rest[:2] == ["words", "--"]:
        from probe_cli.prompts.completions import completions

        session.out.lines(completions(line.rest[2:], VOCABULARY, parameters_of, session))
        return 0
    group = command_group()
    try:
        line = with_endpoint_first(line, session) if line.command else line
        # Not `app()`, which exits the process on a closed pipe and on Ctrl-C.
        with group.make_context("probe", line.words, obj=session) as context:
            return int(group.invoke(context) or 0)
    except Exit as ended:
        return ended.exit_code
    except click_exception() as error:
        message = error.format_message()
        raise UsageError(message, hint=_help_hint(line.command, "extra argument" in message)) from None


def plain_command(line: CommandLine, session: Session) -> Callable[[], int | None] | None:
    """The call for a command line, parsed without typer; None if it needs typer or has an error."""
    from probe_cli.command_table import module_of
    from probe_cli.core import arguments, parameters

    if line.options and (len(line.options) != 2 or line.endpoint is None):
        return None
    module = module_of(line.command)
    declared = parameters.parameters_of(module.command)
    if declared is None:
        return None
    line = arguments.with_endpoint_first(line, *parameters.valued_and_most(declared), module, session)
    values = parameters.plain_values(declared, line.rest)
    if values is None:
        return None
    session.named = line.endpoint or ""
    return partial(module.command, session, **values)


def click_exception() -> Any:
    """Base class of usage errors: click's up to typer 0.27, then typer's own; a parent of `BadParameter`."""
    import typer

    return next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _help_hint(command: str, misses_option: bool) -> str:
    """The hint of a usage error, with an example; one with options if a value lacked its option."""
    from probe_cli.command_table import module_of

    if not command:
        return "See `probe --help`."
    examples = module_of(command).EXAMPLES
    fits = [one for one in examples if " --" in one or not misses_option]
    return f"For example `{(fits or examples)[0]}`. See `probe {command} --help`."


def _silently(code: int) -> int:
    """Discard buffered output and return the exit code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
    return code
