"""Types of the callbacks that the recorder and the loop's hooks make. Listeners import
them, never the other way round.

Called on the training thread, inside steps. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


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


def nothing() -> None:
    """A callback that nobody has set. Uninstalling may race with a step, so it must stay callable."""


class IntervalKeeper(Protocol):
    """Tells evaluation and saving from training (`core.intervals`). Called during an interval."""

    def trains(self, now_ns: int) -> None:
        """Backward or an optimizer step begins, or a step ends."""


StepCallback = Callable[[Any], object]
"""Called with an optimizer, right before or after its step."""
StepSampler = Callable[[Any, Any, Any], object]
"""Called with an optimizer and the arguments of its step, right before the step."""
StepFinisher = Callable[[Any, float], object]
"""Called with an optimizer and its learning rate, after a sampled step."""
StepTracer = Callable[[str, int, int], object]
"""Called with the class of an optimizer, and the start and end of its step in ns."""
BackwardStart = Callable[[Any, float | None, bool], object]
"""Called with the root of a backward, its loss if that is on the host, and whether a GradScaler scaled it."""
LateLoss = Callable[[int, int, float], object]
"""Called with step, micro step and value of a loss that a device delivered, on the agent's thread."""


class BackwardSampler(Protocol):
    """Follows gradients from a backward on: `updates.update_samples`. Called in steps from `due` on."""

    due: int

    def backward_begins(self, root: Any) -> None:
        """Right before a backward, with its root."""

    def backward_ends(self) -> None:
        """Right after a backward."""


class BackwardEnd(Protocol):
    """Called after each backward in steps from `due` on: `updates.weight_sums`."""

    due: int

    def backward_ends(self) -> None:
        """Right after a backward."""


class OptimizerSampler(Protocol):
    """Follows gradients through an optimizer's step: `updates.update_samples`. Called from step `due` on."""

    due: int

    def step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Right before the step, with its arguments."""

    def step_ends(self, optimizer: Any) -> None:
        """Right after the step."""


class WeightSampler(Protocol):
    """Reads weights around an optimizer's step: `updates.weight_sums`. Called from step `due` on."""

    due: int

    def step_begins(self, optimizer: Any) -> None:
        """Right before the step."""

    def step_ends(self, optimizer: Any) -> None:
        """Right after the step."""


class WriteWatch(Protocol):
    """Watches one parameter of the leading optimizer for other writers: `updates.put_back`."""

    leader: int
    """Id of that optimizer."""
    version: int
    """The parameter's version after the last step."""

    def parameter(self) -> Any:
        """The parameter; None if it is gone."""

    def written(self, parameter: Any) -> None:
        """Something other than the optimizer wrote the parameter. Called right before the step."""


class SeedListener(Protocol):
    """Called at the first step after a random generator was seeded: `facts.random_generators`."""

    def step_begins(self) -> None:
        """Right before the step."""


class Due(Protocol):
    """The step from which something is due."""

    due: int


class RootSampler(Protocol):
    """Inspects the roots of some backwards: `tensors.loss_functions`. Called from step `pace.due` on."""

    @property
    def pace(self) -> Due:
        """Says when."""

    def sample(self, root: Any, scaled: bool) -> None:
        """Right before a backward, with its root and whether a GradScaler scaled it."""
