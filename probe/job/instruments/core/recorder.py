"""Recorder: the state of the training loop, and the rows of its steps.

HOT PATH: every method except `__init__` and the properties runs inside training steps, on the training
thread. No lock, no I/O, no import, no wait. The instruments call it at the edges of phases; it adds up their
times and writes a python.steps row when a step ends. Replaced by C where loaded. Standard library only.

One clock reading ends a phase and starts the next, so phases never overlap; with `other_s` they add up to the
wall time of the step.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from probe.base import compiled
from probe.base.clock import ANCHOR_NS
from probe.job.instruments.core.loss_share import parts_of
from probe.job.instruments.core.past_steps import MOST_RECENT, PastSteps, StepCost
from probe.job.instruments.core.step_listeners import IntervalKeeper, NoListener, StepListener, nothing
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE, NULL_INTEGER, NULL_STRING
from probe.recording.recording import Recording

_now = time.monotonic_ns
_ident = threading.get_ident

SHADOW_FIRST, SHADOW_EVERY, SHADOW_STEPS, ROUND = 200, 1000, 8, 50
"""Shadow steps: the first one, their period, how many in a row. Every `ROUND` steps phases are timed in any
case: an evaluation every N steps falls into one of them."""
MARKED = ("optimizer", "call")
"""Boundaries that are seen whether or not forwards are timed."""
BOUNDARIES = (*MARKED, "batch", "update", "backward")
"""The events that may end a step: `boundary` of python.steps."""
HELD_PHASES = ("acting", "paused")
"""Phases in which the training thread is held between two steps."""
FIRST_SAMPLE = 2
"""Modules are first recorded on the third step: the first two warm caches and compile."""


@compiled.form("Recorder")
class Recorder:
    """State of the training loop as the instruments see it. One per process.

    Slots keep the fields of a step side by side: caches are cold when a hook runs."""

    __slots__ = (
        "_append_loss", "_append_pulse", "_append_step", "_backward_id", "_boundary_ids", "_forward_id",
        "_held_from_ns", "_held_ids", "_optimizer_id", "_other_id", "_trainer", "_trainers", "alert",
        "allocated_bytes", "alone", "arm_forward", "backward_ns", "begin_awaited", "checkpoint_ns",
        "clip_norm", "clip_scaled", "comm_ns", "cost_ns", "data_ns", "disarm_forward", "end_awaited",
        "eval_ns", "explicit", "fed_by", "forward_armed", "forward_ns", "forward_start_ns", "grad_norm",
        "held_ns", "intern", "interval", "intervals", "listener", "loader", "loss_count", "loss_parts",
        "loss_scale", "loss_share", "loss_sum", "micro_step", "modules_fixed", "modules_interval",
        "newest_loss", "next_sample", "optimizer_ns", "past", "peak_allocated_bytes", "phase",
        "reserved_bytes", "rings", "rss_bytes", "samples", "sampling", "saw_comm", "saw_data", "saw_forward",
        "stale_gradients", "start_sampling", "step", "step_start_ns", "stop_sampling", "thread",
        "timed_every", "timing", "tokens", "trained", "training_mode",
    )

    def __init__(self, recording: Recording, *, modules_interval: int, midway: bool = False) -> None:
        rings = recording.rings
        self.rings = rings
        self.intern = intern = recording.strings.intern
        self._forward_id, self._backward_id = intern("forward"), intern("backward")
        self._optimizer_id, self._other_id = intern("optimizer"), intern("other")
        self._held_ids = {name: intern(name) for name in HELD_PHASES}
        self._boundary_ids = {name: intern(name) for name in BOUNDARIES}
        self._append_step = rings["python.steps"].append_row
        self._append_loss = rings["python.losses"].append
        self._append_pulse = rings["python.pulse"].append
        self.thread = threading.main_thread().ident
        self.alone = True
        """Whether only one thread has been seen to train. Gradients are read only then: backward writes them
        without the GIL, and touching one from another thread at the same time corrupts memory."""
        self._trainer = 0
        self._trainers: dict[int, None] = {}
        self.step = 0
        self.micro_step, self.phase = 0, "other"
        self.explicit = False
        """True once `probe.step()` was called: from then on, only that call ends steps."""
        self.timing = True
        self.timed_every = 1
        """Phases are timed on every n-th step; above 1 if steps are too short for the budget."""
        self.past = PastSteps(rings["python.steps"], rings["python.losses"])
        """Reads the rows of the last steps; off the hot path."""
        self.interval: Any = None
        """The current interval, or a candidate for one; None in plain training."""
        self.trained: set[int] = set()
        """Ids of the iterators of loaders that are known to feed the training."""
        self.intervals: IntervalKeeper = NoListener()

        self.newest_loss = 0
        """Number of the newest row of python.losses."""
        self.loss_parts = 0.0
        """The job's divisor of the loss of each micro step, from the last step that showed it."""
        self.loader = self.fed_by = NULL_STRING
        """Names of the loaders of this step's first batch (after any evaluation), and of the last step's."""
        self.listener: StepListener = NoListener()
        """Set once, at the first request for work between steps."""
        self.end_awaited = False
        """Whether to call the listener when a step ends. It sets and clears this, from any thread."""
        self.begin_awaited = False
        """Whether to call the listener when the next step begins; see `await_begin`."""
        self.modules_fixed = modules_interval > 0
        self.modules_interval = modules_interval or 10
        self.next_sample = FIRST_SAMPLE
        self.sampling = False
        self.start_sampling: Callable[[], bool] | None = None
        """Set by the modules instrument; False if its hooks could not be installed."""
        self.stop_sampling: Callable[[], object] = nothing
        self.arm_forward: Callable[[], object] | None = None
        self.disarm_forward: Callable[[], object] = nothing
        self.forward_armed = False
        """Whether the hook for the next module call is armed. Set by the code that arms it."""
        self.alert = False
        """Whether to call the NaN detector at the next backwards even if phases are not timed: a loss or a
        norm was not finite. Cleared by the detector."""

        self.rss_bytes = self.allocated_bytes = NULL_INTEGER
        self.reserved_bytes = self.peak_allocated_bytes = NULL_INTEGER
        self.loss_scale = NULL_DOUBLE
        self.cost_ns = 0
        self.step_start_ns = 0
        self._held_from_ns = 0
        self._reset(0)
        if midway:
            self._begin_at_next_boundary()

    @property
    def counted_step(self) -> int | None:
        """Number of the current step; None in the step in which recording began."""
        return None if self.step == NULL_INTEGER else self.step

    @property
    def last_row(self) -> list[Any] | None:
        """Fields of the last row of python.steps; None before the first."""
        return self.past.row(self.step)

    @property
    def recent(self) -> list[StepCost]:
        """The last steps still in memory, oldest first."""
        return self.past.costs(self.step, MOST_RECENT)

    def _begin_at_next_boundary(self) -> None:
        """The job is inside a step whose start was not seen: that step gets no number and no row."""
        append = self._append_step

        def begin(fields: list[Any]) -> int:
            self._append_step = append
            self.past.begun(fields)
            self.step = -1  # the step that begins now is 0
            return 0

        self._append_step = begin
        self.step = NULL_INTEGER

    def _reset(self, start_ns: int) -> None:
        self.step_start_ns = start_ns
        self.micro_step = 0
        self.data_ns = self.forward_ns = self.backward_ns = self.optimizer_ns = self.comm_ns = 0
        self.saw_data = self.saw_forward = self.saw_comm = False
        self.fed_by, self.loader = self.loader, NULL_STRING
        self.held_ns = self.eval_ns = self.checkpoint_ns = 0
        self.forward_start_ns = 0
        self.loss_sum, self.loss_count, self.loss_share = 0.0, 0, 0.0
        self.grad_norm = self.clip_norm = NULL_DOUBLE
        self.clip_scaled = NULL_BOOLEAN
        self.training_mode = self.stale_gradients = NULL_BOOLEAN
        self.samples = self.tokens = NULL_INTEGER
        self.cost_ns = 0

    # Phases: one method per edge ----------------------------------------------

    def elsewhere(self) -> bool:
        """Whether the calling thread is not the training thread."""
        return _ident() != self.thread

    def owns_gradients(self) -> bool:
        """Whether the calling thread may touch gradients: it is the only training thread."""
        return self.alone and _ident() == self.thread

    def note_trainer(self) -> None:
        """The calling thread trains, possibly alongside others."""
        self._trainers[_ident()] = None
        self.alone = len(self._trainers) == 1

    def _train_here(self) -> None:
        """The calling thread becomes the training thread."""
        self.thread = self._trainer = _ident()
        self.note_trainer()

    def forget_ended_trainers(self) -> None:
        """Forget training threads that have ended; on the agent's thread."""
        if not self.alone:
            living = sys._current_frames()
            for one in list(self._trainers):
                if one not in living:
                    del self._trainers[one]
            self.alone = len(self._trainers) < 2
            if len(self._trainers) > 1:  # one was added concurrently
                self.alone = False

    def data_begins(self, now_ns: int) -> None:
        """The loop starts waiting for data; readers see this as the pending row of python.batches."""
        self.phase = "data"
        if not self.step_start_ns:
            self.step_start_ns = now_ns

    def data_ends(self, now_ns: int, start_ns: int) -> None:
        """The wait is over."""
        self.data_ns += now_ns - start_ns
        self.saw_data = True
        self.phase = "other"

    def batch_arrived(self, now_ns: int, start_ns: int, samples: int, tokens: int) -> None:
        """The wait is over, with a batch; NULL_INTEGER for unknown counts."""
        self.data_ns += now_ns - start_ns
        self.saw_data = True
        self.phase = "other"
        if samples != NULL_INTEGER:
            self.samples = samples if self.samples == NULL_INTEGER else self.samples + samples
        if tokens != NULL_INTEGER:
            self.tokens = tokens if self.tokens == NULL_INTEGER else self.tokens + tokens
        if self.timing or self.forward_armed or self.begin_awaited or self.interval is not None:
            self.expect_forward()

    def forward_begins(self, now_ns: int) -> None:
        """The first module call of a micro step."""
        self.forward_start_ns = now_ns
        self.saw_forward = True
        self.phase = "forward"
        if not self.step_start_ns:
            self.step_start_ns = now_ns
        if self.timing:
            self._append_pulse(self.step, self.micro_step, now_ns + ANCHOR_NS, self._forward_id)

    def backward_begins(self, now_ns: int, loss: float | None, share: float = NULL_DOUBLE) -> None:
        """The calling thread starts a backward, on `loss` if that could be read. `share`: its share of the
        step's loss (`loss_share`), if determined."""
        if _ident() != self._trainer:
            self._train_here()
        if self.interval is not None:
            self.intervals.trains(now_ns)
        if self.forward_start_ns:
            self.forward_ns += now_ns - self.forward_start_ns
            self.forward_start_ns = 0
        elif not self.step_start_ns:
            self.step_start_ns = now_ns
        if loss is not None:
            self.loss_sum += loss
            self.loss_count += 1
            self.loss_share += share
            finite = loss - loss == 0.0
            if not finite:
                self.alert = True
            self.newest_loss = self._append_loss(
                self.step, self.micro_step, now_ns + ANCHOR_NS, loss, finite, share
            )
        self.phase = "backward"
        if self.timing:
            self._append_pulse(self.step, self.micro_step, now_ns + ANCHOR_NS, self._backward_id)

    def backward_ends(self, now_ns: int, start_ns: int) -> None:
        """Backward ended: a micro step is complete."""
        self.backward_ns += now_ns - start_ns
        self.micro_step += 1
        self.phase = "other"
        if self.timing:
            self._append_pulse(self.step, self.micro_step, now_ns + ANCHOR_NS, self._other_id)
            if not self.sampling and self.arm_forward is not None:
                self.arm_forward()

    def optimizer_begins(self, now_ns: int) -> int:
        """An optimizer's step begins. Returns the time of the phases that may continue inside it (LBFGS)."""
        if _ident() != self._trainer:
            self._train_here()
        if self.interval is not None:
            self.intervals.trains(now_ns)
        if self.forward_start_ns:
            self.forward_ns += now_ns - self.forward_start_ns
            self.forward_start_ns = 0
        elif not self.step_start_ns:
            self.step_start_ns = now_ns
        self.phase = "optimizer"
        if self.timing:
            self._append_pulse(self.step, self.micro_step, now_ns + ANCHOR_NS, self._optimizer_id)
        return self.forward_ns + self.backward_ns + self.data_ns + self.comm_ns

    def known_ns(self) -> int:
        """Time of the phases so far, except the optimizer's."""
        return self.forward_ns + self.backward_ns + self.data_ns + self.comm_ns

    def optimizer_goes_on(self, now_ns: int) -> None:
        """A closure that the optimizer called has ended."""
        if self.forward_start_ns:
            self.forward_ns += now_ns - self.forward_start_ns
            self.forward_start_ns = 0
        self.phase = "optimizer"
        if self.timing:
            self._append_pulse(self.step, self.micro_step, now_ns + ANCHOR_NS, self._optimizer_id)

    def optimizer_ends(self, now_ns: int) -> None:
        """An optimizer's step ended or calls a closure, and the training step continues."""
        self.phase = "other"
        if self.timing:
            self._append_pulse(self.step, self.micro_step, now_ns + ANCHOR_NS, self._other_id)

    def communicated(self, now_ns: int, start_ns: int, counted_ns: int) -> None:
        """The training thread was inside a collective, send or receive, or waited for one. `counted_ns`:
        `comm_ns` at the start; the time of nested calls is in the difference."""
        if not self.step_start_ns or start_ns < self.step_start_ns:
            return  # before the first step began
        took = now_ns - start_ns - (self.comm_ns - counted_ns)
        self.comm_ns += took
        self.saw_comm = True
        phase = self.phase
        if phase == "backward":
            self.backward_ns -= took
        elif phase == "data":
            self.data_ns -= took
        elif self.forward_start_ns:
            self.forward_ns -= took
        # The optimizer's time excludes what was counted inside it; the rest is `other`.

    def hold(self, phase: str) -> None:
        """The training thread is held between two steps; `phase` is one of `HELD_PHASES`."""
        now_ns = _now()
        if not self._held_from_ns:
            self._held_from_ns = now_ns
        self.phase = phase
        self._append_pulse(self.step, self.micro_step, now_ns + ANCHOR_NS, self._held_ids[phase])

    def let_go(self) -> None:
        """The training thread is no longer held."""
        now_ns = _now()
        self.held_ns += now_ns - self._held_from_ns
        self._held_from_ns = 0
        self.phase = "other"
        self._append_pulse(self.step, self.micro_step, now_ns + ANCHOR_NS, self._other_id)

    # The end of a step ------------------------------------------------------

    def end_step(self, now_ns: int, boundary: str, lr: float, skipped: int) -> None:
        """Write the step's row and begin the next step. `lr` and `skipped` may be NULL."""
        if self.interval is not None:
            self.intervals.trains(now_ns)
        if self.forward_start_ns:
            self.forward_ns += now_ns - self.forward_start_ns
        wall = now_ns - (self.step_start_ns or now_ns)
        worked = wall - self.held_ns - self.eval_ns - self.checkpoint_ns
        known = self.data_ns + self.forward_ns + self.backward_ns + self.optimizer_ns + self.comm_ns
        spent = self.cost_ns + (_now() - now_ns)
        shadow = not self.timing
        # No row is kept here: objects that live for many steps have left every cache when they are freed.
        self._append_step([
            self.step,
            self._boundary_ids[boundary],
            self.micro_step,
            now_ns + ANCHOR_NS,
            wall / 1e9,
            self.data_ns / 1e9 if self.saw_data else NULL_DOUBLE,
            self.forward_ns / 1e9 if self.saw_forward else NULL_DOUBLE,
            self.backward_ns / 1e9 if self.micro_step else NULL_DOUBLE,
            self.optimizer_ns / 1e9 if self.optimizer_ns else NULL_DOUBLE,
            self.comm_ns / 1e9 if self.saw_comm else NULL_DOUBLE,
            self.held_ns / 1e9 if self.held_ns else NULL_DOUBLE,
            self.eval_ns / 1e9 if self.eval_ns else NULL_DOUBLE,
            self.checkpoint_ns / 1e9 if self.checkpoint_ns else NULL_DOUBLE,
            NULL_DOUBLE if shadow else (worked - known) / 1e9 if worked > known else 0.0,
            self.loss_sum if self.loss_count == 1 and not self.loss_parts else self._loss(),
            self.grad_norm,
            lr,
            self.clip_norm,
            self.clip_scaled,
            self.loss_scale,
            skipped,
            self.training_mode,
            self.stale_gradients,
            self.samples,
            self.tokens,
            self.rss_bytes,
            self.allocated_bytes,
            self.reserved_bytes,
            self.peak_allocated_bytes,
            self.sampling,
            shadow,
            spent,
        ])
        if self.sampling:
            self._after_sample(worked, spent)
        if self.grad_norm - self.grad_norm != 0.0:
            self.alert = True
        self.step += 1
        self._reset(now_ns)
        self.phase = "other"
        if self.timing:
            self._append_pulse(self.step, 0, now_ns + ANCHOR_NS, self._other_id)
        self._choose_next(boundary in MARKED)
        self.cost_ns = _now() - now_ns
        if self.end_awaited:
            self.listener.step_ended(boundary)

    def _after_sample(self, wall: int, spent: int) -> None:
        """Space the next sample by the cost of this one, until the governor has measured.

        Assumes twice the cost that our own clock shows, because it does not see torch's dispatch."""
        self.sampling = False
        self.stop_sampling()
        interval = self.modules_interval
        if not self.modules_fixed and wall > 0:
            interval = max(interval, min(10_000, int(2 * spent / (0.002 * wall))))
        self.next_sample = self.step + interval

    def _choose_next(self, shadow_allowed: bool) -> None:
        """Choose whether the step that begins is plain, sampled or shadow.

        A job whose boundary is not `MARKED` needs forwards timed to see it, so it has no shadow steps."""
        step, sample = self.step, self.next_sample
        if shadow_allowed:
            self.timing = (step >= sample or step % self.timed_every == 0 or step % ROUND == 0) and not (
                step >= SHADOW_FIRST and (step - SHADOW_FIRST) % SHADOW_EVERY < SHADOW_STEPS
            )
        if self.timing:
            if step >= sample and self.start_sampling is not None:
                self.sampling = self.start_sampling()
            self.expect_forward()
        elif self.forward_armed or self.begin_awaited or self.interval is not None:
            self.expect_forward()

    def await_begin(self) -> None:
        """Tell the listener when the next step begins."""
        self.begin_awaited = True
        self.expect_forward()

    def expect_forward(self) -> None:
        """Watch for the next micro step's first module call, or stop watching."""
        if self.arm_forward is None:
            return
        interval = self.interval
        wanted = (self.timing or self.begin_awaited) if interval is None else interval.listens(self)
        if wanted and not self.sampling:
            self.arm_forward()
        elif self.forward_armed:
            self.disarm_forward()

    def _loss(self) -> float:
        """The step's loss over any number of backward calls."""
        if not self.loss_count:
            return NULL_DOUBLE
        return self._whole(self.loss_sum, self.loss_share, self.loss_count)

    def _whole(self, total: float, share: float, count: int) -> float:
        """The loss of `count` backward calls."""
        parts = parts_of(share, count, self.loss_parts)
        self.loss_parts = max(parts, self.loss_parts) if parts > 1 else self.loss_parts
        return total / count * (parts or 1.0)

    def note_loss(self, step: int, micro_step: int, t_ns: int, loss: float, share: float) -> None:
        """Write the row of a loss that arrived late from a device; on the agent's thread."""
        self.newest_loss = self._append_loss(step, micro_step, t_ns, loss, loss - loss == 0.0, share)

    def deliver_loss(self, step: int, values: list[tuple[float, float]]) -> None:
        """Put late losses, each with its share, into the row of their step; on the agent's thread."""
        total, share = sum(value for value, _ in values), sum(share for _, share in values)
        if step == self.step:
            self.loss_sum += total
            self.loss_count += len(values)
            self.loss_share += share
            return
        self.past.amend(self.step, step, "loss", self._whole(total, share, len(values)))

    def deliver_grad_norm(self, step: int, norm: float) -> None:
        """Put a late gradient norm into the row of its step; on the agent's thread."""
        if step == self.step:
            self.grad_norm = norm
        else:
            self.past.amend(self.step, step, "grad_norm", norm)

    def call_step(self) -> None:
        """`probe.step()`: the job marks the end of a step."""
        now = _now()
        self.explicit = True
        if _ident() != self._trainer:
            self._train_here()
        self.end_step(now, "call", NULL_DOUBLE, NULL_BOOLEAN)

    def log(self, name: str, value: float) -> None:
        """`probe.log(name, value)`: one row of python.scalars. Raises unless name is a string and value a
        number."""
        if not isinstance(name, str):
            raise TypeError(f"name must be a string, not {type(name).__name__}")
        detach = getattr(value, "detach", None)  # torch warns about a number that requires grad
        number = float(value if detach is None else detach())
        self.rings["python.scalars"].append(
            self.step, _now() + ANCHOR_NS, self.intern(name) or NULL_STRING, number,
            NULL_INTEGER, self.intern("probe"),
        )
