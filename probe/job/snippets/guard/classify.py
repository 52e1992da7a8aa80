"""Classifies a snippet: does it only read, wait for something outside, change the job, or must it not run?

The syntax tree is read once, from top to bottom, against the lists of `rules`; what is not on them counts as
changing. The guard knows which variables hold something that the snippet made itself. What goes out of sight,
into a container, a function or a variable with several values, is in one place, and counts as the job's
(`operations`). No code of the snippet or the job runs: names are the objects that they are now, attributes
are looked up in dictionaries (`lookup`).

The guard protects from mistakes. It is not a sandbox: whoever may send a snippet may run code as the user of
the job. Runs on the thread of the request, while the training continues. Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, NamedTuple

from probe.base.isolation import capture
from probe.job.snippets.guard.kinds import Finding
from probe.job.snippets.guard.reading import Reader
from probe.job.snippets.guard.rules import BLOCKING, CHANGING, COLLECTIVE, READING, REFUSED, SETTLED, SEVERITY

__all__ = (
    "BLOCKING", "CHANGING", "COLLECTIVE", "READING", "REFUSED", "SETTLED", "Finding", "Judgement", "classify",
)


class Judgement(NamedTuple):
    """The class of a snippet, and why it is not a milder one."""

    kind: str
    findings: tuple[Finding, ...]
    """What makes it more than reading, the worst first."""

    @property
    def only_looks(self) -> bool:
        """Whether it changes nothing and waits for nothing, wherever it has to run."""
        return self.kind in (READING, SETTLED)


def classify(tree: ast.Module, names: Mapping[str, Any]) -> Judgement:
    """The class of a snippet (see `rules`); never raises, and runs nothing.

    `names`: the objects that the names in it mean; it must then run with these very objects."""
    found, error = capture(lambda: Reader(tree, names).read(tree.body))
    if error is not None:
        found = [Finding(CHANGING, 1, "the snippet", f"could not be judged ({type(error).__name__})")]
    findings = tuple(sorted(found or (), key=lambda one: (-SEVERITY[one.kind], one.line)))
    return Judgement(findings[0].kind if findings else READING, findings)
