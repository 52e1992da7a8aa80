"""`probe recipes`: list the checks of `diagnose` and the monitor.

Lists the recipes of this installation and of PROBE_RECIPES; with an endpoint, the recipes of its server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer

from probe.base.errors import ServerUnavailable, UsageError
from probe.diagnose.stall_parameters import STALL_THRESHOLDS
from probe_cli.core.options import TextFormat
from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls
from probe_cli.render.grid import Heading, grid
from probe_cli.render.verdict_lines import wrapped

EXAMPLES = (
    "probe recipes",
    "probe recipes show loss-spike",
)
_HEADINGS = (
    Heading("RECIPE", whole=True),
    Heading("ORDER", number=True),
    Heading("SEVERITY"),
    Heading("SYMPTOMS"),
    Heading("TITLE", prose=True),
)
_PARAMETER_HEADINGS = (
    Heading("parameter"),
    Heading("value"),
    Heading("unit"),
    Heading("source", prose=True),
)


def command(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[show NAME]", help="Show one recipe in full.")
    ] = None,
    output_format: TextFormat = "text",
) -> None:
    """List the checks of `diagnose` and the monitor.

    `show NAME` shows one in full, with its thresholds and their sources.
    """
    session: Session = context.obj
    if words and (words[0] != "show" or len(words) != 2):
        raise UsageError("expected `recipes` or `recipes show NAME`", hint="See `probe recipes --help`.")
    answer = _known(session)
    if words and words[1] == STALL_THRESHOLDS:
        thresholds = answer.get("stall_thresholds", [])
        if output_format == "json":
            session.out.json({"name": STALL_THRESHOLDS, "parameters": thresholds})
        else:
            session.out.lines(_parameter_lines(thresholds, session.out))
        return
    if words:
        recipe = _named(answer["recipes"], words[1])
        answer = recipe if output_format == "json" else {**answer, "recipes": [recipe]}
    if output_format == "json":
        session.out.json(answer)
        return
    found = answer["recipes"]
    session.out.page(_recipe_lines(found[0], session.out) if words else _list(found, session.out))
    if not words:
        session.note(f"`probe recipes show {STALL_THRESHOLDS}` shows when a process counts as stalled")
    for problem in answer["problems"]:
        session.note(problem)


def _known(session: Session) -> dict[str, Any]:
    if session.named or session.settings.endpoint:
        answer = session.request("GET", "/v1/recipes")
        if not isinstance(answer.get("recipes"), list):
            raise ServerUnavailable("invalid list of recipes")
        return answer
    from probe.diagnose.recipes.library import folders, load

    return load(folders(session.settings.recipes)).as_dict()


def _named(recipes: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    from probe.diagnose.recipes.library import unknown_name

    for recipe in recipes:
        if recipe["name"] == name:
            return recipe
    raise unknown_name(name, [str(recipe["name"]) for recipe in recipes])


def _list(recipes: Sequence[Mapping[str, Any]], out: Output) -> Iterator[str]:
    rows = [
        [
            escape_controls(str(recipe["name"])), str(recipe["order"]), str(recipe["severity"]),
            " ".join(recipe["symptoms"]),
            escape_controls(str(recipe["title"])) + ("" if recipe["built_in"] else "  (custom)"),
        ]
        for recipe in recipes
    ]
    return grid(_HEADINGS, rows, out.width)


def _recipe_lines(recipe: Mapping[str, Any], out: Output) -> Iterator[str]:
    """One recipe: what it reports and when, its parameters with their sources, its SQL."""
    name, title = (escape_controls(str(recipe[key])) for key in ("name", "title"))
    yield f"{out.style(name, 'bold')}  {title}"
    about = {
        "severity": recipe["severity"], "symptoms": " ".join(recipe["symptoms"]), "order": recipe["order"],
        "judged on": "the lowest rank" if recipe["scope"] == "rank" else "the rows of all ranks",
        "holds": f"{recipe['holds_s']:g} s before it is an incident" if recipe["holds_s"] else "",
        "needs": recipe["needs"], "what": recipe["what"], "why": recipe["why"], "next": recipe["next"],
        "explains": ", ".join(recipe.get("explains") or ()),
        "false positives": recipe["false_positives"],
        "when unknown": f"deep statistics help: {recipe['deepen']}" if recipe["deepen"] else "",
        "file": recipe["file"],
    }
    for heading, value in about.items():
        for number, line in enumerate(value if isinstance(value, list) else [value]):
            if line != "":
                text = f"  {heading if number == 0 else '':<15} {escape_controls(str(line))}"
                yield from [text] if heading == "next" else wrapped(text, out, " " * 18)  # to be copied
    yield ""
    if recipe["parameters"]:
        yield from _parameter_lines(recipe["parameters"], out)
        yield ""
    yield from (escape_controls(line) for line in str(recipe["sql"]).rstrip().splitlines())


def _parameter_lines(parameters: Sequence[Mapping[str, Any]], out: Output) -> Iterator[str]:
    rows = [
        [escape_controls(str(parameter[key])) for key in ("name", "value", "unit", "source")]
        for parameter in parameters
    ]
    return grid(_PARAMETER_HEADINGS, rows, out.width)
