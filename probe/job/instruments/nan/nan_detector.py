"""NaN detector: detects the first NaN or infinity and starts the search for its origin.

Writes python.nonfinite and python.inputs, and `stale_gradients` of python.steps. HOT PATH: the recorder
detects a loss that is not finite, on every micro step. `_keep_call`, `_backward_begins` and `_backward_ends`
run in that case, and in steps with timed phases: after backward they check the sum of the canary's gradient,
a small parameter's. Backward reaches the canary last, so a NaN from anywhere in the graph shows in it.
Nothing waits for a device, except with the mode `wait` and in a held trace.

On an event the process forks (`forked_probe`), and the child searches for the origin (`nan_trace`) while
training continues; the agent's thread collects the findings. `REARM_STEPS` finite steps in a row must pass
before the next event. Uses the job's torch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from probe.base import accelerator
from probe.base.isolation import Isolation, capture, describe
from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.batch_history import Batches
from probe.job.instruments.loop.forward import Forward, RootCall, keywords
from probe.job.instruments.loop.losses import Losses
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.modules.module_names import ModuleNames
from probe.job.instruments.nan import forked_probe, held_trace, loss_graph, nan_trace
from probe.job.instruments.nan.awaited import Awaited, Figure, too_late
from probe.job.instruments.nan.canaries import Canaries, StaleGradients
from probe.job.instruments.nan.nan_origin import Seen
from probe.job.instruments.nan.nonfinite_events import KeptBatch, NonfiniteEvent
from probe.recording.journal import Journal
from probe.recording.layout import NULL_DOUBLE
from probe.recording.tables import BY_NAME

REARM_STEPS = 10
"""Finite steps in a row after which the detector is armed again."""
FIRST_CALLS, FULL_EVERY = 32, 64
"""Keywords and autocast are read on the first calls, then on every n-th call."""
DIVIDED_SEEN = 2
"""First steps in which the loss is checked for a final division."""
STALE_EVERY = 8
"""Stale gradients are checked for on every n-th step."""
HISTORY = 32
"""Losses kept, to distinguish a run that diverged from one that broke suddenly."""
SPACING, HELD_SPACING = 20, 1000
"""Minimum time between two traces, as a multiple of the first one's duration: for a fork, and for the time
that the training thread was held."""
GIVEN_UP_S = 10.0
"""A bad value from a device that the training thread has not handled for this long is written without a
trace."""
MOST_SKIPS = 10
"""Skipped steps in a row after which a GradScaler is no longer just searching for its scale."""
_ROW = [column.name for column in BY_NAME["python.steps"].columns]
_NORM_FIELD, _SKIPPED_FIELD = _ROW.index("grad_norm"), _ROW.index("skipped")
_NO_KEYWORDS: dict[str, Any] = {}
_LAST_WAIT_S = 2.0
"""How long the end of the process waits for a running trace."""


class NanDetector:
    """Sets the callbacks of the instruments that see the loss, the model's call and the batch."""

    def __init__(
        self,
        recorder: Recorder,
        isolation: Isolation,
        forward: Forward,
        losses: Losses,
        names: ModuleNames,
        optimizers: Optimizers,
        journal: Journal,
        mode: str = "on",
    ) -> None:
        """`mode`: the setting `nan_trace`."""
        self.recorder = recorder
        self.batches = Batches()
        self.kept: KeptBatch | None = None
        """The batch of the last event; see the action `save_batch`."""
        self._forward, self._losses, self._names, self._optimizers = forward, losses, names, optimizers
        self._journal, self._mode = journal, mode
        self._isolation = isolation
        self.passes: Callable[[BaseException], bool] = held_trace.not_ours
        """Whether an error raised while the training thread is held belongs to the job (from a signal)."""
        self._awaited = Awaited()
        self._divided = False
        self._pid = os.getpid()
        self._call: RootCall | None = None
        self._root: Any = None
        self._scaled = False
        self._canaries = Canaries(names, optimizers)
        self._stale = StaleGradients(recorder)
        self._calls = 0
        self._always_full = False
        self._armed = True
        self._finite_steps = self._skips = 0
        self._checked_step = self._event_step = -1
        self._delivery = Delivery()
        self._events: list[NonfiniteEvent] = []
        self._collecting = threading.Lock()
        """Lock held while reading from the children, by the agent's thread or the thread that stops it."""
        self._next_fork_s = self._next_hold_s = 0.0

    def install(self) -> None:
        """Set the callbacks."""
        guard = self._isolation.guard
        self._torch: Any = sys.modules["torch"]
        self._generator = self._torch.default_generator
        self._forward.keep_call = guard("nonfinite", self._keep_call)
        self._losses.on_backward_begin = guard("nonfinite", self._backward_begins)
        self._losses.on_backward_end = guard("nonfinite", self._backward_ends)
        self._losses.on_late_loss = self._late_loss

    def uninstall(self) -> None:
        """Remove the callbacks and drop everything; a running trace gets a moment to finish."""
        self._forward.keep_call = self._losses.on_backward_begin = self._losses.on_backward_end = None
        self._losses.on_late_loss = self._optimizers.before_update = None
        if os.getpid() != self._pid:
            return
        self._give_up(0.0)
        deadline_s = time.monotonic() + _LAST_WAIT_S
        while self._events and time.monotonic() < deadline_s:
            self._collect_events()
            time.sleep(0.01)
        with self._collecting:
            for event in self._events:
                event.finish(self._journal, "probe left before the trace ended")
            self._events.clear()
        self.batches.forget()
        self.kept = self._call = self._root = None

    def batch_to_save(self) -> KeptBatch | None:
        """The batch of the last event, else the newest batch; None if neither is held."""
        last = self.batches.last
        if self.kept is not None or last is None or last.content is None:
            return self.kept
        return KeptBatch(None, last)

    def kept_call(self) -> RootCall | None:
        """The model's call in this micro step, until its backward ends; on the training thread."""
        return self._call

    # HOT PATH ---------------------------------------------------------------

    def _keep_call(self, module: Any, args: Any) -> None:
        """Keep everything needed to repeat this call of the model, until its backward ends.

        Keywords and autocast are read on the first calls, on some later ones, and on all if the job uses
        them: inside a step, reading either costs as much as the rest of this method."""
        if self._awaited.figures:
            self._check_arrived(before_update=False)
        self._calls += 1
        full = self._always_full or self._calls <= FIRST_CALLS or not args or self._calls % FULL_EVERY == 0
        given, autocast, on_device, device_state = _NO_KEYWORDS, None, None, None
        device = accelerator.current() if full or self._optimizers.before_update is not None else None
        if full:
            torch = self._torch
            given = keywords()
            if torch.is_autocast_enabled("cpu"):
                autocast = torch.get_autocast_dtype("cpu")
            if device is not None and torch.is_autocast_enabled(device.kind):
                on_device = device.kind, torch.get_autocast_dtype(device.kind)
            self._always_full = (
                self._always_full or bool(given) or autocast is not None or on_device is not None
            )
        state = self._generator.get_state() if self._canaries.draw else None
        if self._canaries.draw and device is not None:
            device_state = device.random_state()
        self._call = RootCall(
            module, args, given, autocast, state, self.batches.last, on_device, device_state
        )
        self._losses.follows = True
        canaries = self._canaries
        if not canaries.chosen and canaries.asked_for != id(module):
            canaries.choose_now(module)

    def _backward_begins(self, root: Any, loss: float | None, scaled: bool) -> None:
        recorder = self.recorder
        self._root, self._scaled = root, scaled
        if (
            recorder.timing
            and recorder.alone
            and self._canaries.chosen
            and self._stale.asks()
            and (recorder.step <= FIRST_CALLS or recorder.step % STALE_EVERY == 0)
        ):
            self._stale.begins(self._canaries.chosen[0][0]())
        if loss is None:
            recorder.alert = False
            sent, self._losses.sent = self._losses.sent, None
            self._await(sent, "loss", recorder.micro_step)
            if recorder.step < DIVIDED_SEEN:
                self._divided = self._divided or loss_graph.divides(root)
            return
        if loss - loss == 0.0:
            if recorder.alert and recorder.micro_step == 0:
                self._check_norm()
            if not self._armed and recorder.micro_step == 0:
                self._finite_steps += 1
                self._armed = self._finite_steps >= REARM_STEPS
        else:
            self._fire("loss", "nan" if loss != loss else "inf")
        recorder.alert = not self._armed

    def _backward_ends(self) -> None:
        recorder = self.recorder
        if recorder.timing and recorder.alone and self._canaries.chosen:
            bad, first, here = False, True, True
            for reference, half in self._canaries.chosen:
                parameter = reference()
                gradient = parameter.grad if parameter is not None else None
                if first:
                    self._stale.ends(gradient)
                first = False
                if gradient is not None:
                    bad = self._is_bad(gradient, half) or bad
                    here = here and gradient.is_cpu
            if bad:
                self._bad_gradient()
            elif here:
                self._skips = 0
                self._checked_step = recorder.step
        self._call = self._root = self._stale.gradient = None

    def _is_bad(self, gradient: Any, half: bool) -> bool:
        """Whether a gradient's sum is not finite: the cheapest read of a tensor inside a step. The result of
        a device arrives later. `half`: 16 bits, whose sum would overflow too easily."""
        if not gradient.is_cpu and not accelerator.measurable(gradient):
            return False
        total = (gradient.float() if half else gradient).sum()
        if total.is_cpu:
            value = total.item()
            return bool(value - value != 0.0)
        self._send(total)
        return False

    def _send(self, total: Any) -> None:
        step, micro_step, scaled = self.recorder.step, self.recorder.micro_step - 1, self._scaled
        sent = self._delivery.send(total, lambda value: self._late_sum(step, micro_step, scaled, value))
        self._await(sent, "gradient", micro_step)

    def _await(self, sent: Any, seen_by: str, micro_step: int) -> None:
        """Await a value from a device: it is checked before the optimizer writes."""
        if sent is None or self._mode == "off":
            return
        self._judge_updates()
        self._awaited.add(Figure(
            sent, seen_by, self.recorder.step, micro_step, self._scaled, self._call, self._root,
            self._canaries.version(),
        ))

    def _judge_updates(self) -> None:
        if self._optimizers.before_update is None:
            self._optimizers.before_update = self._isolation.guard("nonfinite", self._before_update)

    def _before_update(self) -> None:
        """An optimizer is about to write the weights."""
        if self._awaited.figures:
            self._check_arrived(before_update=True)

    def _check_arrived(self, *, before_update: bool) -> None:
        """Judge the values that have arrived."""
        awaited = self._awaited
        if not before_update and (self._optimizers.in_step or not self._optimizers.made_any):
            awaited.weights_change()  # it is unknown when the weights are written
        while (figure := awaited.known(wait=before_update and self._mode == "wait")) is not None:
            value = figure.value
            if value is not None and value - value != 0.0:
                self._handle_nonfinite(figure)
            elif figure.seen_by == "gradient":
                self._skips = 0
                self._checked_step = figure.step
            figure.call = figure.root = None
        awaited.weights_change() if before_update else awaited.forget_graphs()

    def _bad_gradient(self) -> None:
        """A gradient is not finite after backward: an event, unless a GradScaler is finding its scale."""
        if all(
            bool(self._torch.isfinite(one.grad).all())
            for reference, _ in self._canaries.chosen
            if (one := reference()) is not None and one.grad is not None
        ):
            return  # only the sum overflowed
        if self._scaled:
            self._skips += 1
            scale = self.recorder.loss_scale
            if self._skips < MOST_SKIPS and (scale == NULL_DOUBLE or scale > 1.0):
                return
        self._fire("scaler" if self._scaled else "gradient", "nan")

    def _check_norm(self) -> None:
        """Check the norm that the job's own clipping computed in the previous step."""
        row = self.recorder.last_row
        norm = row[_NORM_FIELD] if row is not None else 0.0
        if norm == NULL_DOUBLE or norm - norm == 0.0 or row is None or row[_SKIPPED_FIELD] != 0:
            return
        step = row[0]
        if self._armed and step == self.recorder.step - 1:
            self._late("gradient norm", step, None, norm)

    # An event: rare -----------------------------------------------------------

    def _fire(self, seen_by: str, kind: str) -> None:
        """Start an event: fork on the training thread, while the state is unchanged, and continue."""
        self._finite_steps = 0
        if not self._armed or self.recorder.counted_step is None:
            return
        call, refused = self._call, self._refusal()
        if refused and self._mode != "off" and self._schedule_held(seen_by, kind, call):
            return
        self._armed, self.recorder.alert = False, True
        batch = call.batch if call is not None and call.batch is not None else self.batches.last
        roots = self._names.roots() or ([call.module] if call is not None else [])
        scene = nan_trace.Scene(
            seen_by, self._root, call, batch, roots, self._optimizers.alive(), self._names.path
        )
        done = 0 if seen_by == "loss" else 1  # a finished backward is already counted
        event = self._event(seen_by, kind, self.recorder.step, self.recorder.micro_step - done, scene)
        if not refused:
            event.child, error = capture(
                lambda: forked_probe.ForkedProbe(lambda send: nan_trace.trace(scene, send))
            )
            refused = describe(error) if isinstance(error, OSError) else ""
            if error is not None and not isinstance(error, OSError):
                raise error
        event.seen = event.seen._replace(refused=refused)
        if batch is not None and batch.content is not None:
            self.kept = KeptBatch(event, batch)
        self._events.append(event)

    def _schedule_held(self, seen_by: str, kind: str, call: RootCall | None) -> bool:
        """If forking is impossible, schedule a held trace before the optimizer's step; False if refused."""
        if self._held_refusal(call):
            return False
        done = 0 if seen_by == "loss" else 1
        recorder = self.recorder
        figure = Figure(
            (None, None), seen_by, recorder.step, recorder.micro_step - done, self._scaled, call, self._root,
            self._canaries.version(),
        )
        figure.value = float(kind)
        self._judge_updates()
        self._awaited.add(figure)
        return True

    def _refusal(self) -> str:
        if self._mode == "off":
            return "PROBE_NAN_TRACE is off"
        if time.monotonic() < self._next_fork_s:
            return "another event was traced just before"
        return forked_probe.refusal()

    def _handle_nonfinite(self, figure: Figure) -> None:
        """Handle a non-finite value: skip it, report it late, or trace it on this thread."""
        if figure.seen_by == "gradient" and figure.scaled:
            self._skips += 1
            if self._skips == MOST_SKIPS and self._armed:
                self._late("scaler", figure.step, figure.micro_step, figure.value)
            return
        self._finite_steps = 0
        if not self._armed or self.recorder.counted_step is None:
            return
        step = self.recorder.step
        behind = figure.lost or figure.version != self._canaries.version()
        if behind and (figure.seen_by == "loss" or figure.step != step - 1):
            why = too_late(step - figure.step)
            self._late(figure.seen_by, figure.step, figure.micro_step, figure.value, why)
            return
        self._armed, self.recorder.alert = False, True
        call = None if behind else figure.call
        batch = call.batch if call is not None else None
        roots = self._names.roots() or ([call.module] if call is not None else [])
        scene = nan_trace.Scene(
            figure.seen_by, figure.root, call, batch, roots, self._optimizers.alive(), self._names.path,
            self.passes, self._divided,
        )
        kind = "nan" if figure.value != figure.value else "inf"
        if behind:  # only its own step has written the weights since: they show where it was
            event = self._event(figure.seen_by, kind, step, 0, scene)
            event.seen = event.seen._replace(bad_before=True, refused=too_late(1))
        else:
            event = self._event(figure.seen_by, kind, figure.step, figure.micro_step, scene)
            event.seen = event.seen._replace(refused=self._held_refusal(call))
        self._trace_held(event, behind=behind)
        if batch is not None and batch.content is not None:
            self.kept = KeptBatch(event, batch)
        self._events.append(event)

    def _held_refusal(self, call: RootCall | None) -> str:
        if time.monotonic() < max(self._next_hold_s, self._next_fork_s):
            return "another event was traced just before"
        return held_trace.refusal(call, self.recorder, forked_probe.ranks()[1])

    def _trace_held(self, event: NonfiniteEvent, *, behind: bool) -> None:
        """Trace the event on this thread."""
        if (event.seen.refused and not behind) or time.monotonic() < self._next_hold_s:
            return
        recorder = self.recorder
        walls_ns = [one.wall_ns for one in recorder.recent[-HISTORY:]]
        usual_s = sorted(walls_ns)[len(walls_ns) // 2] * 1e-9 if walls_ns else 0.0
        begun_s, phase = time.monotonic(), recorder.phase
        recorder.hold("acting")
        try:
            event.held = held_trace.trace(
                event.scene, self._isolation, max(held_trace.SHORTEST_S, held_trace.TIMES * usual_s),
                alone=forked_probe.ranks()[1] == 1,
            )
        finally:
            recorder.let_go()
        recorder.phase = phase
        held_s = time.monotonic() - begun_s
        recorder.cost_ns -= int(held_s * 1e9)  # not the cost of recording
        if recorder.forward_start_ns:
            recorder.forward_start_ns += int(held_s * 1e9)
        self._next_hold_s = time.monotonic() + HELD_SPACING * held_s
        event.scene = event.scene._replace(root=None, call=None)
        event.seen = event.seen._replace(held_ms=held_s * 1e3)

    def _late(
        self, seen_by: str, step: int, micro_step: int | None, value: float | None,
        why: str = "",
    ) -> None:
        """An event detected late: its tensors are gone, its batch may still exist."""
        self._armed, self._finite_steps = False, 0
        self.recorder.alert = True
        batches = self.batches.of_step(step)
        wanted = [batch for batch in batches if micro_step is None or batch.micro_step == micro_step]
        scene = nan_trace.Scene(
            seen_by, None, None, wanted[-1] if wanted else None, self._names.roots(),
            self._optimizers.alive(), self._names.path,
        )
        event = self._event(seen_by, "nan" if value != value else "inf", step, micro_step or 0, scene)
        if self._mode == "off":
            why = "PROBE_NAN_TRACE is off"
        event.seen = event.seen._replace(refused=why or "it was seen after the fact")
        self._events.append(event)

    def _event(self, seen_by: str, kind: str, step: int, micro_step: int, scene: Any) -> NonfiniteEvent:
        recorder = self.recorder
        row = recorder.last_row
        norm = row[_NORM_FIELD] if row is not None and row[0] == step - 1 else NULL_DOUBLE
        self._event_step = recorder.step
        seen = Seen(
            step=step, micro_step=micro_step, seen_by=seen_by, kind=kind,
            losses=recorder.past.losses(recorder.newest_loss, HISTORY),
            checked_before=self._checked_step >= step - 1 >= 0,
            norm_before=None if norm == NULL_DOUBLE else norm, several_ranks=forked_probe.ranks()[1] > 1,
        )
        return NonfiniteEvent(recorder, self.batches, scene, seen, seen_step=recorder.step)

    # The agent's thread -----------------------------------------------------

    def _late_loss(self, step: int, micro_step: int, value: float) -> None:
        """A loss arrived from a device."""
        noted = self._awaited.note("loss", step, micro_step, value)
        if value - value == 0.0:
            if not self._armed and micro_step == 0 and step > self._event_step:  # not one from before it
                self._finite_steps += 1
                self._armed = self._finite_steps >= REARM_STEPS
        elif not noted and self._armed:
            self._late("loss", step, micro_step, value)

    def _late_sum(self, step: int, micro_step: int, scaled: bool, value: float) -> None:
        """The sum of a canary's gradient arrived from a device."""
        noted = self._awaited.note("gradient", step, micro_step, value)
        if value - value != 0.0 and not noted and self._armed and not scaled:
            self._late("gradient", step, micro_step, value)

    def _give_up(self, after_s: float) -> None:
        """Write the bad values that the training thread has not handled in time."""
        for figure in self._awaited.given_up(after_s):
            value = figure.value
            bad = value is not None and value - value != 0.0
            if bad and self._armed and not (figure.scaled and figure.seen_by == "gradient"):
                self._late(figure.seen_by, figure.step, figure.micro_step, value)

    def collect(self) -> None:
        """One round: choose canaries, read results from devices and children."""
        self._canaries.choose()
        self._delivery.collect()
        self._give_up(GIVEN_UP_S)
        self._collect_events()

    def _collect_events(self) -> None:
        with self._collecting:
            for event in list(self._events):
                if event.over(self._journal):
                    self._events.remove(event)
                    self._next_fork_s = time.monotonic() + SPACING * event.took_s
