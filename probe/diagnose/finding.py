"""Finding: one result of a rule or recipe.

Produced by the rules on processes and jobs and by the recipes; printed by the commands, returned by
`/v1/diagnose` and `/v1/monitor`, stored in probe.verdicts and sent by alerts. Plain data. Any thread.
Standard library only.
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
    """A finding. `what`: one line with figures; `why`: lines of evidence; `next`: commands to run."""

    state: str
    """A state of a process (`states.STATES`), or the title of a recipe."""
    severity: str
    what: str
    why: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    culprits: tuple[int, ...] = ()
    """The ranks that are the cause, if known."""
    recipe: str = ""
    """The recipe that found it; empty for the state of a process or a job."""
    subject: str = ""
    """Distinguishes findings of one recipe."""
    step: int | None = None
    """The step at which it began or happened."""
    rank: int | None = None
    over: bool = False
    """Whether it is a past event whose effects have ended: shown with its step, but not a current cause."""
    explains: tuple[str, ...] | None = None
    """The recipes whose findings it explains; None: all those that its recipe names."""
    explained_by: str = ""
    """The recipe whose finding is the cause of this one."""

    def as_dict(self) -> dict[str, Any]:
        """The finding as a JSON object; a recipe's finding includes `recipe` and its other fields."""
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
        """The finding as a row of probe.verdicts; `capture_id` refers to its stacks in python.stacks."""
        return {
            "t_ns": t_ns, "step": step, "state": self.state, "severity": self.severity,
            "what": self.what, "why": "\n".join(self.why), "next": "\n".join(self.next),
            "capture_id": capture_id,
        }


def severity_level(severity: str) -> int:
    """The index of a severity, from least to most severe."""
    return SEVERITIES.index(severity)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings by severity; equally severe ones keep their order."""
    return sorted(findings, key=lambda one: -severity_level(one.severity))
