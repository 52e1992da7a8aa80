"""The commands of `probe` in the order of `--help`, and the click group that loads them.

The command's main thread.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

import probe
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


def summary_of(command: str) -> str:
    """The first sentence of a command's help, read from its source: importing all modules takes 60 ms."""
    source = Path(__file__).with_name("commands").joinpath(f"{COMMANDS[command]}.py").read_text("utf-8")
    text = source.partition("\ndef command(")[2].split('"""', 2)[1]
    return text.partition("\n")[0].partition(". ")[0].removesuffix(".") + "."


class CommandGroup(TyperGroup):
    """Imports a command's module when the command is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, in the order of `--help`."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The click command of that name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module = module_of(cmd_name)
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(
            cmd_name,
            epilog="\b\nExamples:\n" + "\n".join(f"  {example}" for example in module.EXAMPLES),
            # Options after the command of `run` belong to that command.
            context_settings={"allow_interspersed_args": cmd_name != "run"},
        )(module.command)
        return get_command(app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of commands in `probe --help`."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary_of(name)) for name in COMMANDS])


def command_group() -> Any:
    """The click group of all commands."""
    app = typer.Typer(
        cls=CommandGroup,
        add_completion=False,
        rich_markup_mode=None,  # rich costs 40 ms, also when nobody asks for help
        pretty_exceptions_enable=False,
        subcommand_metavar="[ENDPOINT] COMMAND …",
    )
    app.callback(epilog=epilog())(_options)
    return get_command(app)


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
