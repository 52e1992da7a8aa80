"""NaN detector: detects the first NaN or infinity and starts the search for its origin.

Writes python.nonfinite and python.inputs, and `stale_gradients` of python.steps. HOT PATH: the recorder
notices a loss that is not finite, on every micro step. `_keep_call`, `_backward_begins` and `_backward_ends`
run then, and where phases are timed: they check, after backward, the sum of one small parameter's gradient,
the canary. Backward reaches it last, so a NaN from anywhere in the graph shows in it. Nothing waits for a
device.

On an event the process forks (`forked_probe`), and the child searches for the origin (`nan_trace`) while
training continues; the agent's thread collects the findings. The next event needs `REARM_STEPS` finite
steps in a row first. torch is the job's own.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import weakref
from typing import Any

from probe.base.accelerator import measurable
from probe.base.isolation import Isolation, capture, describe
from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.batch_history import Batches
from probe.job.instruments.loop.forward import Forward, RootCall, keywords
from probe.job.instruments.loop.losses import Losses
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.modules.module_names import ModuleNames
from probe.job.instruments.nan import forked_probe, nan_trace
from probe.job.instruments.nan.nan_origin import Seen
from probe.job.instruments.nan.nonfinite_events import KeptBatch, NonfiniteEvent
from probe.recording.journal import Journal
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE
from probe.recording.tables import BY_NAME

REARM_STEPS = 10
"""Finite steps in a row after which the detector is armed again."""
LARGEST_CANARY = 4096
"""Elements; summing so few costs little more than summing one."""
FIRST_CALLS, FULL_EVERY = 32, 64
"""Keywords and autocast are read on the first calls, then on every so many."""
STALE_EVERY = 8
"""Stale gradients are checked for on every so many steps."""
MOST_PASSED = 256
"""Parameters searched for a small one."""
MOST_CANARIES = 2
"""Models checked: two, for two networks that train in turns."""
HISTORY = 32
"""Losses remembered, to tell a run that diverged from one that broke."""
SPACING = 20
"""Two traces are at least this many times the duration of the first apart."""
MOST_SKIPS = 10
"""Skipped steps in a row from which on a GradScaler no longer searches for its scale."""
_ROW = [column.name for column in BY_NAME["python.steps"].columns]
_NORM_FIELD, _SKIPPED_FIELD = _ROW.index("grad_norm"), _ROW.index("skipped")
_NO_KEYWORDS: dict[str, Any] = {}
_FULL_BYTES = 4
_LAST_WAIT_S = 2.0
"""How long the end of the process waits for a trace under way."""


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
    ) -> None:
        self.recorder = recorder
        self.batches = Batches()
        self.kept: KeptBatch | None = None
        """The batch of the last event; see the action `save_batch`."""
        self._forward, self._losses, self._names, self._optimizers = forward, losses, names, optimizers
        self._journal = journal
        self._isolation = isolation
        self._pid = os.getpid()
        self._call: RootCall | None = None
        self._root: Any = None
        self._scaled = False
        self._canaries: list[tuple[weakref.ref[Any], bool]] = []
        self._chosen_for: tuple[Any, ...] = ()
        self._canary_for = self._calls = 0
        self._always_full, self._draws = False, True
        self._gradient: Any = None
        self._gradient_version = self._gradient_step = -1
        self._gradient_stale = False
        self._left = (0, 0)
        self._armed = True
        self._finite_steps = self._skips = 0
        self._checked_step = -1
        self._delivery = Delivery()
        self._events: list[NonfiniteEvent] = []
        self._collecting = threading.Lock()
        """Held by the agent's thread, or the one that stops it, while it reads from the children."""
        self._next_fork_s = 0.0

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
        """Take the callbacks out and drop everything; a trace under way gets a moment to finish."""
        self._forward.keep_call = self._losses.on_backward_begin = self._losses.on_backward_end = None
        self._losses.on_late_loss = None
        if os.getpid() != self._pid:
            return
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
        """The batch of the last event, else the newest batch; None when neither is held."""
        last = self.batches.last
        if self.kept is not None or last is None or last.content is None:
            return self.kept
        return KeptBatch(None, last)

    def kept_call(self) -> RootCall | None:
        """The model's call in this micro step, until its backward ends; on the training thread."""
        return self._call

    # HOT PATH ---------------------------------------------------------------

    def _keep_call(self, module: Any, args: Any) -> None:
        """Keep what is needed to repeat this call of the model, until its backward ends.

        Keywords and autocast are read on the first calls, on some later ones, and on all where the job uses
        them: inside a step, reading either costs as much as the rest of this method."""
        self._calls += 1
        full = self._always_full or self._calls <= FIRST_CALLS or not args or self._calls % FULL_EVERY == 0
        given, autocast = _NO_KEYWORDS, None
        if full:
            torch = self._torch
            given = keywords()
            if torch.is_autocast_enabled("cpu"):
                autocast = torch.get_autocast_dtype("cpu")
            self._always_full = self._always_full or bool(given) or autocast is not None
        state = self._generator.get_state() if self._draws else None
        self._call = RootCall(module, args, given, autocast, state, self.batches.last)
        self._losses.follows = True
        if not self._canaries and self._canary_for != id(module):
            self._canary_for = id(module)
            self._choose_canary_now(module)

    def _backward_begins(self, root: Any, loss: float | None, scaled: bool) -> None:
        recorder = self.recorder
        self._root, self._scaled = root, scaled
        if (
            recorder.timing
            and recorder.alone
            and self._canaries
            and recorder.stale_gradients == NULL_BOOLEAN
            and (recorder.step <= FIRST_CALLS or recorder.step % STALE_EVERY == 0)
        ):
            self._note_stale()
        if loss is None:
            recorder.alert = False
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
        if recorder.timing and recorder.alone and self._canaries:
            bad, first = False, True
            for reference, half in self._canaries:
                parameter = reference()
                gradient = parameter.grad if parameter is not None else None
                if first and self._gradient_step == recorder.step:
                    self._decide_stale(gradient)
                if first and gradient is not None and not gradient.is_cpu:
                    self._left = (id(gradient), gradient._version)
                first = False
                if gradient is not None:
                    bad = self._is_bad(gradient, half) or bad
            if bad:
                self._bad_gradient()
            else:
                self._skips = 0
                self._checked_step = recorder.step
        self._call = self._root = self._gradient = None

    def _is_bad(self, gradient: Any, half: bool) -> bool:
        """Whether a gradient holds a NaN or an infinity, by its sum: the cheapest read of a tensor inside a
        step. One on a device is known later. `half`: 16 bits, whose sum would overflow too easily."""
        if not gradient.is_cpu and not measurable(gradient):
            return False
        total = (gradient.float() if half else gradient).sum()
        if total.is_cpu:
            value = total.item()
            return bool(value - value != 0.0)
        self._send(total)
        return False

    def _send(self, total: Any) -> None:
        step, micro_step, scaled = self.recorder.step, self.recorder.micro_step - 1, self._scaled
        self._delivery.send(total, lambda value: self._late_sum(step, micro_step, scaled, value))

    def _choose_canary_now(self, module: Any) -> None:
        """Choose before the agent's thread does: a run may break in its first steps."""
        trained = {
            id(one): True
            for optimizer in self._optimizers.alive()
            for group in optimizer.param_groups
            for one in group["params"][:MOST_PASSED]
        }
        canary = _first_small(module, trained, self._torch)
        if canary is not None:
            self._canaries = [_canary(canary)]

    def _note_stale(self) -> None:
        """Before backward: note whether the leading model still has a gradient."""
        parameter = self._canaries[0][0]()
        gradient = parameter.grad if parameter is not None else None
        self._gradient, self._gradient_step = gradient, self.recorder.step
        self._gradient_stale = False
        if gradient is not None:
            self._gradient_version = gradient._version
            if gradient.is_cpu:
                self._gradient_stale = bool(gradient.any())
            else:  # without a read from the device: unchanged since the last backward
                self._gradient_stale = self._left == (id(gradient), gradient._version)

    def _decide_stale(self, now: Any) -> None:
        """After backward: the gradient was stale if this backward added to it. A backward through another
        model decides nothing."""
        before, self._gradient, self._gradient_step = self._gradient, None, -1
        if now is None or (now is before and now._version == self._gradient_version):
            return
        if before is None or before.is_cpu or self._gradient_stale:  # else only its values on a device tell
            self.recorder.stale_gradients = self._gradient_stale

    def _bad_gradient(self) -> None:
        """A gradient is not finite after backward: an event, unless a GradScaler is finding its scale."""
        if all(
            bool(self._torch.isfinite(one.grad).all())
            for reference, _ in self._canaries
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
        """Fork on the training thread, while the state is unchanged, and continue."""
        self._finite_steps = 0
        if not self._armed or self.recorder.counted_step is None:
            return
        self._armed, self.recorder.alert = False, True
        call = self._call
        batch = call.batch if call is not None and call.batch is not None else self.batches.last
        roots = self._names.roots() or ([call.module] if call is not None else [])
        scene = nan_trace.Scene(
            seen_by, self._root, call, batch, roots, self._optimizers.alive(), self._names.path
        )
        done = 0 if seen_by == "loss" else 1  # a backward that has ended is counted already
        event = self._event(seen_by, kind, self.recorder.step, self.recorder.micro_step - done, scene)
        refused = self._refusal()
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

    def _refusal(self) -> str:
        if time.monotonic() < self._next_fork_s:
            return "another event was traced just before"
        return forked_probe.refusal()

    def _late(self, seen_by: str, step: int, micro_step: int | None, value: float) -> None:
        """An event seen late: its tensors are gone, its batch may still be there."""
        self._armed, self._finite_steps = False, 0
        self.recorder.alert = True
        batches = self.batches.of_step(step)
        wanted = [batch for batch in batches if micro_step is None or batch.micro_step == micro_step]
        scene = nan_trace.Scene(
            seen_by, None, None, wanted[-1] if wanted else None, self._names.roots(),
            self._optimizers.alive(), self._names.path,
        )
        event = self._event(seen_by, "nan" if value != value else "inf", step, micro_step or 0, scene)
        event.seen = event.seen._replace(refused="it was seen after the fact")
        self._events.append(event)

    def _event(self, seen_by: str, kind: str, step: int, micro_step: int, scene: Any) -> NonfiniteEvent:
        recorder = self.recorder
        row = recorder.last_row
        norm = row[_NORM_FIELD] if row is not None and row[0] == step - 1 else NULL_DOUBLE
        seen = Seen(
            step=step, micro_step=micro_step, seen_by=seen_by, kind=kind,
            losses=recorder.past.losses(recorder.newest_loss, HISTORY),
            checked_before=self._checked_step >= step - 1 >= 0,
            norm_before=None if norm == NULL_DOUBLE else norm, several_ranks=forked_probe.ranks()[1] > 1,
        )
        return NonfiniteEvent(recorder, self.batches, scene, seen, seen_step=recorder.step)

    # The agent's thread -----------------------------------------------------

    def _late_loss(self, step: int, micro_step: int, value: float) -> None:
        """A loss that a device delivered."""
        if value - value == 0.0:
            if not self._armed and micro_step == 0:
                self._finite_steps += 1
                self._armed = self._finite_steps >= REARM_STEPS
        elif self._armed:
            self._late("loss", step, micro_step, value)

    def _late_sum(self, step: int, micro_step: int, scaled: bool, value: float) -> None:
        """The sum of a canary's gradient that a device delivered."""
        if value - value != 0.0 and self._armed and not scaled:
            self._late("gradient", step, micro_step, value)

    def collect(self) -> None:
        """One round: choose canaries, read what devices and children delivered."""
        self._choose_canaries()
        self._delivery.collect()
        self._collect_events()

    def _collect_events(self) -> None:
        with self._collecting:
            for event in list(self._events):
                if event.over(self._journal):
                    self._events.remove(event)
                    self._next_fork_s = time.monotonic() + SPACING * event.took_s

    def _choose_canaries(self) -> None:
        """Choose a small parameter of each model, near its input; again when the models change."""
        roots = self._names.roots()[: 2 * MOST_CANARIES]
        leader = self._optimizers.leader()
        key = (*map(id, roots), id(leader))
        if key == self._chosen_for or leader is None:
            return
        trained = {
            id(one): optimizer is leader
            for optimizer in reversed(self._optimizers.alive())
            for group in optimizer.param_groups
            for one in group["params"]
        }
        found: list[tuple[bool, Any]] = []
        for root in roots:
            canary = _first_small(root, trained, self._torch)
            if canary is not None and all(canary is not one for _, one in found):
                found.append((trained[id(canary)], canary))
        found.sort(key=lambda entry: not entry[0])
        self._canaries = [_canary(one) for _, one in found[:MOST_CANARIES]]
        self._draws = any(_draws(module) for root in roots for module in root.modules())
        self._chosen_for = key


def _canary(parameter: Any) -> tuple[weakref.ref[Any], bool]:
    """A weak reference, and whether its elements have less than 32 bits."""
    return weakref.ref(parameter), parameter.element_size() < _FULL_BYTES


def _draws(module: Any) -> bool:
    """Whether a module may draw random numbers in its forward, by its class or its dropout rate."""
    name = type(module).__name__.lower()
    rate = getattr(module, "p", None) if "dropout" in name else getattr(module, "dropout", None)
    return (isinstance(rate, float) and rate > 0) or "rrelu" in name or "droppath" in name


def _first_small(root: Any, trained: dict[int, bool], torch: Any) -> Any:
    """A model's first parameter that is small, trained and not sharded."""
    plain = (torch.Tensor, torch.nn.Parameter)
    for one in itertools.islice(root.parameters(), MOST_PASSED):
        fits = type(one) in plain and one.requires_grad and one.is_floating_point()
        if fits and id(one) in trained and 0 < one.numel() <= LARGEST_CANARY:
            return one
    return None
