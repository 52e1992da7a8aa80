"""Finding: one result of a rule or recipe.

The rules on processes and jobs and the recipes make findings; the commands print them, `/v1/diagnose` and
`/v1/monitor` return them, probe.verdicts stores them and alerts send them. Plain data. Any thread. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from probe.diagnose.states import ALARM, INFO, NOTICE, OK

SEVERITIES = (OK, INFO, NOTICE, ALARM)
"""From least to most severe."""


@dataclass(frozen=True)
class Finding:
    """A finding: `what` in one line with figures, `why` the lines of evidence, `next` the commands."""

    state: str
    """A state of a process (`states.STATES`), or the title of a recipe."""
    severity: str
    what: str
    why: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    culprits: tuple[int, ...] = ()
    """The ranks of a job that are the cause, if known."""
    recipe: str = ""
    """The recipe that found it; empty for the state of a process or a job."""
    subject: str = ""
    """Distinguishes findings of one recipe."""
    step: int | None = None
    """When it began or happened."""
    rank: int | None = None
    over: bool = False
    """An event in the past whose effects have ended: shown with its step, but the cause of nothing now."""
    explained_by: str = ""
    """The recipe whose finding is the cause of this one."""

    def as_dict(self) -> dict[str, Any]:
        """The finding on the wire; with `recipe` and what only recipes say if one found it."""
        said = {
            "state": self.state, "severity": self.severity, "what": self.what, "why": self.why,
            "next": self.next,
        }
        about = {
            "subject": self.subject, "step": self.step, "rank": self.rank,
            "over": self.over, "explained_by": self.explained_by or None,
        }
        return {"recipe": self.recipe, **said, **about} if self.recipe else said

    def row(self, t_ns: int, step: int | None, capture_id: str | None = None) -> dict[str, Any]:
        """The finding as its row of probe.verdicts; `capture_id` names its stacks in python.stacks."""
        return {
            "t_ns": t_ns, "step": step, "state": self.state, "severity": self.severity,
            "what": self.what, "why": "\n".join(self.why), "next": "\n".join(self.next),
            "capture_id": capture_id,
        }


def severity_level(severity: str) -> int:
    """The rank of a severity, from least to most severe."""
    return SEVERITIES.index(severity)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings by severity; equally severe ones keep their order."""
    return sorted(findings, key=lambda one: -severity_level(one.severity))
