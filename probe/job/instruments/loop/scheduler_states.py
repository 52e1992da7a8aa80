"""Scheduler states: each learning-rate scheduler's current rate, number of steps, and optimizer.

Writes python.schedulers. Runs on the agent's thread, which reads the dictionaries of schedulers and their
optimizers (`object_access`) about once a second, off the hot path. Only `ReduceLROnPlateau`, which does not
store its metric, has a wrapper around `step` on the training thread: once an epoch. torch inside functions.
"""

from __future__ import annotations

import linecache
import re
import sys
import time
import weakref
from collections import deque
from typing import Any

from probe.base.clock import wall_ns
from probe.base.isolation import Isolation
from probe.job.instruments.core.delivery import host_number
from probe.job.instruments.core.object_access import attributes, entries
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.introspection.python_frames import is_user_code
from probe.job.introspection.training_frameworks import unwrapped
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE, NULL_INTEGER, NULL_STRING

EVERY_S, LATER_S, EARLY_ROWS = 1.0, 10.0, 500
"""Seconds between two reads; between two reads after the first `EARLY_ROWS` rows; that number."""
MOST, MOST_NUMBERED = 8, 256
"""Schedulers read at a time, and numbered in total."""
STILL_LOOKS = 2
"""A scheduler whose state has not changed is written again after this many reads."""
_LENGTHS = ("total_steps", "T_max", "total_iters", "T_0", "step_size", "total_size")
_PARTIAL_LENGTHS = ("num_training_steps", "num_warmup_steps")
_ARGUMENT = re.compile(r"\.step\(\s*(?:metrics\s*=\s*)?([A-Za-z_][\w.\[\]\"']{0,60})")


class Schedules:
    """Reads the schedulers and writes their rows."""

    def __init__(self, recorder: Recorder, isolation: Isolation, optimizers: Optimizers) -> None:
        self._recorder, self._isolation, self._optimizers = recorder, isolation, optimizers
        self._append = recorder.rings["python.schedulers"].append
        self._patches = Patches()
        self._metrics: deque[tuple[int, int, Any, float, str, int]] = deque(maxlen=256)
        self._numbers: dict[int, int] = {}
        self._written: dict[int, tuple[Any, int]] = {}
        self._next_s = 0.0
        self._rows = 0

    def install(self) -> None:
        """Wrap `ReduceLROnPlateau.step`; off the hot path."""
        plateau = sys.modules["torch"].optim.lr_scheduler.ReduceLROnPlateau
        note, live = self._isolation.guard("schedules", self._stepped), self._patches.live

        def make(original: Any) -> Any:
            def step(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
                result = original(scheduler, *args, **kwargs)
                if live[0]:
                    caller = sys._getframe(1)
                    metric = args[0] if args else kwargs.get("metrics")
                    note(scheduler, metric, caller.f_code.co_filename, caller.f_lineno)
                return result

            return step

        self._patches.wrap(plateau, "step", make)

    def uninstall(self) -> None:
        """Put the original back."""
        self._patches.undo()
        self._metrics.clear()

    def _stepped(self, scheduler: Any, metric: Any, file: str, line: int) -> None:
        """Note the metric of a ReduceLROnPlateau's step; on the training thread, after the step."""
        known, number = weakref.ref(scheduler), host_number(metric)
        self._metrics.append((self._recorder.step, wall_ns(), known, number, file, line))

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """Write rows of the schedulers that have changed."""
        while self._metrics:
            step, t_ns, known, metric, file, line = self._metrics.popleft()
            scheduler = known()
            if scheduler is not None:
                self._write(step, t_ns, scheduler, metric, _argument(file, line))
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + (EVERY_S if self._rows < EARLY_ROWS else LATER_S)
        for scheduler in self._optimizers.schedulers()[:MOST]:
            step, held = self._recorder.step, attributes(scheduler)
            if self._recorder.step > step + 1:
                continue  # steps ended during the read: which one had this rate is unknown
            standing = (held.get("last_epoch"), _first_rate(held))
            before, looks = self._written.get(id(scheduler), (None, 0))
            if standing == before and looks + 1 < STILL_LOOKS:
                self._written[id(scheduler)] = (before, looks + 1)
            else:
                if len(self._numbers) > MOST_NUMBERED:
                    self._numbers.clear()
                    self._written.clear()
                self._written[id(scheduler)] = (standing, 0)
                self._write(step, wall_ns(), scheduler, NULL_DOUBLE, "", held)

    def _write(
        self, step: int, t_ns: int, scheduler: Any, metric: float, argument: str,
        known: dict[str, Any] | None = None,
    ) -> None:
        """Write one row. `known`: the scheduler's dictionary, if already read."""
        self._rows += 1
        recorder, intern = self._recorder, self._recorder.intern
        held = attributes(scheduler) if known is None else known
        optimizer = unwrapped(held.get("optimizer"))
        leader = self._optimizers.leader()
        groups = attributes(optimizer).get("param_groups")
        group = dict(entries(groups[0])) if isinstance(groups, list) and groups else {}
        base = group.get("max_lr", group.get("initial_lr"))
        count, calls, mode = held.get("last_epoch"), held.get("_step_count"), held.get("mode")
        plateau = type(scheduler).__name__ == "ReduceLROnPlateau" or metric != NULL_DOUBLE
        self._append(
            step if step >= 0 else recorder.step, t_ns, intern(type(scheduler).__name__),
            self._numbers.setdefault(id(scheduler), len(self._numbers)),
            intern(type(optimizer).__name__),
            NULL_BOOLEAN if leader is None else int(_is_same(optimizer, leader)),
            self._last_step(optimizer, leader), self._same_parameters(optimizer, leader),
            count if type(count) is int else NULL_INTEGER, calls if type(calls) is int else NULL_INTEGER,
            _first_rate(held), host_number(base), length_of(scheduler),
            intern(mode) if plateau and isinstance(mode, str) else NULL_STRING, metric,
            intern(argument) if argument else NULL_STRING,
        )

    def _last_step(self, optimizer: Any, leader: Any) -> int:
        """The last step in which this optimizer stepped; NULL if it was never seen to step."""
        if leader is not None and _is_same(optimizer, leader):
            return max(self._recorder.step - 1, 0)
        return self._optimizers.others_stepped.get(id(optimizer), NULL_INTEGER)

    def _same_parameters(self, optimizer: Any, leader: Any) -> int:
        first, other = _first_parameter(optimizer), _first_parameter(leader)
        return NULL_BOOLEAN if first is None or other is None else int(first is other)


def _is_same(optimizer: Any, leader: Any) -> bool:
    """Whether a rate set in one optimizer applies to the other: Horovod's wrapper shares parameter groups."""
    one, other = (attributes(each).get("param_groups") for each in (optimizer, leader))
    shared = isinstance(one, list) and isinstance(other, list) and one and other and one[0] is other[0]
    return optimizer is leader or bool(shared)


def _first_rate(held: dict[str, Any]) -> float:
    """The rate that a scheduler has set for the first group; NULL if it is on a device."""
    rates = held.get("_last_lr")
    return host_number(rates[0]) if isinstance(rates, list) and rates else NULL_DOUBLE


def _first_parameter(optimizer: Any) -> Any:
    groups = attributes(optimizer).get("param_groups")
    held = groups[0].get("params") if isinstance(groups, list) and groups else None
    return held[0] if isinstance(held, list) and held else None


def length_of(scheduler: Any) -> int:
    """Number of scheduler steps until a schedule ends, or first changes the rate; NULL if unknown."""
    held = attributes(scheduler)
    for name in _LENGTHS:
        if type(held.get(name)) in (int, float) and 0 < held[name] < 1 << 62:
            return int(held[name])
    milestones = held.get("milestones", held.get("_milestones"))
    if isinstance(milestones, (dict, list)) and milestones and all(type(one) is int for one in milestones):
        return int(max(milestones))
    functions = held.get("lr_lambdas")
    given = getattr(functions[0], "keywords", None) if isinstance(functions, list) and functions else None
    for name in _PARTIAL_LENGTHS:  # functools.partial of transformers
        if type(given) is dict and type(given.get(name)) is int:
            return int(given[name])
    return NULL_INTEGER


def _argument(file: str, line: int) -> str:
    """The expression passed to `scheduler.step` in the source, such as `accuracy`; empty if unreadable."""
    if not is_user_code(file):
        return ""
    found = _ARGUMENT.search(linecache.getline(file, line))
    return found[1] if found else ""
