"""Update rows: builds the rows of python.updates, which follow a gradient from one backward to the next.

`Entry` is filled on the training thread in a sampled step, with copies of a few elements. `write` computes
the figures on the agent's thread and touches no object of the job. torch inside functions.
"""

from __future__ import annotations

import math
import sys
import time
import weakref
from statistics import median
from typing import Any, NamedTuple

from probe.base.accelerator import measurable
from probe.base.clock import ANCHOR_NS
from probe.job.instruments.core.recorder import Recorder
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE, NULL_INTEGER, NULL_STRING

SIDE = 8
ELEMENTS = SIDE * SIDE
"""Elements sampled of each parameter: 8 in each of 8 rows of a matrix, 64 of a vector. In a smaller one,
some elements are sampled several times."""
LEAST_BOUNDED, LEAST_SIZES = 32, 8
"""Minimum for detecting bounds: different elements, and different absolute values among them."""
LEAST_SCALE = 16.0
"""Smallest scaler factor for which scaled and unscaled gradients can be told apart."""
_VALUES = ("ended", "clipped", "entered", "before", "after", "later", "between", "left")
CARRIED = ("scale", "clip_undone")


class Watched(NamedTuple):
    """A parameter to sample, and the positions of the sampled elements. Created on the agent's thread."""

    parameter: weakref.ref[Any]
    name: int
    """String number; 0 while unknown."""
    place: int
    registered: int
    """0: in a model but not registered; NULL_BOOLEAN: unknown."""
    numel: int
    dtype: int
    index: Any
    looked_at: int
    rows: int
    """Number of different rows among the sampled elements of a matrix; 0 for a vector."""
    plain: bool
    """Whether it is a plain tensor that requires a gradient, not an `nn.Parameter`."""


def watched(
    parameter: Any, name: int, place: int, registered: int, dtype: int, *, plain: bool = False
) -> Watched:
    """Choose the elements of a parameter to sample; on the agent's thread."""
    torch: Any = sys.modules["torch"]
    shape, numel = tuple(parameter.shape), parameter.numel()
    rows = shape[0] if len(shape) > 1 and numel else 0
    along = torch.arange(SIDE if rows else ELEMENTS, device=parameter.device)
    if rows:
        columns = numel // rows
        down = (along * rows) // SIDE * columns
        index = (down[:, None] + ((along * columns) // SIDE)[None]).reshape(-1)
        looked_at = min(SIDE, rows) * min(SIDE, columns)
    else:
        index, looked_at = (along * max(numel, 1)) // ELEMENTS, min(ELEMENTS, numel)
    return Watched(
        weakref.ref(parameter), name, place, registered, numel, dtype, index, looked_at,
        min(SIDE, rows) if rows > 1 else 0, plain,
    )


class Entry:
    """One parameter of a sample. Values are tensors of `ELEMENTS` elements; None if not taken."""

    __slots__ = (
        *_VALUES, *CARRIED, "at_step", "cleared", "clip_before", "clip_is_in", "decay", "differentiable",
        "ended_at", "group", "in_graph", "kept", "left_known", "optimizer", "owners", "parameter", "rounds",
        "spoiled", "stepped", "watched",
    )

    def __init__(
        self, one: Watched, parameter: Any, owners: tuple[int, ...], optimizer: int, group: int
    ) -> None:
        self.watched, self.parameter = one, parameter
        self.owners, self.optimizer, self.group = owners, optimizer, group
        """Ids of the optimizers that hold it, the first one's class, and its group there."""
        self.ended: Any = None
        """The gradient at the end of the last backward before the step."""
        self.clip_before: Any = None
        """The job's last clipping when `ended` was taken."""
        self.clipped: Any = None
        """The gradient when it was clipped, if a GradScaler was not called to unscale it before."""
        self.clip_is_in = False
        """Whether `clipped` was read after the clipping."""
        self.entered: Any = None
        """The gradient on entry to the step."""
        self.before: Any = None
        self.after: Any = None
        self.later: Any = None
        """The value before the step, after it, and at the next backward."""
        self.between: Any = None
        """The value when the gradient was last found cleared between two backwards."""
        self.left: Any = None
        """The gradient that another optimizer's step left behind, when the backward before the own step
        began."""
        self.left_known = False
        """Whether that was looked at."""
        self.ended_at = self.at_step = ""
        """`none` without a gradient, `present` with one; empty if not read."""
        self.cleared = 0
        self.stepped = False
        self.spoiled = False
        """Whether an optimizer stepped again before `later` was taken."""
        self.decay = NULL_DOUBLE
        self.scale: Any = 1.0
        """The GradScaler's factor contained in `ended`."""
        self.clip_undone: Any = math.nan
        """The factor that undoes the job's clipping; NaN without. Like `scale`, a number; or, until the
        values are on the host, a one-element tensor, and after `release` its index among the carried ones."""
        self.rounds = False
        """Whether the optimizer is torch's own, which rounds each update to the parameter's precision."""
        self.in_graph = NULL_BOOLEAN
        self.differentiable: bool | None = None
        """Whether the gradient had a graph of its own on entry to the step; None if not read."""
        self.kept = 0
        """Tensors that this graph still held when the step ended; 0 once a backward consumed it."""

    def release(self, reached: set[int] | None, carried: list[Any]) -> list[Any]:
        """Return the values taken, in the order of `_VALUES`, and release the parameter. Each value attribute
        then holds whether it was taken. `reached`: ids of the leaves of the graphs, None if unknown. Factors
        that are still one-element tensors are added to `carried`, each once."""
        if reached is not None:
            self.in_graph = id(self.parameter) in reached
        values = [getattr(self, name) for name in _VALUES]
        for name, value in zip(_VALUES, values, strict=True):
            setattr(self, name, value is not None)
        for name in CARRIED:
            number = getattr(self, name)
            if not isinstance(number, float):
                places = [place for place, one in enumerate(carried) if one is number]
                setattr(self, name, places[0] if places else len(carried))
                if not places:
                    carried.append(number)
        self.parameter = None
        return [value for value in values if value is not None]


class UpdateRows:
    """Writes the rows of one sample; on the agent's thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._append = recorder.rings["python.updates"].append
        self._words = {name: recorder.intern(name) for name in ("none", "zero", "present")}

    def write(self, step: int, t_ns: int, entries: list[Entry], values: Any) -> bool | None:
        """Write the rows. `values`: float64 on the host, the `release`d values of all entries concatenated,
        followed by the carried factors.

        Returns whether clipped gradients still contained a GradScaler's factor; None if not sampled, or if
        they match neither the gradients after backward nor the unscaled ones."""
        torch: Any = sys.modules["torch"]
        ends = ELEMENTS * sum(getattr(entry, name) for entry in entries for name in _VALUES)
        carried = values[ends:].tolist()
        for entry in entries:
            entry.scale, entry.clip_undone = (
                carried[one] if isinstance(one, int) else one for one in (entry.scale, entry.clip_undone)
            )
        with torch.no_grad():
            matrices = _matrices(entries, values[:ends].reshape(-1, ELEMENTS))
            figures = {name: column.tolist() for name, column in _figures(*matrices).items()}
        parts = []
        for number, entry in enumerate(entries):
            found = {name: column[number] for name, column in figures.items()}
            part = _left_of_scale(entry, found)
            self._put(step, t_ns, entry, found, part)
            if math.isfinite(part) and entry.scale >= LEAST_SCALE:
                parts.append((part, part * entry.scale))
        if not parts:
            return None
        part, times = (median(each) for each in zip(*parts, strict=True))
        return True if 0.5 < part < 2.0 else False if 0.5 < times < 2.0 else None

    def _put(self, step: int, t_ns: int, entry: Entry, found: dict[str, float], part: float) -> None:
        one = entry.watched
        measured = entry.before and entry.after and entry.stepped
        followed = entry.after and entry.later
        weight = found["weight"] if entry.before else found["later"] if entry.later else math.nan
        self._append(
            step, t_ns, one.name, one.place, one.registered, one.plain, one.numel, one.dtype, entry.optimizer,
            entry.in_graph,
            self._state(entry.ended_at, found["ended"]), self._state(entry.at_step, found["entered"]),
            _number(found["ended"] / entry.scale if entry.ended else math.nan),
            _number(found["entered"] if entry.entered else math.nan),
            _number(found["direction"] if entry.ended and entry.entered else math.nan),
            self._cleared(entry, found),
            _number(found["left"] / entry.scale if entry.left_known else math.nan),
            _number(1.0 / entry.clip_undone if entry.clip_undone >= 1.0 else math.nan),
            _number(entry.scale * part), _number(entry.scale), one.looked_at, _number(weight),
            _number(found["update"] if measured else math.nan),
            entry.decay * weight if entry.decay != NULL_DOUBLE and entry.before else NULL_DOUBLE,
            _number(found["changed"] if measured else math.nan),
            _number(found["lost"] if measured and entry.entered and entry.rounds else math.nan),
            _number(found["undone"] if measured and followed else math.nan),
            _number(found["outside"] if followed else math.nan),
            int(found["alike"]) if one.rows and (entry.after or entry.later) else NULL_BOOLEAN,
            _number(found["at_bound"] if one.looked_at >= LEAST_BOUNDED and entry.before else math.nan),
            _number(found["inward"] if entry.entered and entry.before else math.nan),
            NULL_BOOLEAN if entry.differentiable is None else int(entry.differentiable),
            int(entry.rounds and entry.kept > 0) if entry.differentiable and entry.stepped else NULL_BOOLEAN,
        )

    def _cleared(self, entry: Entry, found: dict[str, float]) -> int:
        """Times the gradient was cleared; NULL if the weights moved between backwards and step: the first
        gradient was used for that move (SAM)."""
        return NULL_INTEGER if entry.between and entry.before and found["moved"] else entry.cleared

    def _state(self, state: str, size: float) -> int:
        if not state:
            return NULL_STRING
        return self._words["zero" if state == "present" and size == 0 else state]


def _left_of_scale(entry: Entry, found: dict[str, float]) -> float:
    """Fraction of a GradScaler's factor left in the gradient when it was clipped; NaN if not sampled."""
    if not entry.clipped or not found["ended"]:
        return math.nan
    return found["clipped"] / found["ended"] * (entry.clip_undone if entry.clip_is_in else 1.0)


def _matrices(entries: list[Entry], taken: Any) -> list[Any]:
    """The values as one matrix per name in `_VALUES`, one row per entry; zeros for values not taken."""
    torch: Any = sys.modules["torch"]
    matrices = [torch.zeros(len(entries), ELEMENTS, dtype=torch.float64) for _ in _VALUES]
    place = 0
    for number, entry in enumerate(entries):
        for name, matrix in zip(_VALUES, matrices, strict=True):
            if getattr(entry, name):
                matrix[number] = taken[place]
                place += 1
    return matrices


def _figures(
    ended: Any, clipped: Any, entered: Any, before: Any, after: Any, later: Any, between: Any, left: Any
) -> dict[str, Any]:
    """The figures for the columns of python.updates, one vector each; NaN for a share of nothing."""
    torch: Any = sys.modules["torch"]
    change, outside = after - before, later - after
    # Values set to 0 are masked or clamped, not put back.
    counts = (later != 0).double()
    own = (change * change * counts).sum(1)
    has = entered != 0
    last = torch.where((after != 0).any(1, keepdim=True), after, later).reshape(-1, SIDE, SIDE)
    return {
        "ended": _rms(ended), "clipped": _rms(clipped), "entered": _rms(entered), "left": _rms(left),
        "weight": _rms(before), "later": _rms(later), "update": _rms(change),
        "moved": (between != before).any(1),
        "direction": (ended * entered).sum(1) / (ended.norm(dim=1) * entered.norm(dim=1)),
        "changed": (after != before).double().mean(1),
        "lost": ((after == before) & has).sum(1) / has.sum(1),
        "undone": -(outside * change * counts).sum(1) / own,
        "outside": (later != after).double().mean(1),
        "alike": (last == last[:, :1]).all(2).all(1),
        "at_bound": torch.maximum(_at_bound(before), _at_bound(later)),
        "inward": (entered * before).sum(1) / (entered.norm(dim=1) * before.norm(dim=1)),
    }


def _at_bound(values: Any) -> Any:
    """Share of elements whose absolute value is exactly the largest; 0 if there are few distinct ones."""
    torch: Any = sys.modules["torch"]
    sizes = values.abs().sort(1).values
    kinds = 1 + (sizes[:, 1:] != sizes[:, :-1]).sum(1)
    share = (sizes == sizes[:, -1:]).double().mean(1)
    return torch.where((kinds >= LEAST_SIZES) & (sizes[:, -1] > 0), share, 0.0)


def _rms(values: Any) -> Any:
    return values.square().mean(1).sqrt()


def _number(value: float) -> float:
    return NULL_DOUBLE if not math.isfinite(value) else value


def taken(tensor: Any, one: Watched) -> Any:
    """Copy the sampled elements; None for None, or a tensor of an unexpected kind or size. HOT PATH."""
    if tensor is None or tensor.numel() != one.numel or tensor.layout is not _strided():
        return None
    if tensor.device != one.index.device or not is_allocated(tensor) or not measurable(tensor):
        return None
    return sys.modules["torch"].take(tensor.detach(), one.index)


def is_allocated(tensor: Any) -> bool:
    """Whether its storage is allocated: FSDP frees the elements of other ranks between two uses."""
    return bool(tensor.untyped_storage().size())


def _strided() -> Any:
    return sys.modules["torch"].strided


def wall_ns() -> int:
    """Wall time from the monotonic clock."""
    return time.monotonic_ns() + ANCHOR_NS
