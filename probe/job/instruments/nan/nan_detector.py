"""Sentinel: notices the first NaN or infinity, and has it traced to where it began.

Writes python.nonfinite and python.inputs, and `stale_gradients` of python.steps. HOT PATH:
`keep`, `backward_begins` and `backward_ends` run in every micro step. What is looked at there is
there already: the loss that `losses` read, and after backward the sum of the gradient of one small
parameter that backward reaches last, so that a NaN from anywhere on its way shows in it. Nothing
waits for a device.

Once it fires, the process is forked (`frozen`) and the fork looks at everything (`origin`) while
the training goes on; the agent's thread collects what it found. One event is looked at; what follows
is counted until the run was finite again for `REARM_STEPS` steps. torch is the job's own.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
import weakref
from collections import deque
from typing import Any

from probe.base.isolation import Isolation, capture, describe
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.batch_history import Batches
from probe.job.instruments.loop.forward import Forward, RootCall, keywords
from probe.job.instruments.loop.losses import Losses
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.modules.module_names import ModuleNames
from probe.job.instruments.nan import forked_probe, nan_trace
from probe.job.instruments.nan.nonfinite_events import KeptBatch, NonfiniteEvent
from probe.recording.journal import Journal
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE
from probe.recording.tables import BY_NAME

_now = time.monotonic_ns
REARM_STEPS = 10
"""Steps without anything bad after which the next one is an event of its own."""
LARGEST_CANARY = 4096
"""Elements whose sum costs as good as nothing more than that of one."""
FIRST_CALLS, ASK_EVERY = 32, 64
"""Calls of which everything is asked, and how often later ones are."""
STALE_EVERY = 8
"""Steps of which one is looked at for gradients that nobody cleared."""
MOST_PASSED = 256
"""Parameters looked through for a small one."""
MOST_CANARIES = 2
"""Models whose gradients are looked at: two, for two networks that train in turns."""
HISTORY = 32
"""Losses remembered, to tell a run that diverged from one that broke."""
SPACING = 20
"""Forks are at least so many times as far apart as the last look took."""
MOST_SKIPS = 10
"""Steps in a row that a GradScaler would skip before it is more than the search for its scale."""
_ROW = [column.name for column in BY_NAME["python.steps"].columns]
_NORM_FIELD, _SKIPPED_FIELD = _ROW.index("grad_norm"), _ROW.index("skipped")
_NO_KEYWORDS: dict[str, Any] = {}
_FULL_BYTES = 4
_LAST_WAIT_S = 2.0
"""How long the end of the process waits for a look that is under way."""


class Sentinel:
    """Installs itself into the instruments that see the loss, the model's call and the batch."""

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
        self._canaries: list[tuple[weakref.ref[Any], bool]] = []
        self._chosen_for: tuple[Any, ...] = ()
        self._asked = self._calls = 0
        self._asks, self._draws = False, True
        self._gradient: Any = None
        self._gradient_version = self._gradient_step = -1
        self._gradient_stale = False
        self._left = (0, 0)
        self._armed = True
        self._finite_steps = self._skips = 0
        self._looked_step = -1
        self._history: deque[float] = deque(maxlen=HISTORY)
        self._sent: deque[tuple[Any, Any, int, int, Any]] = deque(maxlen=64)
        self._events: list[NonfiniteEvent] = []
        self._collecting = threading.Lock()
        """Held by the agent's thread, or by the one that stops it, while it reads what forks say."""
        self._next_fork_s = 0.0

    def install(self) -> None:
        """Be told of losses, of the calls of models, and of the end of backward."""
        guard = self._isolation.guard
        self._torch: Any = sys.modules["torch"]
        self._generator = self._torch.default_generator
        self._forward.keep = guard("nonfinite", self._keep)
        self._losses.sentinel_begins = guard("nonfinite", self._backward_begins)
        self._losses.sentinel_ends = guard("nonfinite", self._backward_ends)
        self._losses.late = self._late_loss

    def uninstall(self) -> None:
        """Let go of everything; what is being looked at gets a moment to come to its end."""
        self._forward.keep = self._losses.sentinel_begins = self._losses.sentinel_ends = None
        self._losses.late = None
        if os.getpid() != self._pid:
            return
        deadline_s = time.monotonic() + _LAST_WAIT_S
        while self._events and time.monotonic() < deadline_s:
            self._collect_events()
            time.sleep(0.01)
        with self._collecting:
            for event in self._events:
                event.finish(self._journal, "probe left before the look was over")
            self._events.clear()
        self.batches.forget()
        self.kept = self._call = self._root = None

    def batch_to_save(self) -> KeptBatch | None:
        """The batch of the last event, else the last one that came; None when none is held."""
        last = self.batches.last
        if self.kept is not None or last is None or last.content is None:
            return self.kept
        return KeptBatch(None, last)

    # HOT PATH ---------------------------------------------------------------

    def _keep(self, module: Any, args: Any) -> None:
        """The model is called: what it takes to call it again, until the backward is done.

        Keywords and autocast are asked for at the first calls, at some of the later ones, and at all where
        the job uses them: in the middle of a step each question costs as much as all of the rest."""
        self._calls += 1
        full = self._asks or self._calls <= FIRST_CALLS or not args or self._calls % ASK_EVERY == 0
        given, autocast = _NO_KEYWORDS, None
        if full:
            torch = self._torch
            given = keywords()
            if torch.is_autocast_enabled("cpu"):
                autocast = torch.get_autocast_dtype("cpu")
            self._asks = self._asks or bool(given) or autocast is not None
        state = self._generator.get_state() if self._draws else None
        self._call = RootCall(module, args, given, autocast, state, self.batches.last)
        if not self._canaries and self._asked != id(module):
            self._asked = id(module)
            self._choose_at_once(module)

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
            self._note_gradient()
        if loss is None:
            return
        if loss - loss == 0.0:
            self._history.append(loss)
            if recorder.micro_step == 0 and recorder.last_row is not None:
                self._look_at_norm()
            if not self._armed and recorder.micro_step == 0:
                self._finite_steps += 1
                self._armed = self._finite_steps >= REARM_STEPS
        else:
            self._fire("loss", "nan" if loss != loss else "inf")

    def _backward_ends(self) -> None:
        recorder = self.recorder
        if recorder.timing and recorder.alone and self._canaries:
            bad, first = False, True
            for reference, half in self._canaries:
                parameter = reference()
                gradient = parameter.grad if parameter is not None else None
                if first and self._gradient_step == recorder.step:
                    self._judge_gradient(gradient)
                if first and gradient is not None and not gradient.is_cpu:
                    self._left = (id(gradient), gradient._version)
                first = False
                if gradient is not None:
                    bad = self._is_bad(gradient, half) or bad
            if bad:
                self._bad_gradient()
            else:
                self._skips = 0
                self._looked_step = recorder.step
        self._call = self._root = self._gradient = None

    def _is_bad(self, gradient: Any, half: bool) -> bool:
        """Whether a NaN or an infinity is in it; of one on a device that is known later. No other way
        to read a tensor is cheaper inside a step. `half`: its sum may overflow where it does not."""
        total = (gradient.float() if half else gradient).sum()
        if total.is_cpu:
            value = total.item()
            return bool(value - value != 0.0)
        if total.is_cuda:
            self._send(total)
        return False

    def _choose_at_once(self, module: Any) -> None:
        """Before the agent's thread has chosen: a run may break in its first steps."""
        trained = {
            id(one): True
            for optimizer in self._optimizers.alive()
            for group in optimizer.param_groups
            for one in group["params"][:MOST_PASSED]
        }
        canary = _first_small(module, trained, self._torch)
        if canary is not None:
            self._canaries = [_canary(canary)]

    def _note_gradient(self) -> None:
        """Before backward: whether the leading model's gradient of before is still there."""
        parameter = self._canaries[0][0]()
        gradient = parameter.grad if parameter is not None else None
        self._gradient, self._gradient_step = gradient, self.recorder.step
        self._gradient_stale = False
        if gradient is not None:
            self._gradient_version = gradient._version
            if gradient.is_cpu:
                self._gradient_stale = bool(gradient.any())
            else:  # without asking the device: nobody wrote to it since backward did
                self._gradient_stale = self._left == (id(gradient), gradient._version)

    def _judge_gradient(self, now: Any) -> None:
        """After backward: it was stale if this very backward added to it. A backward that went through
        another model says nothing."""
        before, self._gradient, self._gradient_step = self._gradient, None, -1
        if now is None or (now is before and now._version == self._gradient_version):
            return
        if before is None or before.is_cpu or self._gradient_stale:  # else its values on a device would tell
            self.recorder.stale_gradients = self._gradient_stale

    def _bad_gradient(self) -> None:
        """After backward a gradient is not finite. Under a GradScaler that is how it finds its scale."""
        if all(
            bool(self._torch.isfinite(one.grad).all())
            for reference, _ in self._canaries
            if (one := reference()) is not None and one.grad is not None
        ):
            return  # a sum that overflowed
        if self._scaled:
            self._skips += 1
            scale = self.recorder.loss_scale
            if self._skips < MOST_SKIPS and (scale == NULL_DOUBLE or scale > 1.0):
                return
        self._fire("scaler" if self._scaled else "gradient", "nan")

    def _look_at_norm(self) -> None:
        """The norm that the job's own clipping computed in the step before."""
        row = self.recorder.last_row
        norm = row[_NORM_FIELD] if row is not None else 0.0
        if norm == NULL_DOUBLE or norm - norm == 0.0 or row is None or row[_SKIPPED_FIELD] is not False:
            return
        step = row[0]
        if self._armed and step == self.recorder.step - 1:
            self._late("gradient norm", step, None, norm)

    # An event: rare -----------------------------------------------------------

    def _fire(self, seen_by: str, kind: str) -> None:
        """On the training thread, while everything is as it was: fork, and go on."""
        self._finite_steps = 0
        if not self._armed or self.recorder.counted_step is None:
            return
        self._armed = False
        call = self._call
        batch = call.batch if call is not None and call.batch is not None else self.batches.last
        roots = self._names.roots() or ([call.module] if call is not None else [])
        scene = nan_trace.Scene(
            seen_by, self._root, call, batch, roots, self._optimizers.alive(), self._names.path
        )
        done = 0 if seen_by == "loss" else 1  # a backward that has ended is counted already
        event = self._event(seen_by, kind, self.recorder.step, self.recorder.micro_step - done, scene)
        event.refused = self._refusal()
        if not event.refused:
            look, error = capture(lambda: forked_probe.Frozen(lambda send: nan_trace.look(scene, send)))
            event.look = look
            event.refused = describe(error) if isinstance(error, OSError) else ""
            if error is not None and not isinstance(error, OSError):
                raise error
        if batch is not None and batch.content is not None:
            self.kept = KeptBatch(event, batch)
        self._events.append(event)

    def _refusal(self) -> str:
        if time.monotonic() < self._next_fork_s:
            return "another event was looked at just before"
        return forked_probe.refusal(int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1))

    def _late(self, seen_by: str, step: int, micro_step: int | None, value: float) -> None:
        """Something that came after the fact: its tensors are gone, its batch may be there yet."""
        self._armed, self._finite_steps = False, 0
        batches = self.batches.of_step(step)
        wanted = [batch for batch in batches if micro_step is None or batch.micro_step == micro_step]
        scene = nan_trace.Scene(
            seen_by,
            None,
            None,
            wanted[-1] if wanted else None,
            self._names.roots(),
            self._optimizers.alive(),
            self._names.path,
        )
        event = self._event(seen_by, "nan" if value != value else "inf", step, micro_step or 0, scene)
        event.refused = "it was seen after the fact"
        self._events.append(event)

    def _event(self, seen_by: str, kind: str, step: int, micro_step: int, scene: Any) -> NonfiniteEvent:
        recorder = self.recorder
        row = recorder.last_row
        norm = row[_NORM_FIELD] if row is not None and row[0] == step - 1 else NULL_DOUBLE
        return NonfiniteEvent(
            recorder=recorder,
            batches=self.batches,
            scene=scene,
            seen_by=seen_by,
            kind=kind,
            step=step,
            micro_step=micro_step,
            seen_step=recorder.step,
            losses=list(self._history),
            looked_before=self._looked_step >= step - 1 >= 0,
            norm_before=None if norm == NULL_DOUBLE else norm,
        )

    # A device: what is there later, read on the agent's thread -------------------

    def _send(self, total: Any) -> None:
        torch = self._torch
        if torch.cuda.is_current_stream_capturing():
            return
        host = torch.empty((), dtype=total.dtype, pin_memory=True)
        host.copy_(total, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        self._sent.append((host, arrived, self.recorder.step, self.recorder.micro_step - 1, self._scaled))

    def _late_loss(self, step: int, micro_step: int, value: float) -> None:
        """A loss that a device delivered; on the agent's thread."""
        if value - value == 0.0:
            self._history.append(value)
            if not self._armed and micro_step == 0:
                self._finite_steps += 1
                self._armed = self._finite_steps >= REARM_STEPS
        elif self._armed:
            self._late("loss", step, micro_step, value)

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """What forks and devices have found, and which parameters to look at."""
        self._choose()
        while self._sent and self._sent[0][1].query():
            host, _, step, micro_step, scaled = self._sent.popleft()
            value = float(host)
            if value - value != 0.0 and self._armed and not scaled:
                self._late("gradient", step, micro_step, value)
        self._collect_events()

    def _collect_events(self) -> None:
        with self._collecting:
            for event in list(self._events):
                if event.over(self._journal):
                    self._events.remove(event)
                    self._next_fork_s = time.monotonic() + SPACING * event.took_s

    def _choose(self) -> None:
        """A small parameter of each model that backward reaches last; again when there are other models."""
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
    """A reference, and whether its numbers have half the bits."""
    return weakref.ref(parameter), parameter.element_size() < _FULL_BYTES


def _draws(module: Any) -> bool:
    """Whether a module may draw random numbers in its forward: by its class, or by what it says of itself."""
    name = type(module).__name__.lower()
    rate = getattr(module, "p", None) if "dropout" in name else getattr(module, "dropout", None)
    return (isinstance(rate, float) and rate > 0) or "rrelu" in name or "droppath" in name


def _first_small(root: Any, trained: dict[int, bool], torch: Any) -> Any:
    """The first parameter of a model, in its order, that is small, trained, and none of a sharded model's."""
    plain = (torch.Tensor, torch.nn.Parameter)
    for one in itertools.islice(root.parameters(), MOST_PASSED):
        fits = type(one) in plain and one.requires_grad and one.is_floating_point()
        if fits and id(one) in trained and 0 < one.numel() <= LARGEST_CANARY:
            return one
    return None
