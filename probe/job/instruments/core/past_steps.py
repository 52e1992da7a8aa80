"""Past steps: reads the rows of the last steps, and fills in figures that arrive late.

Any thread, off the hot path: the recorder itself keeps nothing that the row of a step has. Rows count from 1
and steps from 0, so the newest row has the number of the current step. Standard library only.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from probe.base.clock import ANCHOR_NS
from probe.recording.layout import NULL_DOUBLE
from probe.recording.ring import Ring
from probe.recording.tables import BY_NAME

MOST_RECENT = 512
"""How many steps back `Recorder.recent` and `PastSteps.ends` go."""
_FIELDS = [column.name for column in BY_NAME["python.steps"].columns]
_T, _WALL, _SPENT = _FIELDS.index("t_ns"), _FIELDS.index("wall_s"), -1
_SAMPLED, _SHADOW = _FIELDS.index("sampled"), _FIELDS.index("shadow")
_OUTSIDE = slice(_FIELDS.index("held_s"), _FIELDS.index("checkpoint_s") + 1)
"""held_s, eval_s and checkpoint_s."""
_NOTHING_OUTSIDE = [NULL_DOUBLE] * 3
_LOSS = [column.name for column in BY_NAME["python.losses"].columns].index("loss")


class StepCost(NamedTuple):
    """A step's duration and cost, for the governor."""

    wall_ns: int
    """Without the time held, in evaluations and in checkpoints."""
    sampled: bool
    shadow: bool
    cost_ns: int


class PastSteps:
    """Reads the rings of steps and losses. `step` is always the current step."""

    def __init__(self, steps: Ring, losses: Ring) -> None:
        self._steps, self._losses = steps, losses
        self._begun: list[tuple[int, int]] = []

    def begun(self, fields: list[Any]) -> None:
        """Note the end of the step in which recording began; it gets no row, `fields` would be it."""
        self._begun = [(-1, fields[_T] - ANCHOR_NS)]

    def row(self, step: int) -> list[Any] | None:
        """Fields of the last row; None before the first."""
        return self._steps.read(step) if step > 0 else None

    def costs(self, step: int, most: int) -> list[StepCost]:
        """The last `most` steps, as far as they are still in memory, oldest first."""
        found = []
        for row in self._last(step, most):
            worked = round(row[_WALL] * 1e9)
            outside = row[_OUTSIDE]
            if outside != _NOTHING_OUTSIDE:
                worked -= sum(round(one * 1e9) for one in outside if one != NULL_DOUBLE)
            found.append(StepCost(worked, row[_SAMPLED] == 1, row[_SHADOW] == 1, row[_SPENT]))
        return found

    def ends(self, step: int) -> list[tuple[int, int]]:
        """Number and end (monotonic ns) of the last steps; -1 is the step in which recording began."""
        found = [(row[0], row[_T] - ANCHOR_NS) for row in self._last(step, MOST_RECENT)]
        return found if found and found[0][0] else self._begun + found

    def losses(self, newest: int, most: int) -> list[float]:
        """The last `most` finite losses up to row number `newest`, oldest first."""
        rows = [self._losses.read(number) for number in range(max(1, newest + 1 - 2 * most), newest + 1)]
        found = [float(row[_LOSS]) for row in rows if row is not None]
        return [loss for loss in found if loss - loss == 0.0][-most:]

    def amend(self, step: int, of_step: int, name: str, value: float) -> None:
        """Put a late figure into the row of its step, unless the row will soon be overwritten or already has
        one."""
        number, field = of_step + 1, _FIELDS.index(name)
        fields = self._steps.read(number) if 0 <= step - of_step < self._steps.rows // 2 else None
        if fields is not None and fields[0] == of_step and fields[field] == NULL_DOUBLE:
            fields[field] = value
            self._steps.put(number, *fields)

    def _last(self, step: int, most: int) -> list[list[Any]]:
        rows = [self._steps.read(number) for number in range(max(1, step + 1 - most), step + 1)]
        return [row for row in rows if row is not None]
