"""A diagnosis as a specialist makes it: for one symptom the checks in their order, each with its result, and
at the end a cause, or what is still unknown and what to do to know it.

First whether the symptom is there (recipes with an order below 100; for a hang, slow steps and memory the
look at the process), then what practitioners look at, in their order: data, gradients, learning rate,
numerics. The first thing found that explains is the cause, unless its recipe says that it follows from
another that was found. Pure. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from probe.diagnose.finding import Finding
from probe.diagnose.recipes.recipe import CLEAR, FOUND, UNKNOWN, Check
from probe.diagnose.states import ALARM, INFO, OK

CAUSES_FROM = 100
"""`order` of the first recipe that says why, and not that it is so."""
THE_PROCESS = "process"
"""Name of the check that is the look at the process itself."""
_LOOKED_AT = ("hang", "slow", "memory")
MOST_NEXT = 6
CAUSE, SOMETHING, NOT_KNOWN, NOTHING = "cause", "found", "cause not known", "nothing found"


@dataclass(frozen=True)
class CheckRow:
    """One step of a diagnosis: what was looked at and what came of it. `what` is empty when all is well."""

    number: int
    check_name: str
    title: str
    outcome: str
    what: str


@dataclass(frozen=True)
class Conclusion:
    """What the checks come to: `cause` and `consequences` are names of checks; `next` are commands.

    `state`: `cause`; `found`, where something was and no check says that the symptom is there; `cause not
    known`; `nothing found`."""

    state: str
    what: str
    cause: str | None
    consequences: list[str]
    next: list[str]


@dataclass(frozen=True)
class Diagnosis:
    """All checks of a symptom, in their order, and what they come to."""

    checks: list[CheckRow]
    conclusion: Conclusion

    def as_dict(self) -> dict[str, Any]:
        """The diagnosis on the wire."""
        return {
            "checks": [asdict(check) for check in self.checks], "conclusion": asdict(self.conclusion),
        }


def examine(
    symptom: str, verdict: Mapping[str, Any], outcomes: Sequence[Check], endpoint: str
) -> Diagnosis:
    """The checks of a symptom and their conclusion. `verdict`: what the look at the process said; `outcomes`
    are of the recipes of the symptom, in their order."""
    checks: list[CheckRow] = []
    if symptom in _LOOKED_AT:
        wrong = verdict["severity"] not in (OK, INFO)
        what = f"{verdict['state']}: {verdict['what']}"
        checks.append(CheckRow(1, THE_PROCESS, "the process itself", FOUND if wrong else CLEAR, what))
    for outcome in outcomes:
        checks.append(
            CheckRow(
                len(checks) + 1, outcome.recipe.name, outcome.recipe.title, outcome.state,
                outcome.summary,
            )
        )
    looked = verdict if checks and checks[0].check_name == THE_PROCESS else None
    return Diagnosis(checks, _conclude(symptom, looked, checks, outcomes, endpoint))


def causal(outcomes: Iterable[Check]) -> tuple[list[Check], list[Check]]:
    """What was found, apart: what may be causes, in their order, and what follows from one of them or only
    says that the symptom is there. What is only `info` is neither."""
    found = [
        one for one in outcomes if one.state == FOUND and one.findings[0].severity not in (OK, INFO)
    ]
    names = {one.recipe.name for one in found}
    causes = [
        one for one in found if one.recipe.order >= CAUSES_FROM and not names & set(one.recipe.follows)
    ]
    return causes, [one for one in found if one not in causes]


def _conclude(
    symptom: str, verdict: Mapping[str, Any] | None, checks: Sequence[CheckRow], outcomes: Sequence[Check],
    endpoint: str,
) -> Conclusion:
    if verdict is not None and verdict["severity"] == ALARM:  # it will not go on: nothing else matters
        beside = [check.check_name for check in checks[1:] if check.outcome == FOUND]
        return Conclusion(CAUSE, checks[0].what, THE_PROCESS, beside, list(verdict["next"])[:MOST_NEXT])
    causes, others = causal(outcomes)
    named = [THE_PROCESS] if verdict is not None and checks[0].outcome == FOUND else []
    unknown = [one for one in outcomes if one.state == UNKNOWN]
    left = f"; {len(unknown)} of {len(checks)} checks could not be judged" if unknown else ""
    if causes:
        first, rest = causes[0], [*named, *(one.recipe.name for one in (*causes[1:], *others))]
        what = f"{first.recipe.title}: {first.summary}"
        sure = bool(named) or any(_is_a_sign(one) for one in (*causes, *others))
        return Conclusion(
            CAUSE if sure else SOMETHING, what, first.recipe.name, rest, _next(first.findings[0], [])
        )
    wanted = to_know(symptom, unknown, endpoint)
    if others:
        what = f"{others[0].summary}, and no check says why{left}"
        names = [*named, *(one.recipe.name for one in others)]
        return Conclusion(NOT_KNOWN, what, None, names, _next(others[0].findings[0], wanted))
    if named and verdict is not None:
        what = f"{checks[0].what}, and no check says why{left}"
        return Conclusion(NOT_KNOWN, what, None, named, [*wanted, *verdict["next"]][:MOST_NEXT])
    return Conclusion(NOTHING, f"of {len(checks)} checks none found anything{left}", None, [], wanted)


def _is_a_sign(outcome: Check) -> bool:
    """Whether it says that there is something wrong, and not only what may lead there."""
    return outcome.recipe.order < CAUSES_FROM or outcome.findings[0].severity == ALARM


def _next(finding: Finding, more: Sequence[str]) -> list[str]:
    return list(dict.fromkeys([*more, *finding.next]))[:MOST_NEXT]


def to_know(symptom: str, unknown: Iterable[Check], endpoint: str) -> list[str]:
    """Commands after which what is unknown can be judged: deep statistics, and the diagnosis once more."""
    deep = list(dict.fromkeys(one.recipe.deepen for one in unknown if one.recipe.deepen))
    if not deep:
        return []
    kinds = " ".join(f"--{kind}" for kind in deep)
    return [f"probe {endpoint} watch {kinds} --steps 5", f"probe {endpoint} diagnose {symptom}"]
