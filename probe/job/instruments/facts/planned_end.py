"""When the training will end, as its trainer, its loops, its schedule or whoever started it say.

Writes python.plan. Runs on the agent's thread, every few seconds: it reads dictionaries of a trainer and of
a schedule, and the headers and variables of the loops around the training thread (`enclosing_loops`). A count
is believed only when it was seen to go down by the same whole number in every step; what is guessed, or
confirmed by nothing, is not written. The hot path has nothing of it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.base.clock import wall_ns
from probe.job.instruments.core.object_access import attributes
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.facts.data_cuts import dataset_length
from probe.job.instruments.loop.data import Data
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.introspection import enclosing_loops, python_frames, training_frameworks
from probe.recording.layout import NULL_INTEGER, NULL_STRING

EVERY_S, LATER_S, EARLY_LOOKS = 1.0, 10.0, 30
"""Between two looks; after so many."""
LEAST_STEPS, LEAST_LOOKS, MOST_STEPS = 8, 2, 4096
"""A count is believed after so many steps, and so many looks that agree; after twice as many each time that
it did not go down evenly."""
UNEVEN_RATIO = 0.005
"""What may be missing of an even count: of short steps several pass while one is looked at."""
FORGOTTEN_LOOKS = 12
"""What no look has confirmed for so long does not hold any more."""
CHANGED_RATIO = 0.002
"""A total that changes by less is not written again."""
_MOST_COUNTS, _DEEPEST = 32, 3


class _Left(NamedTuple):
    """Something that counts down to the end of the training: `key` tells it from others."""

    key: Any
    left: int
    source: str


class _Count:
    """Whether a count goes down evenly with the steps, and where it ends."""

    def __init__(self) -> None:
        self._first: tuple[int, int] | None = None
        self._agreed = self._per_step = self._least = 0
        self._needed = LEAST_STEPS
        self.total: int | None = None
        """Steps of the recording when it is over; None while it is not believed."""

    def look(self, step: int, left: int) -> None:
        """It was `left` in this step or an earlier one: the earliest end that is seen is the right one,
        as the training goes on between the two readings."""
        if self._first is None or left > self._first[1]:
            self._begin(step, left)
            return
        steps, counts = step - self._first[0], self._first[1] - left
        if steps < LEAST_STEPS:
            return
        per_step = round(counts / steps)
        if per_step < 1 or abs(counts - per_step * steps) > per_step + 1 + UNEVEN_RATIO * counts:
            self._needed = min(2 * self._needed, MOST_STEPS)
            self._begin(step, left)
            return
        if per_step != self._per_step:
            self._per_step, self._agreed, self.total = per_step, 0, None
        self._agreed += 1
        ends = step + math.ceil(left / per_step)
        self._least = ends if self._agreed == 1 else min(self._least, ends)
        if self._agreed >= LEAST_LOOKS and steps >= self._needed:
            self.total = self._least

    def _begin(self, step: int, left: int) -> None:
        self._first, self._agreed, self._per_step, self._least, self.total = (step, left), 0, 0, 0, None


class PlannedEnd:
    """Looks for the end; `collect` once a round of the agent's thread."""

    def __init__(
        self, recorder: Recorder, optimizers: Optimizers, data: Data | None, total_steps: int
    ) -> None:
        """`total_steps`: what whoever started the job said; 0 for nothing."""
        self._recorder, self._optimizers, self._data = recorder, optimizers, data
        self._said = total_steps
        self._append = recorder.rings["python.plan"].append
        self._counts: dict[Any, _Count] = {}
        self._written: int | None = None
        self._unconfirmed = 0
        self._looks = 0
        self._next_s = 0.0

    def collect(self) -> None:
        """Look, and write what is new."""
        step, now_s = self._recorder.step, time.monotonic()
        if step < 1 or now_s < self._next_s:
            return
        self._next_s = now_s + (EVERY_S if self._looks < EARLY_LOOKS else LATER_S)
        self._looks += 1
        if self._said:
            if self._written is None:
                self._write(step, self._said, "PROBE_TOTAL_STEPS")
            return
        believed: tuple[int, str] | None = None  # of several ends, the first
        for one in self._counting():
            if len(self._counts) > _MOST_COUNTS:
                self._counts.clear()
            count = self._counts.setdefault(one.key, _Count())
            count.look(self._recorder.step, one.left)  # read after it: a count is never late, see `look`
            if count.total is not None and (believed is None or count.total < believed[0]):
                believed = count.total, one.source
        if believed is not None:
            self._unconfirmed = 0
            if self._written is None or abs(believed[0] - self._written) > CHANGED_RATIO * believed[0]:
                self._write(step, *believed)
            return
        self._unconfirmed += 1
        if self._written is not None and self._unconfirmed > FORGOTTEN_LOOKS:
            self._write(step, None, "")

    def _write(self, step: int, total: int | None, source: str) -> None:
        self._written = total
        self._append(
            step, wall_ns(), NULL_INTEGER if total is None else total,
            self._recorder.intern(source) if source else NULL_STRING,
        )

    def _counting(self) -> Iterator[_Left]:
        """What counts down."""
        thread = self._recorder.thread
        frames = list(python_frames.walk(None if thread is None else sys._current_frames().get(thread)))
        loops = enclosing_loops.enclosing(frames, self._passes)
        if not loops:  # else it may be one of several trainings
            for left, source in training_frameworks.find(frames).ends():
                yield _Left(("trainer", source), left, source)
        yield from _of_loops(loops)
        if loops and loops[0].left is None and loops[0].words.startswith("for "):
            return  # over something of unknown length, perhaps over several trainings
        for scheduler in self._optimizers.schedulers()[:1]:
            found = _of_schedule(scheduler)
            if found is not None:
                yield found

    def _passes(self, loader: Any) -> tuple[int, int] | None:
        """Batches that a loader has given in this pass, and all of a pass."""
        if self._data is None or loader is None:
            return None
        known = self._data.pass_of(loader)
        if known is None:
            return None
        given, whole = known
        length = whole if whole is not None else batches_in(loader)
        return None if length is None else (given, length)


def _of_loops(loops: list[enclosing_loops.Loop]) -> Iterator[_Left]:
    """The outermost loop, then with the loops in it: an iteration of which is nearer to a step."""
    left, key, words = 0, [], ""
    for place, loop in enumerate(loops[:_DEEPEST]):
        if loop.left is None or (place and loop.length is None):
            return
        left = loop.left if not place else (left - 1) * (loop.length or 0) + loop.left
        key.append(loop.key)
        words = f"{words}; {loop.words}" if words else loop.words
        yield _Left(tuple(key), left, words)
        if loop.length is None:
            return


def _of_schedule(scheduler: Any) -> _Left | None:
    """A schedule that says for how many steps the training is: of OneCycleLR, which cannot go on, and of
    transformers. The period of a cosine may be that of a restart, and is not taken."""
    held = attributes(training_frameworks.unwrapped(scheduler))
    kind, done = type(training_frameworks.unwrapped(scheduler)).__name__, held.get("last_epoch")
    total, name = held.get("total_steps"), "total_steps"
    if kind != "OneCycleLR":
        functions = held.get("lr_lambdas")
        given = getattr(functions[0], "keywords", None) if isinstance(functions, list) and functions else None
        total, name = dict(given or {}).get("num_training_steps"), "num_training_steps"
    if type(total) is not int or type(done) is not int or not 0 <= done <= total:
        return None
    return _Left(("schedule", id(scheduler)), total - done, f"{name} = {total:,} of {kind}")


def batches_in(loader: Any) -> int | None:
    """Batches of a pass over a DataLoader, where all parts that decide are torch's own; else None."""
    found = attributes(loader)
    batches = found.get("batch_sampler")
    kind = type(batches)
    if not kind.__module__.startswith("torch.utils.data") or kind.__name__ != "BatchSampler":
        return None
    own = attributes(batches)
    size, drops, sampler = own.get("batch_size"), own.get("drop_last"), own.get("sampler")
    samples = _samples_in(sampler)
    if type(size) is not int or size < 1 or samples is None:
        return None
    return samples // size if drops else -(-samples // size)


def _samples_in(sampler: Any) -> int | None:
    if not type(sampler).__module__.startswith("torch.utils.data"):
        return None
    own = attributes(sampler)
    for name in ("num_samples", "_num_samples"):
        if type(own.get(name)) is int:
            return int(own[name])
    return dataset_length(own.get("data_source"))
