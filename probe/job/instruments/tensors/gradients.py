"""Gradients: statistics of every parameter's gradient, weight and update, on sampled and requested steps.

Writes python.gradients and python.optimizers, and through `GradientNorm` the grad_norm of python.steps. HOT
PATH around an optimizer's step, on the training thread; on other steps `Optimizers.sample_from_step` skips
it. The cost of a sample is measured, and the next sample is spaced so that they use `SHARE` of the budget. A
sample takes at most `PORTION` of a step: a large model is sampled a few parameters at a time. Nothing waits
for a device; rows are written when their figures arrive.

An update is measured by comparing a parameter with a copy from before the step, for at most `COPY_BYTES` of
parameters at a time; otherwise it is estimated. The row says which.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from probe.base import accelerator
from probe.base.accelerator import capturing
from probe.base.isolation import Isolation
from probe.job.instruments.core import statistics
from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.core.host_memory import HostMemoryReader
from probe.job.instruments.core.object_access import attributes
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.optimizers import NEVER, Optimizers
from probe.job.instruments.modules.parameter_names import ParameterNames
from probe.job.instruments.tensors.gradient_norm import GradientNorm, interval_for, usual_wall_ns
from probe.job.instruments.tensors.gradient_rows import Entry, OpenSample, Rows, StatisticsRequest
from probe.job.instruments.tensors.optimizer_state import OptimizerState

_now = time.monotonic_ns
_cpu = time.thread_time_ns
"""CPU time: unaffected by other load."""
SHARE = 0.1
"""Fraction of the budget for samples: 0.1 % of step time at the default of 1 %."""
FIRST_STEP = 2
"""The first sample is taken on the third step: the first two warm caches."""
NAMES_WAIT_STEPS, NAMES_WAIT_NS = 50, 2_000_000_000
"""The first sample waits for the parameters' names until both limits have passed."""
PORTION, SHORTEST_PORTION_NS = 0.05, 2_000_000
"""A sample takes at most this fraction of a step, or this time if that is longer."""
LEAST_STEPS = 10
ROWS_PER_STEP = 2
"""Maximum rows per step on average: a row is about 90 bytes on disk."""
COPY_BYTES, COPY_RATIO = 8 << 20, 0.01
"""Copies of parameters in one sample: at most this size, and at most this fraction of free memory."""
ASKED_COPY_BYTES, ASKED_COPY_RATIO = 512 << 20, 0.05
"""The same for a request for the updates of all parameters."""
DEADLINE_NS = 1_000_000_000
"""Maximum time that a request takes in one step; it continues in the next one."""
MEMORY_S = 2.0
"""Seconds between two reads of free memory."""
_NS_PER_ELEMENT = 3
"""Estimated cost per element on a CPU: a parameter that would take too long is not started."""


class Gradients:
    """Samples optimizers around their steps."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, optimizers: Optimizers, names: ParameterNames,
        budget_ratio: float, compiles: Callable[[], bool], *, samples: bool,
    ) -> None:
        self.recorder = recorder
        self.samples = samples
        """Whether anything is recorded without a request."""
        self.request: StatisticsRequest | None = None
        self.claimed = False
        """Whether a watch is using this instrument: one at a time."""
        self.fixed_interval: int | None = None
        """Steps between samples regardless of cost, for measurements and tests."""
        self.interval = LEAST_STEPS
        self.spent_ns = 0
        """Total cost of samples, without norms and requests."""
        self.delivery = Delivery()
        self.norm = GradientNorm(recorder, isolation, optimizers, self.delivery, budget_ratio, compiles)
        self._isolation = isolation
        self._optimizers = optimizers
        self.names = names
        self._rows = Rows(recorder)
        self._state = OptimizerState(recorder, self.delivery, optimizers.made_step)
        self._budget_ratio = budget_ratio
        self._memory = HostMemoryReader()
        self._copy_bytes, self._asked_copy_bytes = COPY_BYTES, ASKED_COPY_BYTES
        self._due = FIRST_STEP
        self._since_ns = 0
        self._next_memory_s = 0.0
        self._leader: weakref.ref[Any] | None = None
        """The optimizer that led in the last round of the agent's thread."""
        self._window: int | None = None
        """First step of the current sample, which includes each optimizer once."""
        self._in_window: set[int] = set()
        self._window_ns = self._window_rows = 0
        self._done: set[int] = set()
        """Ids of the parameters sampled in this round through all of them."""
        self._left_out = False

    def install(self) -> None:
        """Sample from the next step on; off the hot path."""
        self._since_ns = _now()
        self._guarded_before = self._isolation.guard("gradients", self._before_step)
        self._guarded_after = self._isolation.guard("gradients", self._after_step)
        _warm_up()
        self._optimizers.sample = self._guarded_before
        if self.samples:
            self.norm.wrap()
            self._optimizers.sample_from_step = 0
        self.norm.measures = self.samples

    def uninstall(self) -> None:
        """Stop sampling."""
        self._optimizers.sample_from_step = NEVER
        self._optimizers.sample = self._optimizers.finish_sample = None
        self.norm.unwrap()
        self.delivery.clear()
        self.request = None

    def set_request(self, request: StatisticsRequest | None) -> None:
        """Measure all parameters on every step from now on, until None is set. From any thread."""
        self.request = request
        self._optimizers.sample_from_step = 0

    def spend(self, cost_ns: int) -> None:
        """Count the cost of another instrument's sample that reads gradients too."""
        self.spent_ns += cost_ns

    # HOT PATH ---------------------------------------------------------------

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Right before a step of an optimizer, from `sample_from_step` on."""
        begun, begun_cpu = _now(), _cpu()
        torch: Any = sys.modules["torch"]
        step = self.recorder.step
        request = self.request
        if request is None and (not self.recorder.timing or not self.samples):
            self._optimizers.sample_from_step = step + 1 if self.samples else NEVER
            return  # shadow steps serve as a baseline: nothing is sampled
        if capturing() or torch._C._len_torch_dispatch_stack():
            return
        if not self.recorder.owns_gradients():
            return  # another thread's backward may be writing them
        closure = any(callable(one) for one in (*args, *kwargs.values()) if one is not optimizer)
        spent, spent_cpu = self.norm.spent_ns, self.norm.spent_cpu_ns
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            measure = self.samples and step >= self.norm.due and self._counts_steps(optimizer)
            if measure and not closure:
                self.norm.measure(optimizer)
            entries = self._sample(optimizer, closure, request, begun)
            taken = entries is not None
            if taken or (measure and closure):
                scale = getattr(optimizer, "grad_scale", None)
                undone = self.norm.undone_by(optimizer)
                sample = OpenSample(entries or [], closure, request, scale, undone, measure and closure)
                self._optimizers.finish_sample = lambda one, rate: self._guarded_after(one, rate, sample)
        own_cpu = _cpu() - begun_cpu - (self.norm.spent_cpu_ns - spent_cpu)
        own = _now() - begun - (self.norm.spent_ns - spent)
        self._spend(own, own_cpu if taken and request is None else 0, request)
        self._choose_next()

    def _counts_steps(self, optimizer: Any) -> bool:
        return self._optimizers.expected_leader() is optimizer

    def _sample(
        self, optimizer: Any, closure: bool, request: StatisticsRequest | None, now: int
    ) -> list[Entry] | None:
        """Sample this optimizer if due, else return None."""
        if request is not None:
            return self._entries(optimizer, closure, request, now)
        step = self.recorder.step
        if self._window is not None and self._is_over(optimizer, step):
            self._close_window()
        if self._window is None:
            if not self.samples or step < self._due or not self._named(optimizer, step, now):
                return None
            self._window, self._left_out = step, False
            self._in_window.clear()
            self._window_ns = self._window_rows = 0
        elif id(optimizer) in self._in_window or not self._named(optimizer, step, now):
            return None
        self._in_window.add(id(optimizer))
        return self._entries(optimizer, closure, None, now)

    def _named(self, optimizer: Any, step: int, now: int) -> bool:
        """Whether the names of all its parameters are known, or the wait is over. All, because FSDP removes
        some from their modules during computation, and a walk then finds only the others."""
        if step >= NAMES_WAIT_STEPS and now - self._since_ns > NAMES_WAIT_NS:
            return True
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        return self.names.ready and all(self.names.of(one) is not None for one in parameters)

    def _is_over(self, optimizer: Any, step: int) -> bool:
        """Whether every optimizer was sampled: the leading one steps again, or a step has passed."""
        assert self._window is not None
        if step > self._window + 1:
            return True
        return id(optimizer) in self._in_window and self._counts_steps(optimizer)

    def _close_window(self) -> None:
        """Choose the step of the next sample from the cost of this one."""
        if not self._left_out:
            self._done.clear()
        wall = usual_wall_ns(self.recorder)
        interval = interval_for(self._window_ns, self._budget_ratio * SHARE * wall)
        interval = max(interval, LEAST_STEPS, self._window_rows // ROWS_PER_STEP)
        self.interval = self.fixed_interval or interval
        assert self._window is not None
        self._due = max(self._window + self.interval, self.recorder.step)
        self._window = None

    def _entries(
        self, optimizer: Any, closure: bool, request: StatisticsRequest | None, now: int
    ) -> list[Entry]:
        """Measure as many parameters as there is time for, before the step."""
        limit = DEADLINE_NS
        if request is None and self.fixed_interval is None:
            limit = max(SHORTEST_PORTION_NS, int(PORTION * usual_wall_ns(self.recorder)))
            limit -= self._window_ns
        room = self._asked_copy_bytes if request is not None and request.updates else self._copy_bytes
        entries: list[Entry] = []
        late = False
        done = self._done if request is None else request.done
        for place, number, parameter in _waiting(optimizer, done):
            expected = 0 if not parameter.is_cpu else _NS_PER_ELEMENT * parameter.numel()
            if entries and _now() - now + expected > limit:
                late = True
                break
            entry = self._entry(parameter, number, room, closure, request)
            if entry is not None:
                entry.place = place if entry.text is None else entry.place
                room -= entry.copied_bytes
                entries.append(entry)
            done.add(id(parameter))
        if request is None:
            self._left_out = self._left_out or late
        elif not late:
            done.difference_update([id(one) for group in optimizer.param_groups for one in group["params"]])
        elif self.recorder.step not in request.late_steps[-1:]:
            request.late_steps.append(self.recorder.step)
        return entries

    def _entry(
        self, parameter: Any, number: int, room: int, closure: bool, request: StatisticsRequest | None
    ) -> Entry | None:
        values = statistics.values_of(parameter)
        if values is None:
            return None
        entry = Entry(parameter, number, self.names.of(parameter), values, statistics.norm(values.flat))
        if values.flat.numel() * values.flat.element_size() <= room:
            entry.before = values.flat.clone()
        if not closure:
            entry.measure_gradient()
        if request is not None and request.histograms is not None:
            self._distribution(request, entry, "weight", values)
            if entry.values is not None:
                self._distribution(request, entry, "gradient", entry.values)
        return entry

    def _distribution(
        self, request: StatisticsRequest, entry: Entry, kind: str, values: statistics.Values
    ) -> None:
        found, step, tell = statistics.distribution(values.flat), self.recorder.step, request.histograms
        assert tell is not None
        name = entry.text
        if found.is_cpu:
            tell(step, kind, name, found.tolist())
        else:
            self.delivery.send(found, lambda row: tell(step, kind, name, row))

    def _after_step(self, optimizer: Any, rate: float, sample: OpenSample) -> None:
        """Right after the step: measure the updates and write the rows."""
        begun, begun_cpu = _now(), _cpu()
        torch: Any = sys.modules["torch"]
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for entry in sample.entries:
                if sample.closure:
                    entry.measure_gradient()
                entry.measure_update()
            if sample.measure:
                self.norm.measure(optimizer)
            if sample.entries:
                self._rows.write(optimizer, sample, rate, self.delivery)
                self._state.write(optimizer)
        if sample.request is not None:
            sample.request.rows += len(sample.entries)
        else:
            self._window_rows += len(sample.entries)
        sampled = sample.request is None and bool(sample.entries)
        self._spend(_now() - begun, _cpu() - begun_cpu if sampled else 0, sample.request)
        if sampled and self._window is not None and len(self._optimizers.seen) == 1:
            self._close_window()
            self._choose_next()

    def _spend(self, cost_ns: int, sampled_ns: int, request: StatisticsRequest | None) -> None:
        """Count costs. `sampled_ns`: CPU time of the current sample."""
        self.spent_ns += cost_ns if request is None else 0
        self.recorder.cost_ns += cost_ns
        self._window_ns += sampled_ns

    def _choose_next(self) -> None:
        """Choose the next step on which to be called."""
        if self.request is not None or self._window is not None:
            self._optimizers.sample_from_step = 0
        elif not self.samples:
            self._optimizers.sample_from_step = NEVER
        else:
            self._optimizers.sample_from_step = min(self.norm.due, self._due)

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """One round: collect figures and names, note a new leading optimizer, and read free memory."""
        self.delivery.collect()
        self.names.collect()
        self._note_leader()
        now_s = time.monotonic()
        if now_s < self._next_memory_s:
            return
        self._next_memory_s = now_s + MEMORY_S
        self.norm.wrap_fsdp()
        available = self._available_bytes()
        self._copy_bytes = min(COPY_BYTES, int(COPY_RATIO * available))
        self._asked_copy_bytes = min(ASKED_COPY_BYTES, int(ASKED_COPY_RATIO * available))

    def _note_leader(self) -> None:
        """Write the settings of an optimizer that has taken the lead."""
        leader = self._optimizers.leader()
        if leader is None or (self._leader is not None and self._leader() is leader):
            return
        self._leader = weakref.ref(leader)
        groups = attributes(leader).get("param_groups")
        if self.samples and isinstance(groups, list):
            self._state.write_settings(leader, groups)

    def _available_bytes(self) -> int:
        """Free memory for copies: the device's if there is one, else the host's."""
        device = accelerator.current()
        if device is not None:
            index = self._optimizers.device_index()
            return device.free_bytes(device.index() if index is None else index) or 0
        return self._memory.read().available_bytes or 0


def _waiting(optimizer: Any, done: set[int]) -> Iterator[tuple[int, int, Any]]:
    """Position in the optimizer, group number and parameter of each one not `done`. Once all are done, starts
    over with all."""
    groups = optimizer.param_groups
    if all(id(one) in done for group in groups for one in group["params"]):
        done.difference_update([id(one) for group in groups for one in group["params"]])
    place = 0
    for number, group in enumerate(groups):
        for parameter in group["params"]:
            if id(parameter) not in done:
                yield place, number, parameter
            place += 1


def _warm_up() -> None:
    """Run a sample's operations once: the first call of each costs many times the next ones."""
    torch: Any = sys.modules["torch"]
    with torch.no_grad():
        one = torch.ones(2, 2, device="cpu")
        values = statistics.values_of(one)
        assert values is not None
        statistics.figures(statistics.moments(values.flat), 4)
        statistics.norm(values.flat)
        statistics.total_norm([values.flat])
        statistics.difference_norm(values.flat.clone(), values.flat)
