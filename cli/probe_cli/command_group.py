"""Click group that imports a command's module only when the command is called.

Runs in the command's main thread. Importing typer takes longer than most commands, so `main` handles
`front_page`, the errors of `core.arguments` and plain command lines (`core.parameters`) without it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, get_args, get_origin

import typer
from typer.core import TyperGroup
from typer.main import get_command

from probe_cli.command_table import COMMANDS, ENDPOINT_HELP, VERSION_HELP, module_of
from probe_cli.core import arguments
from probe_cli.core.arguments import CommandLine
from probe_cli.core.parameters import Argument, Option
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
    )(_for_typer(module.command))
    return get_command(app)


def _for_typer(command: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a command for typer: with typer's own declarations, and a context in place of our session."""
    own = inspect.signature(command, eval_str=True)
    parameters = [one.replace(annotation=_translated(one.annotation)) for one in own.parameters.values()]
    takes_session = parameters[0].name == "session"
    if takes_session:
        parameters[0] = parameters[0].replace(name="context", annotation=typer.Context)

    def called(**values: Any) -> Any:
        return command(values.pop("context").obj, **values) if takes_session else command(**values)

    called.__doc__ = command.__doc__
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return called


def _translated(annotation: Any) -> Any:
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, *more = get_args(annotation)
    for place, one in enumerate(more):
        if isinstance(one, Option):
            more[place] = typer.Option(*one.names, help=one.help, metavar=one.metavar, min=one.min)
        elif isinstance(one, Argument):
            more[place] = typer.Argument(help=one.help, metavar=one.metavar)
    return Annotated[(kind, *more)]


def parameters_of(command: str) -> list[Any]:
    """The arguments and options of a command as click parameters."""
    return list(_command(command).params)


def command_group() -> Any:
    """The click group of all commands."""
    app = typer.Typer(
        cls=CommandGroup,
        add_completion=False,
        rich_markup_mode=None,  # importing rich takes 40 ms, even without --help
        pretty_exceptions_enable=False,
        subcommand_metavar="[ENDPOINT] COMMAND …",
        context_settings=_HELP,
    )
    app.callback()(_options)
    return get_command(app)


def with_endpoint_first(line: CommandLine, session: Session) -> CommandLine:
    """See `arguments.with_endpoint_first`."""
    parameters = parameters_of(line.command)
    valued = {
        word
        for one in parameters if one.param_type_name == "option" and not one.is_flag
        for word in (*one.opts, *one.secondary_opts)
    }
    counts = [one.nargs for one in parameters if one.param_type_name == "argument"]
    most = float("inf") if -1 in counts else sum(counts)
    return arguments.with_endpoint_first(line, valued, most, module_of(line.command), session)


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
