"""`probe lr`: show the learning rates of an optimizer, or change them.

The current rates come from the job, their history from its recording: a dead job still has a history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from probe.base.errors import ProcessDead
from probe_cli.core.act_client import act, alike, by_rank, number, one_of, request_action, say_who_is_missing
from probe_cli.core.figures import count
from probe_cli.core.options import TextFormat, Wait
from probe_cli.core.session import Session
from probe_cli.core.terminal import escape_controls
from probe_cli.render.grid import Heading, grid
from probe_cli.render.query_answer import readable
from probe_cli.render.value_history import history, history_lines, plain

EXAMPLES = (
    "probe PID lr",
    "probe PID lr --scale 0.1",
    "probe JOB lr --set 3e-5 --group 0",
)
_HEADINGS = (
    Heading("GROUP", number=True), Heading("LR", number=True), Heading("INITIAL LR", number=True),
    Heading("SCHEDULED", number=True), Heading("WEIGHT DECAY", number=True), Heading("TENSORS", number=True),
    Heading("ELEMENTS", number=True),
)


def command(
    context: typer.Context,
    scale: Annotated[
        float | None,
        typer.Option("--scale", metavar="F", help="Multiply the learning rates and their schedule by F."),
    ] = None,
    value: Annotated[
        float | None,
        typer.Option("--set", metavar="V", help="Use V as the learning rate, overriding the schedule."),
    ] = None,
    group: Annotated[
        int | None,
        typer.Option("--group", metavar="I", min=0, help="Only this parameter group, counted from 0."),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", metavar="NAME", help="Optimizer, if there are several.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force", help="Allow more than ten times the current rate, or one rank of a multi-rank job."
        ),
    ] = False,
    wait: Wait = None,
    output_format: TextFormat = "text",
) -> None:
    """Show or change the learning rates."""
    session: Session = context.obj
    if scale is not None or value is not None:
        one_of(scale=scale, set=value)
        act(
            session, "lr", wait, output_format, scale=number(scale, "--scale", above_zero=True),
            set=number(value, "--set"), group=group, optimizer=optimizer, force=force,
        )
        return
    answer: dict[str, Any] = {"what": "", "notes": [], "details": {}}
    try:
        answer = request_action(session, "lr", wait, group=group, optimizer=optimizer)
    except ProcessDead as error:
        session.note(error.message)
    ranges, changes = history(session, "lr", "lr")
    if output_format == "json":
        session.out.json({**answer, "history": ranges, "changes": changes})
        return
    session.out.lines(_rates(session, answer))
    session.out.lines(history_lines(ranges, changes))
    say_who_is_missing(session, answer)


def _rates(session: Session, answer: dict[str, Any]) -> Iterator[str]:
    """The rates of one process, or of all ranks, grouped where equal."""
    if not by_rank(answer):
        yield from _rates_of_one(session, answer)
        return
    for ranks, one in alike(by_rank(answer), lambda one: repr(one.get("details"))):
        yield ranks
        yield from _rates_of_one(session, one)


def _rates_of_one(session: Session, answer: dict[str, Any]) -> Iterator[str]:
    details = answer["details"]
    if answer["what"]:
        yield escape_controls(answer["what"])
    for note in answer["notes"]:
        yield f"  {escape_controls(str(note))}"
    rows = [_group(group) for group in details.get("groups") or ()]
    if rows:
        yield from grid(_HEADINGS, rows, session.out.width)
    for scheduler in details.get("schedulers") or ():
        yield from _scheduler(scheduler, "")


def _group(group: dict[str, Any]) -> list[str]:
    rates = [group.get(name) for name in ("lr", "initial_lr", "scheduled", "weight_decay")]
    return [
        str(group.get("group")),
        *("-" if rate is None else readable(float(rate)) for rate in rates),
        count(group.get("tensors")), count(group.get("elements")),
    ]


def _scheduler(scheduler: dict[str, Any], indent: str) -> Iterator[str]:
    numbers = ", ".join(f"{name} {plain(value)}" for name, value in (scheduler.get("numbers") or {}).items())
    yield escape_controls(f"{indent}{scheduler.get('class')}{f': {numbers}' if numbers else ''}")
    for inner in scheduler.get("inner") or ():
        yield from _scheduler(inner, indent + "  ")
