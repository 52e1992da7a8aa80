"""Awaited: losses and gradients whose value has not arrived from the device, with the state to repeat a step.

HOT PATH, on the training thread, twice per step if losses come from a device: `add`, `known`. Nothing here
waits, except `known` if the user chose that. The agent's thread, which reads the same copies, calls `note`
and `given_up`. Standard library only.

Repeating a step needs the model's call, kept by reference, and the weights of that moment. Both exist until
an optimizer writes: `weights_change` then releases the call.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

MOST = 64
"""Maximum number of awaited figures; beyond that, the oldest are left to the agent's thread."""


class Figure:
    """A loss or the sum of a gradient, awaited from a device."""

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
        """The kept call of the model, the root of the backward, and the version of a weight."""
        self.value: float | None = None
        self.noted_s = 0.0
        self.lost = False
        """Whether an optimizer may have written the weights since then."""


class Awaited:
    """Awaited figures, oldest first."""

    def __init__(self) -> None:
        self.figures: deque[Figure] = deque(maxlen=MOST)
        self._taken: Figure | None = None

    # HOT PATH: the training thread --------------------------------------------

    def add(self, figure: Figure) -> None:
        """Await a figure."""
        self.figures.append(figure)

    def known(self, *, wait: bool = False) -> Figure | None:
        """Take the oldest figure if its value is known; None if not. `wait`: wait for its device."""
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
                continue  # the agent's thread took it as given up
            return figure
        return None

    def weights_change(self) -> None:
        """An optimizer writes the weights now: no earlier step can be repeated."""
        for figure in self.figures:
            figure.lost = True
            figure.call = figure.root = None

    def forget_graphs(self) -> None:
        """The next forward begins: release the graphs of earlier ones."""
        for figure in self.figures:
            figure.root = None

    # The agent's thread -------------------------------------------------------

    def note(self, seen_by: str, step: int, micro_step: int, value: float) -> bool:
        """A value arrived. Returns whether the training thread has handled it, or will at its next check."""
        for figure in (self._taken, *list(self.figures)):
            if figure is not None and (figure.seen_by, figure.step, figure.micro_step) == (
                seen_by, step, micro_step,
            ):
                figure.noted_s = figure.noted_s or time.monotonic()
                figure.value = value
                return True
        return False

    def given_up(self, after_s: float) -> list[Figure]:
        """Take the figures that the training thread has not handled within `after_s` of their arrival."""
        now_s = time.monotonic()
        found = []
        for figure in list(self.figures):
            if figure.noted_s and now_s - figure.noted_s >= after_s:
                try:
                    self.figures.remove(figure)
                except ValueError:
                    continue  # the training thread just took it
                found.append(figure)
        return found


def too_late(steps: int) -> str:
    """The reason for not repeating a step whose value arrived this many steps late."""
    return (
        f"the device was {steps} step{'s' if steps != 1 else ''} behind, and the optimizer had written the "
        "weights before the value was known; with PROBE_NAN_TRACE=wait the next run waits for it"
    )
