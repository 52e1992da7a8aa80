"""Examples of every command: in its `--help` and in docs/cli.md, and run by tests/docs.

PID and JOB stand for a job's; the files named are the user's own. Pure.
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "ps": (
        "probe ps",
        "probe ps --all --format json",
    ),
    "run": (
        "probe run python train.py",
        "probe run --name gpt python train.py",
    ),
    "query": (
        'probe PID query "SELECT step, wall_s, loss FROM python.steps ORDER BY step DESC LIMIT 5"',
        "probe JOB/0 query -f slow.sql --format csv -o slow.csv",
        'echo "FROM python.losses" | probe query --format ndjson',
    ),
    "backtrace": (
        "probe PID backtrace",
        "probe PID backtrace --native --all-threads --workers --locals",
    ),
    "attach": ("probe PID attach",),
    "detach": ("probe PID detach",),
    "diagnose": (
        "probe PID diagnose",
        "probe JOB diagnose --format json",
    ),
    "eval": (
        "probe PID eval \"optimizer.param_groups[0]['lr']\"",
        "probe JOB eval -f look.py",
    ),
    "tables": (
        "probe tables python.steps",
        "probe PID tables",
    ),
    "prune": (
        "probe prune --older-than 7d --dry-run",
        "probe prune --job JOB --keep 20",
    ),
    "config": ("probe config",),
    "doctor": ("probe doctor",),
}


def epilog(command: str) -> str:
    """The examples as the end of `probe COMMAND --help`."""
    return "\b\nExamples:\n" + "\n".join(f"  {example}" for example in EXAMPLES[command])
