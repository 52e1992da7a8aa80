"""Awaited: losses and gradients whose value a device has not delivered yet, and what would repeat their step.

HOT PATH, on the training thread, twice a step where losses come from a device: `add`, `known`. Nothing here
waits, but `known` where the user asked for it. The agent's thread, which reads the same copies, calls `note`
and `given_up`. Standard library only.

What would repeat a step is the model's call, by reference, and the weights of that moment. Both are there
until an optimizer writes: `weights_change` lets go of them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

MOST = 64
"""Figures awaited; beyond that the oldest are left to the agent's thread."""


class Figure:
    """A loss, or the sum of a gradient."""

    __slots__ = (
        "call", "event", "host", "lost", "micro_step", "noted_s", "root", "scaled", "seen_by", "step",
        "value", "version",
    )

    def __init__(
        self, sent: tuple[Any, Any], seen_by: str, step: int, micro_step: int, scaled: bool, call: Any,
        root: Any, version: int,
    ) -> None:
        self.host, self.event = sent
        self.seen_by, self.step, self.micro_step, self.scaled = seen_by, step, micro_step, scaled
        self.call, self.root, self.version = call, root, version
        """The kept call of the model, what backward was called on, and the version of a weight."""
        self.value: float | None = None
        self.noted_s = 0.0
        self.lost = False
        """Whether an optimizer may have written the weights since."""


class Awaited:
    """Figures under way, oldest first."""

    def __init__(self) -> None:
        self.figures: deque[Figure] = deque(maxlen=MOST)
        self._taken: Figure | None = None

    # HOT PATH: the training thread --------------------------------------------

    def add(self, figure: Figure) -> None:
        """Await one."""
        self.figures.append(figure)

    def known(self, *, wait: bool = False) -> Figure | None:
        """Take the oldest figure if its value is known; `wait`: wait for its device."""
        figures = self.figures
        while figures:
            figure = figures[0]
            if figure.value is None:
                readable = getattr(figure.host, "is_cpu", False)
                if wait:
                    figure.event.synchronize()
                elif not readable or not figure.event.query():
                    return None  # a copy that is still on the device is read by the agent's thread
                host = figure.host
                figure.value = float(host.item() if readable else host.tolist())
            self._taken = figure
            try:
                figures.remove(figure)
            except ValueError:
                continue  # the agent's thread gave it up
            return figure
        return None

    def weights_change(self) -> None:
        """An optimizer writes the weights now: nothing of before can be repeated."""
        for figure in self.figures:
            figure.lost = True
            figure.call = figure.root = None

    def forget_graphs(self) -> None:
        """The next forward begins: let go of the graphs of those before it."""
        for figure in self.figures:
            figure.root = None

    # The agent's thread -------------------------------------------------------

    def note(self, seen_by: str, step: int, micro_step: int, value: float) -> bool:
        """A value arrived. Whether the training thread has seen it, or will when it looks next."""
        for figure in (self._taken, *list(self.figures)):
            if figure is not None and (figure.seen_by, figure.step, figure.micro_step) == (
                seen_by, step, micro_step,
            ):
                figure.noted_s = figure.noted_s or time.monotonic()
                figure.value = value
                return True
        return False

    def given_up(self, after_s: float) -> list[Figure]:
        """Take the figures at which the training thread has not looked for so long."""
        now_s = time.monotonic()
        found = []
        for figure in list(self.figures):
            if figure.noted_s and now_s - figure.noted_s >= after_s:
                try:
                    self.figures.remove(figure)
                except ValueError:
                    continue  # the training thread has taken it just now
                found.append(figure)
        return found


def too_late(steps: int) -> str:
    """Why a step of which the device was so many steps behind is not repeated."""
    return (
        f"the device was {steps} step{'s' if steps != 1 else ''} behind, and the optimizer had written the "
        "weights before the value was known; with PROBE_NAN_TRACE=wait the next run waits for it"
    )
