"""Command table: the commands of `probe` in the groups and order of `--help`, and their aliases.

Declarations only, so that `probe --help` and the error for an unknown command import little. Runs in the
command's main thread; standard library only.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from probe_cli.core.arguments import Vocabulary

ENDPOINT_HELP = (
    "PID, JOB, JOB/RANK, HOST:PORT[/…], recording folder, bundle or socket path. "
    "Default: PROBE_ENDPOINT, else the only live process."
)
VERSION_HELP = "Print the version and exit."

GROUPS: dict[str, dict[str, str]] = {
    "Look": {
        "ps": "ps",
        "top": "top",
        "ranks": "ranks",
        "web": "web",
        "health": "health",
        "query": "query",
        "plot": "plot",
        "tables": "tables",
        "backtrace": "backtrace",
        "flamegraph": "flamegraph",
        "eval": "eval",
        "watch": "act_watch",
    },
    "Explain": {
        "diagnose": "diagnose",
        "recipes": "recipes",
        "monitor": "monitor",
        "compare": "compare",
        "fleet": "fleet",
    },
    "Act": {
        "lr": "act_lr",
        "checkpoint": "act_checkpoint",
        "clip": "act_clip",
        "skip-nonfinite": "act_skip_nonfinite",
        "spike-guard": "act_spike_guard",
        "loss-scale": "act_loss_scale",
        "pause": "act_pause",
        "resume": "act_resume",
        "stop": "act_stop",
        "actions": "actions",
        "undo": "undo",
    },
    "Record": {
        "run": "run",
        "attach": "attach",
        "detach": "detach",
        "profile": "act_profile",
        "trace": "trace",
        "capture": "act_capture",
        "memory-snapshot": "act_memory_snapshot",
        "save-batch": "act_save_batch",
        "export": "export",
        "bundle": "bundle",
    },
    "Manage": {
        "archive": "archive_runs",
        "prune": "prune",
        "mcp": "mcp",
        "config": "config",
        "doctor": "doctor",
        "completion": "completion",
    },
}
"""Group -> command -> module in `probe_cli.commands`; commands that perform an action are in `act_…`."""

COMMANDS: dict[str, str] = {name: module for group in GROUPS.values() for name, module in group.items()}

SAME_AS: dict[str, str] = {
    "list": "ps",
    "ls": "ps",
    "jobs": "ps",
    "status": "ps",
    "bt": "backtrace",
    "dump": "backtrace",
    "stack": "backtrace",
    "stacks": "backtrace",
    "traceback": "backtrace",
    "inject": "attach",
    "launch": "run",
    "repl": "eval",
    "exec": "eval",
    "sql": "query",
    "schema": "tables",
    "summary": "health",
    "ui": "web",
    "dashboard": "web",
    "diff": "compare",
    "diagnosis": "diagnose",
    "why": "diagnose",
    "settings": "config",
}
"""Aliases: words from other tools and shells that run one of our commands."""

INSTEAD: dict[str, str] = {
    "record": "`probe run python train.py` records a new job, `probe PID attach` a running one.",
    "step": '`probe {endpoint} query "FROM python.steps ORDER BY step DESC LIMIT 5"` shows the last steps.',
    "loss": "`probe {endpoint} health` shows it; `probe {endpoint} diagnose loss` judges it.",
    "memory": "`probe {endpoint} health` shows it; `probe {endpoint} diagnose memory` judges it.",
    "gpu": "`probe {endpoint} health` shows the devices; `probe tables process.gpu` has the columns.",
    "nan": "`probe {endpoint} diagnose nan` looks for the first one.",
    "hang": "`probe {endpoint} diagnose hang` says where each rank waits.",
    "slow": "`probe {endpoint} diagnose slow` says where the time goes.",
    "logs": "probe does not record a job's log; `probe {endpoint} health` shows its state.",
    "kill": "`probe {endpoint} stop` ends the training after the current step.",
    "quit": "`probe {endpoint} stop` ends the training after the current step, "
    "`probe {endpoint} detach` removes probe from it.",
    "python": "`probe run python …` starts a job; `probe {endpoint} eval CODE` runs code in one.",
    "torchrun": "`probe run torchrun …` starts a job.",
    "save": "`probe {endpoint} checkpoint` saves model, optimizer and position.",
}
"""Hints for words without an exact equivalent: what to type instead. `{endpoint}` is the given endpoint."""

VOCABULARY = Vocabulary(
    COMMANDS, SAME_AS, INSTEAD, acting=frozenset({*GROUPS["Act"], "detach", "prune"} - {"actions"})
)


def module_of(command: str) -> ModuleType:
    """The module of one command, with its `command` and `EXAMPLES`."""
    return import_module(f"probe_cli.commands.{COMMANDS[command]}")


def summary_of(command: str) -> str:
    """The first sentence of a command's help, read from its source: importing all modules takes 60 ms."""
    place = f"{__file__.removesuffix('command_table.py')}commands/{COMMANDS[command]}.py"
    with open(place, encoding="utf-8") as file:
        source = file.read()
    text = source.partition("\ndef command(")[2].split('"""', 2)[1]
    return text.partition("\n")[0].partition(". ")[0].removesuffix(".") + "."
