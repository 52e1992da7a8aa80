"""`probe diagnose`: how a process or a job is, with the evidence and what to do next.

The command's main thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from probe_cli.core.session import Session
from probe_cli.core.terminal import Output, escape_controls

_COLOURS = {"ok": ("green",), "notice": ("yellow",), "alarm": ("red",)}
_OUTCOMES = {"found": ("yellow",), "clear": ("green",), "unknown": ("dim",)}
MOST_OF_ONE = 3
"""Findings of one recipe that are written out."""
_DEEP_S = 60.0
"""A symptom's diagnosis may wait for steps of the job."""


class Wanted(NamedTuple):
    """What is to be diagnosed and how much of it is shown. `deep`: the job may be asked for deep
    statistics; `everything`: also what is only a fact, and what could not be judged."""

    symptom: str | None = None
    everything: bool = False
    deep: bool = True


def show_verdict(session: Session, format: Literal["text", "json"], wanted: Wanted) -> None:
    """Ask the server for its verdict on one process, or on all ranks of a job, and write it."""
    asked = {"endpoint": session.address.endpoint, "deep": str(int(wanted.deep))}
    if wanted.symptom is not None:
        asked["symptom"] = wanted.symptom
    answer = session.ask("GET", "/v1/diagnose", asked, timeout_s=_DEEP_S if wanted.symptom else None)
    if format == "json":
        session.out.json(answer)
        return
    of_symptom = "conclusion" in answer
    lines = symptom_lines if of_symptom else everything_lines
    for line in lines(answer, session.out, wanted):
        session.out.line(line)
    for note in answer.get("notes") or ():
        session.note(str(note))
    own = session.settings.recipes
    if own and own != answer.get("own_recipes", own):
        running = f"with {answer['own_recipes']}" if answer["own_recipes"] else "without"
        session.note(f"PROBE_RECIPES={own} is not in force: the server was started {running}, and keeps it")


def everything_lines(answer: dict[str, Any], out: Output, wanted: Wanted) -> Iterator[str]:
    """The state of the process and what the recipes found, as the answer orders it; how much was judged."""
    found = list(answer.get("findings") or ())
    found.insert(answer.get("position") or 0, answer)
    shown = [one for one in found if one is answer or wanted.everything or one["severity"] != "info"]
    for one in _few(shown, wanted):
        yield from verdict_lines(one, out)
    if wanted.everything:
        for one in answer.get("unknown") or ():
            yield f"{out.style('UNKNOWN', 'dim')}  {escape_controls(one['title'])}: {_safe(one['reason'])}"
    yield from _counted(answer, out, wanted)


def _counted(answer: Mapping[str, Any], out: Output, wanted: Wanted) -> Iterator[str]:
    judged = answer.get("judged")
    if not isinstance(judged, dict) or not sum(judged.values()):
        return
    hidden = sum(one["severity"] == "info" for one in answer["findings"])
    parts = [f"{judged['clear']} checks clear"]
    if hidden and not wanted.everything:
        parts.append(f"{hidden} with something that is no more than a fact")
    if judged["unknown"]:
        parts.append(f"{judged['unknown']} could not be judged")
    more = len(parts) > 1 and not wanted.everything
    yield out.style(", ".join(parts) + (": `diagnose --all` says which and why" if more else ""), "dim")


def symptom_lines(answer: dict[str, Any], out: Output, wanted: Wanted) -> Iterator[str]:
    """All checks of a symptom, what was found beside the cause, and what it comes to."""
    conclusion = answer["conclusion"]
    checks = answer["checks"]
    width = max((len(str(check["check_name"])) for check in checks), default=0)
    if answer.get("position") is not None:
        yield from verdict_lines(answer, out)
    for check in checks:
        outcome = out.style(f"{check['outcome']:<7}", *_OUTCOMES.get(str(check["outcome"]), ()))
        name = f"{_safe(check['check_name']):<{width}}"
        yield f"{check['number']:>3}  {outcome}  {name}  {_safe(_said(check))}".rstrip()
    cause = next((one for one in answer["findings"] if one["recipe"] == conclusion["cause"]), None)
    for one in _few(answer["findings"], wanted):
        if one is not cause:  # the conclusion says it
            yield from verdict_lines(one, out)
    yield from verdict_lines(conclusion, out)


def _said(check: Mapping[str, Any]) -> str:
    return str(check["title"] if check["outcome"] == "clear" else check["what"])


def _few(findings: list[dict[str, Any]], wanted: Wanted) -> Iterator[dict[str, Any]]:
    """The findings, of one recipe not more than some unless everything is wanted; how many are left out."""
    counts = Counter(one.get("recipe") for one in findings)
    shown: Counter[str | None] = Counter()
    for one in findings:
        name = one.get("recipe")
        shown[name] += 1
        left = counts[name] - MOST_OF_ONE
        if wanted.everything or shown[name] < MOST_OF_ONE or left <= 0:
            yield one
        elif shown[name] == MOST_OF_ONE:
            yield {**one, "what": f"{one['what']} (and {left} more: --all)"}


def verdict_lines(verdict: Mapping[str, Any], out: Output) -> list[str]:
    """The verdict as people read it: what, why, next."""
    state = out.style(_safe(str(verdict["state"]).upper()), *_COLOURS.get(str(verdict["severity"]), ()))
    lines = [f"{state}  {_safe(verdict['what'])}"]
    for heading, name in (("why", "why"), ("next", "next")):
        for number, text in enumerate(verdict.get(name) or ()):
            lines.append(f"  {heading if number == 0 else '':<6} {_safe(text)}")
    return lines


def _safe(text: object) -> str:
    return escape_controls(str(text))
