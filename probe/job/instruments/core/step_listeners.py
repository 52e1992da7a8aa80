"""Protocols of the recorder's callbacks: listeners import the recorder, never the other way round.

Called on the training thread, inside steps. Standard library only.
"""

from __future__ import annotations

from typing import Protocol


class StepListener(Protocol):
    """Works between two steps: `boundary.safe_point`. Called on the training thread, only while work is
    pending."""

    def step_ended(self, boundary: str) -> None:
        """A step has ended; `boundary` as in python.steps. Called while `Recorder.end_awaited`."""

    def step_begins(self, where: str, loader: int) -> None:
        """The next step begins, `where` is `data` (from `loader`) or `forward`. Called while
        `Recorder.begin_awaited`."""


class NoListener:
    """Placeholder until a listener is set."""

    def step_ended(self, boundary: str) -> None:
        """See `StepListener`."""

    def step_begins(self, where: str, loader: int) -> None:
        """See `StepListener`."""

    def trains(self, now_ns: int) -> None:
        """See `IntervalKeeper`."""


class IntervalKeeper(Protocol):
    """Tells evaluation and saving from training: `core.intervals`. Called while `Recorder.aside` is set."""

    def trains(self, now_ns: int) -> None:
        """Backward or an optimizer step begins, or a step ends."""
