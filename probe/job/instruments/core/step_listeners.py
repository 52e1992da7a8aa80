"""What the recorder tells others, as protocols: who listens imports the recorder, not the other way.

Called on the training thread, inside steps. Standard library only.
"""

from __future__ import annotations

from typing import Protocol


class StepListener(Protocol):
    """Works between two steps: `boundary.safe_point`. Called on the training thread, only while it waits."""

    def step_ended(self, boundary: str) -> None:
        """While `Recorder.end_awaited`: a step has ended, by `boundary` of python.steps."""

    def step_begins(self, where: str, loader: int) -> None:
        """While `Recorder.begin_awaited`: the next begins with its `data` (from `loader`) or `forward`."""


class NoListener:
    """Until there is one."""

    def step_ended(self, boundary: str) -> None:
        """See `StepListener`."""

    def step_begins(self, where: str, loader: int) -> None:
        """See `StepListener`."""

    def trains(self, now_ns: int) -> None:
        """See `IntervalKeeper`."""


class IntervalKeeper(Protocol):
    """Decides what is no part of the training: `core.intervals`. Called while `Recorder.aside` is set."""

    def trains(self, now_ns: int) -> None:
        """Backward or an optimizer step begins, or a step ends."""
