"""Finding: one thing that was found, from the rule or recipe that found it to the terminal.

The rules on processes and jobs make findings, recipes make them from rows; the commands print them,
`/v1/diagnose` and `/v1/monitor` send them, probe.verdicts keeps them and alerts tell them. Plain data. Any
thread. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from probe.diagnose.states import ALARM, INFO, NOTICE, OK

SEVERITIES = (OK, INFO, NOTICE, ALARM)
"""From the least to the most."""


@dataclass(frozen=True)
class Finding:
    """What was found: `what` is a line with figures, `why` the evidence, `next` the commands, a line each."""

    state: str
    """A state of a process (`states.STATES`), or the title of a recipe."""
    severity: str
    what: str
    why: list[str] = field(default_factory=list)
    next: list[str] = field(default_factory=list)
    culprits: tuple[int, ...] = ()
    """Of a job: the ranks that are the cause; empty when no rank is, or none is known."""
    recipe: str = ""
    """The recipe that found it; empty for the state of a process or a job."""
    subject: str = ""
    """Tells the findings of one recipe apart."""
    step: int | None = None
    """When it began or happened."""
    rank: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """The finding on the wire; that of a recipe also says which, and about what."""
        said = {
            "state": self.state, "severity": self.severity, "what": self.what, "why": self.why,
            "next": self.next,
        }
        about = {"subject": self.subject, "step": self.step, "rank": self.rank}
        return {"recipe": self.recipe, **said, **about} if self.recipe else said

    def row(self, t_ns: int, step: int | None, capture_id: str | None = None) -> dict[str, Any]:
        """The finding as its row of probe.verdicts; `capture_id` names its stacks in python.stacks."""
        return {
            "t_ns": t_ns, "step": step, "state": self.state, "severity": self.severity,
            "what": self.what, "why": "\n".join(self.why), "next": "\n".join(self.next),
            "capture_id": capture_id,
        }


def severity_level(severity: str) -> int:
    """The place of a severity from the least to the most."""
    return SEVERITIES.index(severity)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings by severity; equally severe ones keep their order."""
    return sorted(findings, key=lambda one: -severity_level(one.severity))
