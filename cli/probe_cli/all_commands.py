"""Every command of `probe`, on one page: names, arguments, one line of meaning each.

Those that act on a job are on the page after it, `action_commands`. What a command
does is in the module it calls, imported when it is called. The command's main
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import typer

import probe
from probe_cli.commands import action_commands
from probe_cli.core.arguments import ENDPOINT_OPTIONS
from probe_cli.core.examples import epilog
from probe_cli.core.exit_codes import epilog as exit_codes
from probe_cli.core.session import Session


def _typer() -> typer.Typer:
    return typer.Typer(
        add_completion=False,
        rich_markup_mode=None,  # rich costs 40 ms, also when nobody asks for help
        pretty_exceptions_enable=False,
        subcommand_metavar="[ENDPOINT] COMMAND …",
    )


app = _typer()

_File = Annotated[
    str | None, typer.Option("--file", "-f", metavar="FILE", help="Read it from FILE (`-`: stdin).")
]
_Deadline = Annotated[
    float | None,
    typer.Option("--timeout", metavar="S", min=0.001, help="Stop it after S seconds (or the server sooner)."),
]
_Timeout = Annotated[
    float | None, typer.Option("--timeout", metavar="S", min=0.001, help="Seconds to wait for it.")
]


def _say_version(context: typer.Context, wanted: bool) -> None:
    if wanted:
        session: Session = context.obj
        session.out.line(f"probe {probe.__version__}")
        raise typer.Exit


@app.callback(epilog=exit_codes())
def options(
    context: typer.Context,
    endpoint: Annotated[
        str,
        typer.Option(
            "--endpoint",
            "-t",
            metavar="ENDPOINT",
            help="PID, JOB, JOB/RANK, HOST:PORT[/…], a recording's folder or a socket's path. "
            "Without it: PROBE_ENDPOINT, else the only process there is.",
        ),
    ] = "",
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_say_version, help="Print the version and end."),
    ] = False,
) -> None:
    """Look into a running PyTorch job.

    `probe ENDPOINT COMMAND …` is short for `probe -t ENDPOINT COMMAND …`.
    Results go to stdout, everything else to stderr.
    """
    session: Session = context.obj
    session.named = endpoint


@app.command(epilog=epilog("ps"))
def ps(
    context: typer.Context,
    everything: Annotated[bool, typer.Option("--all", help="Also what ended long ago.")] = False,
    format: Annotated[Literal["table", "json"], typer.Option("--format", help="How to write it.")] = "table",
) -> None:
    """List the processes that run under probe or ended lately."""
    from probe_cli.commands.ps import list_processes

    list_processes(context.obj, everything, format)


@app.command(epilog=epilog("ranks"))
def ranks(
    context: typer.Context,
    format: Annotated[Literal["table", "json"], typer.Option("--format", help="How to write it.")] = "table",
) -> None:
    """List all ranks of a job on all its hosts: step, lag, state; and what is missing."""
    from probe_cli.commands.ranks import list_ranks

    list_ranks(context.obj, format)


@app.command(context_settings={"allow_interspersed_args": False}, epilog=epilog("run"))
def run(
    context: typer.Context,
    command: Annotated[list[str], typer.Argument(help="What to run, as without probe.")],
    name: Annotated[str | None, typer.Option("--name", metavar="JOB", help="Name of the job.")] = None,
) -> None:
    """Run a job with probe on: `probe run python train.py`."""
    from probe_cli.commands.run import run_command

    session: Session = context.obj
    session.no_endpoint("run")
    run_command(command, session.environ, name)


@app.command(epilog=epilog("query"))
def query(
    context: typer.Context,
    sql: Annotated[
        str | None, typer.Argument(metavar="[SQL]", help="One SELECT (`-` or nothing: read it from stdin).")
    ] = None,
    file: _File = None,
    format: Annotated[
        Literal["table", "json", "ndjson", "csv", "parquet"],
        typer.Option("--format", help="How to write the answer."),
    ] = "table",
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the answer to FILE.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Rows to fetch at most.")
    ] = None,
    timeout: _Deadline = None,
) -> None:
    """Ask in SQL; `tables` says what there is to ask."""
    from probe_cli.commands.query import run_query

    session: Session = context.obj
    run_query(session, session.read_text(sql, file, "SQL"), format, output, limit, timeout)


@app.command(epilog=epilog("attach"))
def attach(
    context: typer.Context,
    wait: Annotated[
        float, typer.Option("--wait", metavar="S", min=0.1, help="Seconds to wait for the process's GIL.")
    ] = 15.0,
    name: Annotated[str | None, typer.Option("--name", metavar="JOB", help="Name of the job.")] = None,
) -> None:
    """Start recording in a process that runs already, without restarting it."""
    from probe_cli.commands.attach import attach as attach_to

    attach_to(context.obj, wait, name)


@app.command(epilog=epilog("diagnose"))
def diagnose(
    context: typer.Context,
    symptom: Annotated[
        str | None,
        typer.Argument(
            metavar="[SYMPTOM]", help="nan, slow, memory, hang, loss, gradients or data: its checks in order."
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Also plain facts, and what could not be judged.")
    ] = False,
    no_watch: Annotated[
        bool, typer.Option("--no-watch", help="For a symptom: ask the job for no deep statistics.")
    ] = False,
    log: Annotated[
        str | None, typer.Option("--log", metavar="FILE", help="What a run printed (`-`: stdin), no job.")
    ] = None,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to write it.")] = "text",
) -> None:
    """Say how a process is and how it learns: what is wrong, why, and what to do next.

    With a symptom: each check that a specialist would make, its result, and the cause or what is not known.
    """
    from probe_cli.commands.diagnose import Wanted, show_verdict

    if log is not None:
        from probe_cli.commands.log_diagnosis import diagnose_log

        diagnose_log(context.obj, log, format)
        return
    show_verdict(context.obj, format, Wanted(symptom, everything, not no_watch))


@app.command(epilog=epilog("recipes"))
def recipes(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[show NAME]", help="Show one of them whole.")
    ] = None,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to write it.")] = "text",
) -> None:
    """List what `diagnose` and the monitor look for, or show one recipe with its thresholds and sources."""
    from probe_cli.commands.recipes import show_recipes

    show_recipes(context.obj, words or [], format)


@app.command(epilog=epilog("monitor"))
def monitor(
    context: typer.Context,
    actions: Annotated[
        list[str] | None, typer.Argument(metavar="[ACTION]...", help='One for each --on: "lr --scale 0.5".')
    ] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option("--notify", metavar="URL", help="Send alerts there too; alarm=URL: only alarms."),
    ] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="URL|N", help="Send none there any more.")
    ] = None,
    test: Annotated[bool, typer.Option("--test", help="Send a test to every destination.")] = False,
    on: Annotated[
        list[str] | None,
        typer.Option("--on", metavar='RECIPE "ACTION …"', help="Do it when that is found: once an incident."),
    ] = None,
    off: Annotated[
        list[str] | None, typer.Option("--off", metavar="RECIPE", help="Do nothing more when it is found.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Show what is open now, and end.")] = False,
    format: Annotated[Literal["table", "json"], typer.Option("--format", help="How to write it.")] = "table",
) -> None:
    """Show what is wrong with running jobs as it comes and goes; say who is told and what is done then."""
    from probe_cli.commands.monitor import Change, pairs
    from probe_cli.commands.monitor import monitor as watch_over

    change = Change(notify or (), remove or (), test, pairs(on or (), actions or ()), off or ())
    watch_over(context.obj, change, once, format)


@app.command(epilog=epilog("health"))
def health(
    context: typer.Context,
    watch: Annotated[
        float | None, typer.Option("--watch", metavar="S", min=0.2, help="Again every S seconds.")
    ] = None,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to write it.")] = "text",
) -> None:
    """Show on one screen how a run learns, how fast it is, what it needs, and what is wrong."""
    from probe_cli.commands.health import show_health

    show_health(context.obj, format, watch)


@app.command(epilog=epilog("compare"))
def compare(
    context: typer.Context,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The other run: any endpoint, alive or not.")],
    everything: Annotated[bool, typer.Option("--all", help="Also what does not differ.")] = False,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to write it.")] = "text",
) -> None:
    """Say what differs between two runs: learning, speed, configuration, environment, code."""
    from probe_cli.commands.compare import compare_runs

    compare_runs(context.obj, other, everything, format)


@app.command(epilog=epilog("export"))
def export(
    context: typer.Context,
    tensorboard: Annotated[
        str | None, typer.Option("--tensorboard", metavar="DIR", help="As event files in DIR.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option("--wandb", metavar="PROJECT", help="As a run of W&B, online or offline.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option("--mlflow", metavar="URI", help="As a run of MLflow: a server or a folder.")
    ] = None,
    csv: Annotated[str | None, typer.Option("--csv", metavar="DIR", help="As one table in DIR.")] = None,
) -> None:
    """Write a recording for TensorBoard, W&B or MLflow; again, it takes its own place."""
    from probe_cli.commands.export import export as export_to

    export_to(context.obj, tensorboard, wandb, mlflow, csv)


@app.command(epilog=epilog("backtrace"))
def backtrace(
    context: typer.Context,
    all_threads: Annotated[
        bool, typer.Option("--all-threads", help="Every thread, not just the training one.")
    ] = False,
    native: Annotated[
        bool, typer.Option("--native", help="C and C++ frames too (stops the process for up to 0.3 s).")
    ] = False,
    locals: Annotated[
        bool, typer.Option("--locals", help="Local variables too, without what looks like a secret.")
    ] = False,
    workers: Annotated[
        bool, typer.Option("--workers", help="DataLoader workers and other child processes too.")
    ] = False,
    all_frames: Annotated[
        bool, typer.Option("--all-frames", help="Of all ranks of a job: every frame, as a tree.")
    ] = False,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to write it.")] = "text",
    json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Show where a process is now, innermost frame first: any Python process, recorded or not.

    Of a job of several ranks: where all of them are, those in the same place together, the odd ones first.
    """
    from probe_cli.commands.backtrace import Shown, show_backtrace

    shown = Shown(all_threads, native, locals, workers)
    show_backtrace(context.obj, shown, "json" if json else format, all_frames)


@app.command(name="eval", epilog=epilog("eval"))
def evaluate(
    context: typer.Context,
    code: Annotated[
        str | None, typer.Argument(metavar="[CODE]", help="Python (`-` or nothing: read it from stdin).")
    ] = None,
    file: _File = None,
    timeout: _Timeout = None,
    now: Annotated[
        bool, typer.Option("--now", help="At once, on a thread of its own, even if it changes the job.")
    ] = False,
    at_step: Annotated[
        bool, typer.Option("--at-step", help="Between two steps, even if it only reads.")
    ] = False,
    together: Annotated[
        bool, typer.Option("--together", help="On all ranks at the same step, also a collective.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also a collective, on this rank alone.")
    ] = False,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait", metavar="S", min=0.001, help="Seconds to wait for the end of a step (PROBE_ACT_WAIT_S)."
        ),
    ] = None,
) -> None:
    """Run Python in the process, or in every rank of a job; print its output and last value.

    What only reads runs at once; what changes the job runs between two steps, on all ranks the same.
    """
    from probe_cli.commands.eval import Wanted, run_snippet

    session: Session = context.obj
    wanted = Wanted(timeout, wait, now, at_step, force, together)
    raise typer.Exit(run_snippet(session, session.read_text(code, file, "Python"), wanted))


app.registered_commands += action_commands.app.registered_commands


@app.command(epilog=epilog("tables"))
def tables(
    context: typer.Context,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One table, such as python.steps.")
    ] = None,
    format: Annotated[Literal["text", "json"], typer.Option("--format", help="How to write it.")] = "text",
) -> None:
    """Describe the tables: columns, units, meaning, an example each."""
    from probe_cli.commands.reference import show_tables

    show_tables(context.obj, name, format)


@app.command(epilog=epilog("detach"))
def detach(context: typer.Context) -> None:
    """Take everything of ours out of a process again; its recording stays."""
    from probe_cli.commands.attach import detach as detach_from

    detach_from(context.obj)


@app.command(epilog=epilog("prune"))
def prune(
    context: typer.Context,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="TIME", help="What ended so long ago: 36h, 7d, 2w.")
    ] = None,
    keep: Annotated[
        int | None, typer.Option("--keep", metavar="N", min=0, help="All but the newest N runs of each job.")
    ] = None,
    job: Annotated[str | None, typer.Option("--job", metavar="JOB", help="Of this job alone.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
) -> None:
    """Delete recordings of what has ended: those that fit every option."""
    from probe_cli.commands.prune import prune_recordings

    session: Session = context.obj
    session.no_endpoint("prune")
    prune_recordings(session, older_than, keep, job, dry_run)


@app.command(epilog=epilog("config"))
def config(context: typer.Context) -> None:
    """List the settings with their values in this environment."""
    from probe_cli.commands.reference import show_config

    session: Session = context.obj
    session.no_endpoint("config")
    show_config(session)


@app.command(epilog=epilog("doctor"))
def doctor(context: typer.Context) -> None:
    """Check what works on this machine and how to cure the rest."""
    from probe_cli.commands.doctor import examine

    session: Session = context.obj
    session.no_endpoint("doctor")
    raise typer.Exit(examine(session))


COMMANDS: tuple[str, ...] = tuple(
    found.name or found.callback.__name__ for found in app.registered_commands if found.callback
)
"""Names of the commands, in this order."""


def app_for(words: Sequence[str]) -> typer.Typer:
    """The application with only the command that is meant: building all takes 15 ms at each start.

    All of it when no command comes first, after the endpoint: then help is asked for, or it is wrong."""
    position = 0
    while position < len(words) and words[position] in ENDPOINT_OPTIONS:
        position += 2
    meant = words[position] if position < len(words) else ""
    if meant not in COMMANDS:
        return app
    found = _typer()
    found.registered_callback = app.registered_callback
    found.registered_commands = [app.registered_commands[COMMANDS.index(meant)]]
    return found
