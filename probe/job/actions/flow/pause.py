"""Pause and resume: hold the training thread between two steps, and release it.

While it is held, actions and snippets that wait for a boundary run at once. Standard library only.
"""

from __future__ import annotations

from typing import Any

from probe.base.errors import ActionRefused
from probe.job.actions.action import Action, Site, number

USUAL_S = 600.0
"""Default length: a pause ends by itself, in case nobody comes back."""
LONGEST_S = 86_400.0
LONGEST_OF_SEVERAL_S = 300.0
"""Limit on one rank of several: the others wait in a collective, by default for at most ten minutes (NCCL) or
thirty (gloo)."""


class Pause(Action):
    """Hold the training thread at the next boundary for at most `for_s`."""

    name = "pause"
    takes = ("for_s",)

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        self._until_s: float | None = None
        super().__init__(arguments, site)
        alone = site.several_ranks and not site.together
        longest_s = LONGEST_OF_SEVERAL_S if alone else LONGEST_S
        self._for_s = number(arguments, "for_s", min(USUAL_S, longest_s), above=True)
        if self._for_s > longest_s:
            raise ActionRefused(
                f"a pause of this job is at most {longest_s:g} s",
                hint="The other ranks wait for this one, and eventually time out."
                if site.several_ranks else "Pause it again when it is over.",
            )

    def begin(self) -> None:
        """Hold it."""
        self._until_s = self.site.safepoint.pause(self._for_s)

    @property
    def standing(self) -> bool:
        """Whether this pause holds the thread; it ends by itself."""
        return self._until_s is not None and self._until_s == self.site.safepoint.paused_until_s

    @standing.setter
    def standing(self, value: bool) -> None:
        if not value:
            self._until_s = None

    def report(self) -> dict[str, Any]:
        """Say how long the pause lasts at most."""
        alone = self.site.several_ranks and not self.site.together
        notes = ["the other ranks wait for it in their next collective"] if alone else []
        return {"what": f"the training is paused, for at most {self._for_s:g} s", "notes": notes}

    def undo(self) -> str:
        """Let the training continue."""
        if not self._end():
            return "the pause had ended already"
        return "the training continues"

    def cancel(self) -> None:
        """Let it continue."""
        self._end()

    def _end(self) -> bool:
        held = self.standing
        if held:
            self.site.safepoint.resume()
        self._until_s = None
        return held


class Resume(Action):
    """End a pause."""

    name = "resume"
    takes = ()
    undoable = False

    def __init__(self, arguments: dict[str, Any], site: Site) -> None:
        super().__init__(arguments, site)
        if not site.safepoint.paused:
            raise ActionRefused(
                "the training is not paused", hint="`probe PID diagnose` says what it is doing."
            )

    def begin(self) -> None:
        """On the training thread, which is at a boundary."""
        self.site.safepoint.resume()

    def report(self) -> dict[str, Any]:
        """Say that the training continues."""
        return {"what": "the training continues"}
