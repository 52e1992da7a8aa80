"""The commands of `probe` in the order of `--help`, and the Typer application that holds them.

The command's main thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Annotated

import typer

import probe
from probe_cli.core.arguments import ENDPOINT_OPTIONS
from probe_cli.core.exit_codes import epilog
from probe_cli.core.session import Session

COMMANDS: dict[str, str] = {
    "ps": "ps",
    "ranks": "ranks",
    "run": "run",
    "query": "query",
    "attach": "attach",
    "diagnose": "diagnose",
    "recipes": "recipes",
    "monitor": "monitor",
    "health": "health",
    "compare": "compare",
    "export": "export",
    "backtrace": "backtrace",
    "eval": "eval",
    "lr": "act_lr",
    "checkpoint": "act_checkpoint",
    "clip": "act_clip",
    "skip-nonfinite": "act_skip_nonfinite",
    "spike-guard": "act_spike_guard",
    "loss-scale": "act_loss_scale",
    "pause": "act_pause",
    "resume": "act_resume",
    "stop": "act_stop",
    "profile": "act_profile",
    "capture": "act_capture",
    "memory-snapshot": "act_memory_snapshot",
    "save-batch": "act_save_batch",
    "watch": "act_watch",
    "actions": "actions",
    "undo": "undo",
    "tables": "tables",
    "detach": "detach",
    "prune": "prune",
    "config": "config",
    "doctor": "doctor",
}
"""Module in `probe_cli.commands` by command; a command that performs an action is `act_…`."""


def module_of(command: str) -> ModuleType:
    """The module of one command: its `command` and its `EXAMPLES`."""
    return import_module(f"probe_cli.commands.{COMMANDS[command]}")


def app_with(commands: Iterable[str]) -> typer.Typer:
    """The application with only these commands."""
    app = typer.Typer(
        add_completion=False,
        rich_markup_mode=None,  # rich costs 40 ms, also when nobody asks for help
        pretty_exceptions_enable=False,
        subcommand_metavar="[ENDPOINT] COMMAND …",
    )
    app.callback(epilog=epilog())(_options)
    for name in commands:
        module = module_of(name)
        app.command(
            name,
            epilog="\b\nExamples:\n" + "\n".join(f"  {example}" for example in module.EXAMPLES),
            # Options after the command of `run` belong to that command.
            context_settings={"allow_interspersed_args": name != "run"},
        )(module.command)
    return app


def app_for(words: Sequence[str]) -> typer.Typer:
    """The application with only the requested command, because importing and building all takes 60 ms.

    All commands if none follows the endpoint: then it is a request for help, or an error."""
    if list(words) == ["--version"]:
        return app_with([])
    position = 0
    while position < len(words) and words[position] in ENDPOINT_OPTIONS:
        position += 2
    command = words[position] if position < len(words) else ""
    return app_with([command] if command in COMMANDS else COMMANDS)


def _print_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        session: Session = context.obj
        session.out.line(f"probe {probe.__version__}")
        raise typer.Exit


def _options(
    context: typer.Context,
    endpoint: Annotated[
        str,
        typer.Option(
            "--endpoint",
            "-t",
            metavar="ENDPOINT",
            help="PID, JOB, JOB/RANK, HOST:PORT[/…], recording folder or socket path. "
            "Default: PROBE_ENDPOINT, else the only live process.",
        ),
    ] = "",
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    """Inspect a running PyTorch job.

    `probe ENDPOINT COMMAND …` is short for `probe -t ENDPOINT COMMAND …`.
    Results go to stdout, everything else to stderr.
    """
    session: Session = context.obj
    session.named = endpoint
