"""Diagnosis: combines the state of a process or job and the results of the recipes into one answer.

    diagnosis = diagnose(state, checks)                         # everything, worst first
    diagnosis = diagnose(state, checks, "nan", "4242")          # one symptom, with its conclusion
    diagnosis.as_dict()

Only this module decides the order, the severities and the next commands: the server calls it, the command
prints its answer.

The checks of a symptom run in the order a specialist would use. First, whether the symptom is present:
recipes with an order below 100, and for some symptoms the state of the process. Then possible causes: data,
gradients, learning rate, numerics. The first cause found is the conclusion, unless another finding explains
it. A recipe that measures only an effect, such as gradients that grow, is never the cause: where nothing
explains it, the answer says that the cause was not found. In every answer, consequences follow their cause.
Pure. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probe.diagnose.explanations import explanations, folded, not_judged, worse_than
from probe.diagnose.finding import Finding, worst_first
from probe.diagnose.recipes.recipe import CLEAR, FOUND, UNKNOWN, Check
from probe.diagnose.states import ALARM, INFO, NOTICE, OK, WARM_UP

CAUSES_FROM = 100
"""Recipes with at least this `order` find causes; recipes below it find the symptom."""
PROCESS = "process"
"""Name of the check that judges the state of the process."""
_SYMPTOMS_OF_PROCESS = ("hang", "slow", "memory")
MOST_NEXT = 6
NO_CAUSE = "what causes it was not found: many mistakes have this effect"
"""Evidence of an effect that no other finding explains."""
CAUSE, SOMETHING, NOT_KNOWN, NOTHING = "cause", "found", "cause not known", "nothing found"
NOT_JUDGED, PAST, TOO_EARLY = "cause not judged", "over", "too early"
"""States of a conclusion. `found`: a possible cause, but no check found the symptom; `cause not judged`:
checks that could explain it did not run; `over`: a problem that has ended; `too early`: no step has finished
yet."""


@dataclass(frozen=True)
class Diagnosis:
    """The state of a process or a job, and the results of the checks."""

    state: Finding
    checks: Sequence[Check]
    findings: list[Finding]
    """Findings of the checks: each cause before its consequences, the group with the worst finding first."""
    position: int | None
    """Number of findings shown before the state: those worse than it, with their groups. None if a check of
    the symptom shows the state, or if it is not worth showing."""
    symptom: str = ""
    steps: Sequence[dict[str, Any]] = ()
    """The rows of probe.checks: all checks of a symptom in order; without a symptom, the findings."""
    conclusion: Finding | None = None
    """The conclusion for a symptom; its `recipe` names the check that found the cause."""
    consequences: Sequence[str] = ()
    """Names of the other checks that found something."""

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis on the wire."""
        states = [check.state for check in self.checks]
        said = {
            **self.state.as_dict(),
            "findings": [finding.as_dict() for finding in self.findings],
            "position": self.position,
            "judged": {state: states.count(state) for state in (FOUND, CLEAR, UNKNOWN)},
            "unknown": [
                {"recipe": check.recipe.name, "title": check.recipe.title, "reason": check.reason}
                for check in self.checks if check.state == UNKNOWN
            ],
        }
        if self.conclusion is None:
            return said
        conclusion = {
            **replace(self.conclusion, recipe="").as_dict(), "cause": self.conclusion.recipe or None,
            "consequences": list(self.consequences),
        }
        return {**said, "symptom": self.symptom, "checks": list(self.steps), "conclusion": conclusion}


def diagnose(state: Finding, checks: Sequence[Check], symptom: str = "", endpoint: str = "") -> Diagnosis:
    """Combine the state and the results of the checks, in order: of the symptom's checks, or of all recipes.
    `endpoint` is inserted into the commands."""
    findings = in_groups(checks)
    if not symptom:
        steps = [_step(number, one.recipe, "", FOUND, one.what) for number, one in enumerate(findings, 1)]
        worse = worse_than(state.severity, findings)
        return Diagnosis(state, checks, findings, worse, steps=steps)
    rows = [(one.recipe.name, one.recipe.title, one.state, one.summary) for one in checks]
    of_process = symptom in _SYMPTOMS_OF_PROCESS
    wrong = of_process and state.severity not in (OK, INFO)
    if of_process:
        outcome = FOUND if wrong else CLEAR
        rows.insert(0, (PROCESS, "state of the process", outcome, f"{state.state}: {state.what}"))
    conclusion, beside = _conclude(symptom, state if wrong else None, checks, len(rows), endpoint)
    of = explanations(checks)
    apart = [name for name in beside if not conclusion.recipe or of.get(name) != conclusion.recipe]
    if apart and (conclusion.recipe or len(apart) > 1):  # a single one is already in the conclusion
        label = "also found" if conclusion.recipe else "found"
        conclusion = replace(conclusion, why=[*conclusion.why, f"{label}: {', '.join(apart)}"])
    steps = [_step(number, *row) for number, row in enumerate(rows, 1)]
    position = None if of_process or state.severity == OK else 0
    return Diagnosis(state, checks, findings, position, symptom, steps, conclusion, beside)


def in_groups(checks: Sequence[Check]) -> list[Finding]:
    """The findings of checks, each cause before its consequences, the group with the worst finding first."""
    of = explanations(checks)
    ordered = sorted(checks, key=lambda check: check.recipe.effect)
    return folded(worst_first(one for check in ordered for one in _with_limits(check, checks, of)), of)


def _with_limits(check: Check, checks: Sequence[Check], of: Mapping[str, str]) -> list[Finding]:
    """The findings of a check; the first one's evidence says what is not known of its cause."""
    if not check.findings:
        return []
    first, *others = check.findings
    limits = []
    serious = first.severity not in (OK, INFO) and not check.over
    if check.recipe.effect and serious and check.recipe.name not in of:
        limits.append(NO_CAUSE)
    if unjudged := not_judged(check, checks):
        missing = ", ".join(f"{one.recipe.name} ({one.reason})" for one in unjudged)
        limits.append(f"checks that could explain it did not run: {missing}")
    return [replace(first, why=[*first.why, *limits]), *others]


def _step(number: int, name: str, title: str, outcome: str, what: str) -> dict[str, Any]:
    return {"number": number, "check_name": name, "title": title, "outcome": outcome, "what": what}


def _conclude(
    symptom: str, wrong: Finding | None, checks: Sequence[Check], count: int, endpoint: str
) -> tuple[Finding, list[str]]:
    """The conclusion from the checks of a symptom, and the names of the other checks that found something.
    `wrong`: the state of the process, if it is one of the `count` checks and is not ok."""
    found = [check for check in checks if check.state == FOUND]
    if wrong is not None and wrong.state == WARM_UP and not found:
        return Finding(TOO_EARLY, NOTICE, f"{wrong.what}: {symptom} cannot be judged yet", wrong.why), []
    if wrong is not None and wrong.severity == ALARM:  # the process makes no progress: nothing else matters
        what = f"{wrong.state}: {wrong.what}"
        conclusion = Finding(CAUSE, ALARM, what, next=wrong.next[:MOST_NEXT], recipe=PROCESS)
        return conclusion, [check.recipe.name for check in found]
    causes, others = causal(found)
    named = [PROCESS] if wrong is not None else []
    if causes:
        first = causes[0]
        beside = [*named, *(one.recipe.name for one in (*causes[1:], *others))]
        if unjudged := not_judged(first, checks):
            names = ", ".join(one.recipe.name for one in unjudged)
            what = f"{first.recipe.title}: {first.summary}; checks that could explain it did not run: {names}"
            why = [*first.findings[0].why, *(f"{one.recipe.name}: {one.reason}" for one in unjudged)]
            again = [f"probe {endpoint} diagnose {symptom}", *first.findings[0].next]
            unsure = Finding(NOT_JUDGED, first.findings[0].severity, what, why, _next(again))
            return unsure, [first.recipe.name, *beside]
        sure = bool(named) or any(_is_a_sign(one) for one in (*causes, *others))
        conclusion = Finding(
            CAUSE if sure else SOMETHING, ALARM if sure else NOTICE, f"{first.recipe.title}: {first.summary}",
            first.findings[0].why, _next(first.findings[0].next), recipe=first.recipe.name,
        )
        return conclusion, beside
    unknown = [check for check in checks if check.state == UNKNOWN]
    explained = explanations(found)
    past = [one for one in found if one.over and one.recipe.name not in explained]
    left = f"; {len(unknown)} of {count} checks could not be judged" if unknown else ""
    wanted = to_know(symptom, unknown, endpoint)
    if others:
        what, more = others[0].summary, others[0].findings[0].next
    elif wrong is not None:
        what, more = f"{wrong.state}: {wrong.what}", wrong.next
    elif past:
        event = past[0].findings[0]
        what = f"{event.what}; the checks find nothing now{left}"
        conclusion = Finding(PAST, INFO, what, event.why, next=wanted)
        return conclusion, [one.recipe.name for one in past]
    else:
        return Finding(NOTHING, OK, f"none of {count} checks found anything{left}", next=wanted), []
    conclusion = Finding(
        NOT_KNOWN, NOTICE, f"{what}; no check explains why{left}", next=_next([*wanted, *more])
    )
    return conclusion, [*named, *(one.recipe.name for one in others)]


def causal(found: Iterable[Check]) -> tuple[list[Check], list[Check]]:
    """(possible causes in order, the rest): the rest are consequences, effects, or only show the symptom.
    Leaves out findings of severity `info` and events that are over."""
    serious = [
        check for check in found if check.findings[0].severity not in (OK, INFO) and not check.over
    ]
    explained = explanations(serious)
    causes = [
        check for check in serious if _names_a_cause(check) and check.recipe.name not in explained
    ]
    return causes, [check for check in serious if check not in causes]


def _names_a_cause(check: Check) -> bool:
    return check.recipe.order >= CAUSES_FROM and not check.recipe.effect


def _is_a_sign(check: Check) -> bool:
    """Whether the check shows a problem, and not only a possible cause."""
    return not _names_a_cause(check) or check.findings[0].severity == ALARM


def _next(commands: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(commands))[:MOST_NEXT]


def to_know(symptom: str, unknown: Iterable[Check], endpoint: str) -> list[str]:
    """Commands that can resolve unknown checks: collect deep statistics, then diagnose again."""
    deep = list(dict.fromkeys(one.recipe.deepen for one in unknown if one.recipe.deepen))
    if not deep:
        return []
    kinds = " ".join(f"--{kind}" for kind in deep)
    return [f"probe {endpoint} watch {kinds} --steps 5", f"probe {endpoint} diagnose {symptom}"]
