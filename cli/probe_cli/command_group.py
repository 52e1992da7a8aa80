"""The click group that imports a command's module when the command is called.

The command's main thread. Importing typer takes longer than most commands do, so what needs no group
(`front_page`, errors of `core.arguments`) is answered before.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from probe_cli.command_table import COMMANDS, ENDPOINT_HELP, VERSION_HELP, module_of
from probe_cli.core.arguments import CommandLine, endpoint_after
from probe_cli.core.session import Session

_HELP = {"help_option_names": ["--help", "-h"]}


class CommandGroup(TyperGroup):
    """Imports a command's module when the command is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of `--help`."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The click command of that name, or None."""
        return _command(cmd_name) if cmd_name in COMMANDS else None


@cache
def _command(name: str) -> Any:
    module = module_of(name)
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(
        name,
        epilog="\b\nExamples:\n" + "\n".join(f"  {example}" for example in module.EXAMPLES),
        # Options after the command of `run` belong to that command.
        context_settings={**_HELP, "allow_interspersed_args": name != "run"},
    )(module.command)
    return get_command(app)


def parameters_of(command: str) -> list[Any]:
    """The arguments and options of a command, as click has them."""
    return list(_command(command).params)


def command_group() -> Any:
    """The click group of all commands."""
    app = typer.Typer(
        cls=CommandGroup,
        add_completion=False,
        rich_markup_mode=None,  # rich costs 40 ms, also when nobody asks for help
        pretty_exceptions_enable=False,
        subcommand_metavar="[ENDPOINT] COMMAND …",
        context_settings=_HELP,
    )
    app.callback()(_options)
    return get_command(app)


def with_endpoint_first(line: CommandLine, session: Session) -> CommandLine:
    """`probe COMMAND ENDPOINT …` as `probe ENDPOINT COMMAND …`; other lines as they are."""
    if line.endpoint is not None or line.command == "run" or all(word.startswith("-") for word in line.rest):
        return line
    parameters = parameters_of(line.command)
    valued = {
        word
        for one in parameters if one.param_type_name == "option" and not one.is_flag
        for word in (*one.opts, *one.secondary_opts)
    }
    counts = [one.nargs for one in parameters if one.param_type_name == "argument"]
    most = float("inf") if -1 in counts else sum(counts)
    is_endpoint = getattr(module_of(line.command), "is_endpoint", _is_pid)
    place = endpoint_after(line.rest, valued, most, lambda word: is_endpoint(word, line.rest, session))
    return line if place is None else line.addressed_to(place)


def _is_pid(word: str, _rest: list[str], _session: Session) -> bool:
    """A command whose arguments are never bare numbers declares no `is_endpoint` of its own."""
    return word.isascii() and word.isdigit()


def _options(
    context: typer.Context,
    endpoint: Annotated[
        str, typer.Option("--endpoint", "-t", metavar="ENDPOINT", help=ENDPOINT_HELP)
    ] = "",
    version: Annotated[bool, typer.Option("--version", help=VERSION_HELP)] = False,
) -> None:
    """Inspect a running PyTorch job."""
    session: Session = context.obj
    session.named = endpoint
