"""Diagnosis: the state of a process or a job and what recipes found, put together as the answer.

    diagnosis = diagnose(state, checks)                         # everything, the worst first
    diagnosis = diagnose(state, checks, "nan", "4242")          # one symptom, with its conclusion
    diagnosis.as_dict()

Order, severities and the next commands are decided here and nowhere else: the server calls it, the command
prints its answer.

A symptom is gone through as a specialist would. First whether the symptom is there: recipes with an order
below 100, and for some symptoms the state of the process. Then what practitioners look at, in their order:
data, gradients, learning rate, numerics. The first thing found that explains is the cause, unless its recipe
says that it follows from another that was found. Pure. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from probe.diagnose.finding import Finding, severity_level, worst_first
from probe.diagnose.recipes.recipe import CLEAR, FOUND, UNKNOWN, Check
from probe.diagnose.states import ALARM, INFO, NOTICE, OK

CAUSES_FROM = 100
"""`order` of the first recipe that says why, and not that it is so."""
PROCESS = "process"
"""Name of the check that is the state of the process itself."""
_SYMPTOMS_OF_PROCESS = ("hang", "slow", "memory")
MOST_NEXT = 6
CAUSE, SOMETHING, NOT_KNOWN, NOTHING = "cause", "found", "cause not known", "nothing found"
"""States of a conclusion; `found`: something was, and no check says that the symptom is there."""


@dataclass(frozen=True)
class Diagnosis:
    """What there is to say of a process or a job."""

    state: Finding
    checks: Sequence[Check]
    findings: list[Finding]
    """What the checks found, the worst first."""
    position: int | None
    """How many of the findings are worse than the state: it is printed after them. None where one of the
    steps of a symptom says it, or it says nothing."""
    symptom: str = ""
    steps: Sequence[dict[str, Any]] = ()
    """The rows of probe.checks: of a symptom all checks, in their order; else what was found."""
    conclusion: Finding | None = None
    """Of a symptom: its `recipe` names the check that is the cause."""
    consequences: Sequence[str] = ()
    """Names of the checks that found something beside the cause."""

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
    """The diagnosis of what is in `state`. `checks`: those of the symptom, of all recipes without one, in
    their order; `endpoint` goes into the commands."""
    findings = worst_first(one for check in checks for one in check.findings)
    if not symptom:
        steps = [_step(number, one.recipe, "", FOUND, one.what) for number, one in enumerate(findings, 1)]
        worse = position_among(state.severity, (one.severity for one in findings))
        return Diagnosis(state, checks, findings, worse, steps=steps)
    rows = [(one.recipe.name, one.recipe.title, one.state, one.summary) for one in checks]
    of_process = symptom in _SYMPTOMS_OF_PROCESS
    wrong = of_process and state.severity not in (OK, INFO)
    if of_process:
        outcome = FOUND if wrong else CLEAR
        rows.insert(0, (PROCESS, "the process itself", outcome, f"{state.state}: {state.what}"))
    conclusion, beside = _conclude(symptom, state if wrong else None, checks, len(rows), endpoint)
    if beside:
        label = "also" if conclusion.recipe else "seen"
        conclusion = replace(conclusion, why=[*conclusion.why, f"{label}: {', '.join(beside)}"])
    steps = [_step(number, *row) for number, row in enumerate(rows, 1)]
    position = None if of_process or state.severity == OK else 0
    return Diagnosis(state, checks, findings, position, symptom, steps, conclusion, beside)


def position_among(severity: str, others: Iterable[str]) -> int:
    """How many of `others`, severities, are worse than that one."""
    return sum(severity_level(one) > severity_level(severity) for one in others)


def _step(number: int, name: str, title: str, outcome: str, what: str) -> dict[str, Any]:
    return {"number": number, "check_name": name, "title": title, "outcome": outcome, "what": what}


def _conclude(
    symptom: str, wrong: Finding | None, checks: Sequence[Check], count: int, endpoint: str
) -> tuple[Finding, list[str]]:
    """What the checks of a symptom come to, and the names of those that found something beside the cause.
    `wrong`: the state of the process, where it is one of the `count` checks and found something."""
    found = [check for check in checks if check.state == FOUND]
    if wrong is not None and wrong.severity == ALARM:  # it will not go on: nothing else matters
        what = f"{wrong.state}: {wrong.what}"
        conclusion = Finding(CAUSE, ALARM, what, next=wrong.next[:MOST_NEXT], recipe=PROCESS)
        return conclusion, [check.recipe.name for check in found]
    causes, others = causal(found)
    named = [PROCESS] if wrong is not None else []
    if causes:
        first = causes[0]
        sure = bool(named) or any(_is_a_sign(one) for one in (*causes, *others))
        conclusion = Finding(
            CAUSE if sure else SOMETHING, ALARM if sure else NOTICE, f"{first.recipe.title}: {first.summary}",
            first.findings[0].why, _next(first.findings[0].next), recipe=first.recipe.name,
        )
        return conclusion, [*named, *(one.recipe.name for one in (*causes[1:], *others))]
    unknown = [check for check in checks if check.state == UNKNOWN]
    left = f"; {len(unknown)} of {count} checks could not be judged" if unknown else ""
    wanted = to_know(symptom, unknown, endpoint)
    if others:
        what, more = others[0].summary, others[0].findings[0].next
    elif wrong is not None:
        what, more = f"{wrong.state}: {wrong.what}", wrong.next
    else:
        return Finding(NOTHING, OK, f"of {count} checks none found anything{left}", next=wanted), []
    conclusion = Finding(
        NOT_KNOWN, NOTICE, f"{what}, and no check says why{left}", next=_next([*wanted, *more])
    )
    return conclusion, [*named, *(one.recipe.name for one in others)]


def causal(found: Iterable[Check]) -> tuple[list[Check], list[Check]]:
    """What was found, apart: what may be causes, in their order, and what follows from one of them or only
    says that the symptom is there. What is only `info` is neither."""
    serious = [check for check in found if check.findings[0].severity not in (OK, INFO)]
    names = {check.recipe.name for check in serious}
    causes = [
        check for check in serious
        if check.recipe.order >= CAUSES_FROM and not names & set(check.recipe.follows)
    ]
    return causes, [check for check in serious if check not in causes]


def _is_a_sign(check: Check) -> bool:
    """Whether it says that there is something wrong, and not only what may lead there."""
    return check.recipe.order < CAUSES_FROM or check.findings[0].severity == ALARM


def _next(commands: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(commands))[:MOST_NEXT]


def to_know(symptom: str, unknown: Iterable[Check], endpoint: str) -> list[str]:
    """Commands after which what is unknown can be judged: deep statistics, and the diagnosis once more."""
    deep = list(dict.fromkeys(one.recipe.deepen for one in unknown if one.recipe.deepen))
    if not deep:
        return []
    kinds = " ".join(f"--{kind}" for kind in deep)
    return [f"probe {endpoint} watch {kinds} --steps 5", f"probe {endpoint} diagnose {symptom}"]
