"""Planned end: the number of steps after which the training will end.

The sources are the trainer, the loops around the training step, the scheduler, or a setting. Writes
python.plan. Runs on the agent's thread, every few seconds, off the hot path: reads dictionaries of a trainer
and of a scheduler, and the headers and variables of the loops around the training thread (`enclosing_loops`).
A count is believed only after it was seen to decrease by the same whole number in every step; a guess or an
unconfirmed count is not written.
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
"""Seconds between two checks; between two checks after the first `EARLY_LOOKS`; that number."""
LEAST_STEPS, LEAST_LOOKS, MOST_STEPS = 8, 2, 4096
"""A count is believed after this many steps and checks that agree. The number of steps doubles, up to the
third, each time the count did not decrease evenly."""
UNEVEN_RATIO = 0.005
"""Tolerated deviation from an even count: several short steps may pass during one check."""
FORGOTTEN_LOOKS = 12
"""An end that this many checks did not confirm is dropped."""
CHANGED_RATIO = 0.002
"""A total that changes by less than this is not written again."""
_MOST_COUNTS, _DEEPEST = 32, 3


class _Left(NamedTuple):
    """A count down to the end of the training, identified by `key`."""

    key: Any
    left: int
    source: str


class _Count:
    """Checks whether a count decreases evenly with the steps, and computes where it ends."""

    def __init__(self) -> None:
        self._first: tuple[int, int] | None = None
        self._agreed = self._per_step = self._least = 0
        self._needed = LEAST_STEPS
        self.total: int | None = None
        """Total steps of the recording when the count ends; None while it is not believed."""

    def update(self, step: int, left: int) -> None:
        """Add a reading: the count was `left` in this step or an earlier one. The earliest end seen is the
        right one, because training continues between reading the count and the step."""
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
    """Determines the end; `collect` is called once per round of the agent's thread."""

    def __init__(
        self, recorder: Recorder, optimizers: Optimizers, data: Data | None, total_steps: int
    ) -> None:
        """`total_steps`: the setting; 0 if not set."""
        self._recorder, self._optimizers, self._data = recorder, optimizers, data
        self._total_setting = total_steps
        self._append = recorder.rings["python.plan"].append
        self._counts: dict[Any, _Count] = {}
        self._written: int | None = None
        self._unconfirmed = 0
        self._checks = 0
        self._next_s = 0.0

    def collect(self) -> None:
        """Read the counts, and write a row if the end has changed."""
        step, now_s = self._recorder.step, time.monotonic()
        if step < 1 or now_s < self._next_s:
            return
        self._next_s = now_s + (EVERY_S if self._checks < EARLY_LOOKS else LATER_S)
        self._checks += 1
        if self._total_setting:
            if self._written is None:
                self._write(step, self._total_setting, "PROBE_TOTAL_STEPS")
            return
        believed: tuple[int, str] | None = None  # of several ends, the earliest
        for one in self._counting():
            if len(self._counts) > _MOST_COUNTS:
                self._counts.clear()
            count = self._counts.setdefault(one.key, _Count())
            count.update(self._recorder.step, one.left)  # step read after the count, see `update`
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
        """The counts that may run down to the end of the training."""
        thread = self._recorder.thread
        frames = list(python_frames.walk(None if thread is None else sys._current_frames().get(thread)))
        loops = enclosing_loops.enclosing(frames, self._passes)
        if not loops:  # else it may be one of several trainings
            for left, source in training_frameworks.find(frames).ends():
                yield _Left(("trainer", source), left, source)
        yield from _of_loops(loops)
        if loops and loops[0].left is None and loops[0].words.startswith("for "):
            return  # a loop of unknown length, perhaps over several trainings
        for scheduler in self._optimizers.schedulers()[:1]:
            found = _of_schedule(scheduler)
            if found is not None:
                yield found

    def _passes(self, loader: Any) -> tuple[int, int] | None:
        """Batches that a loader has returned in this pass, and those of a whole pass; None if unknown."""
        if self._data is None or loader is None:
            return None
        known = self._data.pass_of(loader)
        if known is None:
            return None
        given, whole = known
        length = whole if whole is not None else batches_in(loader)
        return None if length is None else (given, length)


def _of_loops(loops: list[enclosing_loops.Loop]) -> Iterator[_Left]:
    """Counts of the outermost loop alone, then combined with the loops in it, whose iterations are closer to
    steps."""
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
    """The count of a schedule that knows the length of the training: OneCycleLR, which cannot continue beyond
    it, and those of transformers. The period of a cosine may belong to a restart, and is not used."""
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
    """Number of batches in a pass over a DataLoader, if all the parts that decide it are torch's own; else
    None."""
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
