"""Examples of every command: in its `--help` and in docs/cli.md, and run by tests/docs.

PID and JOB stand for a job's, ID for an action's; the files named are the user's own. Pure.
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "ps": (
        "probe ps",
        "probe ps --all --format json",
    ),
    "ranks": (
        "probe JOB ranks",
        "probe JOB ranks --format json",
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
        "probe JOB backtrace --all-frames",
    ),
    "attach": ("probe PID attach",),
    "detach": ("probe PID detach",),
    "diagnose": (
        "probe PID diagnose",
        "probe PID diagnose loss",
        "probe JOB diagnose --all --format json",
    ),
    "export": ("probe PID export --csv curves",),
    "monitor": (
        "probe monitor --once",
        "probe JOB monitor --once --format json",
        "probe monitor --notify json://127.0.0.1:8080/alerts",
        "probe monitor --remove 1",
        'probe PID monitor --on loss-nan "skip-nonfinite on" --on loss-spike "lr --scale 0.5"',
        "probe PID monitor --off loss-nan",
    ),
    "recipes": (
        "probe recipes",
        "probe recipes show loss-spike",
    ),
    "health": (
        "probe PID health",
        "probe JOB health --format json",
    ),
    "compare": (
        "probe PID compare JOB",
        "probe JOB compare PID --all --format json",
    ),
    "eval": (
        "probe PID eval \"optimizer.param_groups[0]['lr']\"",
        "probe JOB eval -f look.py",
        'probe JOB eval "print(rank, world_size)"',
        'probe PID eval --at-step "sum(p.grad.norm() for p in model.parameters() if p.grad is not None)"',
    ),
    "lr": (
        "probe PID lr",
        "probe PID lr --scale 0.1",
        "probe JOB lr --set 3e-5 --group 0",
    ),
    "checkpoint": (
        "probe PID checkpoint rescue.pt",
        "probe PID checkpoint rescue.pt --overwrite --now",
        "probe PID checkpoint kept --every 1000 --keep 3 --best loss",
    ),
    "clip": (
        "probe PID clip --max-norm 1.0",
        "probe PID clip --off",
    ),
    "skip-nonfinite": (
        "probe PID skip-nonfinite on",
        "probe PID skip-nonfinite off",
    ),
    "spike-guard": (
        "probe PID spike-guard --threshold 5",
        "probe PID spike-guard --off",
    ),
    "loss-scale": (
        "probe PID loss-scale",
        "probe PID loss-scale --set 1024",
    ),
    "pause": ("probe PID pause --for 60",),
    "resume": ("probe PID resume",),
    "stop": (
        "probe PID stop --checkpoint last.pt",
        "probe PID stop --exit-code 3",
    ),
    "profile": ("probe PID profile --steps 3 -o trace.json",),
    "capture": ("probe PID capture blocks.0.attention --steps 1 -o attention.pt",),
    "save-batch": ("probe PID save-batch batch.pt",),
    "memory-snapshot": ("probe PID memory-snapshot -o memory.pickle",),
    "watch": (
        "probe PID watch \"loss, optimizer.param_groups[0]['lr']\" --steps 5",
        "probe PID watch \"loss\" --steps 10 --every 5 --format ndjson",
        "probe PID watch --gradients --histograms --activations --updates --steps 3",
    ),
    "actions": (
        "probe PID actions",
        "probe JOB actions --format json",
    ),
    "undo": ("probe PID undo ID",),
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
