"""Intervals: detects evaluation, prediction and checkpointing on the training thread, between or in steps.

HOT PATH, but not of an ordinary training step: the recorder and the instruments call in here only while
`Recorder.interval` is set, or when a batch comes from a pass over a loader that is not known to feed the
training. Writes python.intervals. The time of an interval is removed from the current step's phases and
counted in its `eval_s` or `checkpoint_s` (docs/decisions/0022). Standard library only.

An interval is recognized in one of two ways:

- By name: a call of a function known to evaluate or save (`enter`, `leave`; `loop/framework_calls`).
- By signs, during a pass over a loader. Until there is a sign the pass is only *watched*, and the step's
  figures from before it are kept. A backward or an optimizer step makes it training. It is an evaluation if
  the model ran on its batches without gradients or in eval mode, and the pass continues or ends without a
  backward. If a backward follows after all, the interval is withdrawn.

A stretch without a loader, in which a previously trained model runs without gradients, is an interval if it
took longer than `LONG_STEPS` steps and the step before had no such stretch: work that every step does
(metrics, generation) is part of the step. In train mode two calls are required: a single one usually just
inspects a sample or computes an accuracy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from probe.base.clock import ANCHOR_NS
from probe.job.instruments.core.recorder import HELD_PHASES, Recorder
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER, NULL_STRING

_now = time.monotonic_ns
LONG_STEPS = 2
"""A stretch without a loader is an interval if it takes longer than this many times the previous step."""
WARM_UP_STEPS = 3
"""Steps needed before the usual duration of a step is known."""
MOST_PASSES = 64
"""Passes known to feed the training; one for each loader and epoch."""
EVALUATION, PREDICTION, CHECKPOINT = "evaluation", "prediction", "checkpoint"
INFERENCE, READING = "inference", "reading"
KINDS = (EVALUATION, PREDICTION, CHECKPOINT, INFERENCE, READING)
_BY = {
    "gradless": "no gradients, no backward",
    "train mode": "no gradients, no backward, in train mode",
    "train mode, again": "no gradients, no backward, in train mode, repeatedly on the same input",
    "eval mode": "eval mode, no backward",
    "no backward": "a pass without a backward",
    INFERENCE: "eval mode, no gradients, no loader",
    "inference in train mode": "no gradients, no loader, in train mode",
    "inference in train mode, again": "no gradients, no loader, in train mode, repeatedly on the same input",
    READING: "a pass without a model call",
}
"""`recognised_by` of intervals recognized by signs."""
WATCHED, STRETCH, OPEN, CALL, ENDED = range(5)
"""States of an interval: an undecided pass; an undecided stretch without a loader; decided by signs; begun by
a call; ended, but a backward may still withdraw it."""


class Interval:
    """An interval, or a candidate that may become one."""

    __slots__ = ("again", "batches", "before", "began_ns", "by", "calls", "data_ns", "eval_mode", "forward",
                 "gradless", "held_ns", "inner_ns", "kind", "loader", "micro_step", "number", "outer",
                 "own_ns", "passes", "sampled", "samples", "state", "step", "sure", "tokens", "train_mode",
                 "trained", "whole")

    def __init__(self, recorder: Recorder, state: int, now_ns: int) -> None:
        self.state = state
        self.began_ns = now_ns
        self.step, self.micro_step = recorder.step, recorder.micro_step
        self.before = _figures(recorder)
        self.held_ns = recorder.held_ns
        self.outer: Interval | None = recorder.interval
        self.passes: set[int] = set()
        """Ids of the loaders' iterators."""
        self.loader = NULL_STRING
        self.kind, self.by = "", NULL_STRING
        self.batches = 0
        self.calls = 0
        """Calls of a root module of the training without gradients, in a stretch."""
        self.samples = self.tokens = self.whole = NULL_INTEGER
        """Counts over the fetched batches; `whole`: samples in a whole pass over the (first) loader."""
        self.number = 0
        """Number of its row."""
        self.inner_ns = self.own_ns = self.data_ns = 0
        self.gradless = self.sure = self.forward = self.eval_mode = self.train_mode = False
        """Signs, each a module call: without gradients; the same, of a training root in eval mode; with
        gradients; with gradients in eval mode; without gradients, of a training root in train mode."""
        self.again = False
        """Whether a training root was called three times in a row on the same input, in train mode."""
        self.trained = self.sampled = False

    def listens(self, recorder: Recorder) -> bool:
        """Whether to watch for the next module call: a hook on every call costs time."""
        if self.state == WATCHED:
            return True
        return self.state in (STRETCH, ENDED) and (recorder.timing or recorder.begin_awaited)

    @property
    def proven(self) -> bool:
        """Whether the model's outputs in this pass cannot lead to gradients."""
        return self.gradless and not self.forward


class Intervals:
    """Tells intervals from training and writes their rows. One per process."""

    def __init__(self, recorder: Recorder, made_optimizer: Callable[[], bool]) -> None:
        self.recorder = recorder
        self._made_optimizer = made_optimizer
        ring = recorder.rings["python.intervals"]
        self._append, self._put = ring.append, ring.put
        intern = recorder.intern
        self._kinds = {kind: intern(kind) for kind in KINDS}
        self._texts = {key: intern(text) for key, text in _BY.items()}
        self._stretch_step = -LONG_STEPS
        self._states = {name: intern(name) for name in ("pending", "done", "failed", "withdrawn")}
        recorder.intervals = self

    # Calls recognized by name ----------------------------------------------------

    def enter(self, kind: str, by: int) -> Interval | None:
        """A call that evaluates or saves begins; `by`: string number of its name. None if it is nested: in
        another such call, in a phase of the step, or in work that holds the training thread."""
        recorder = self.recorder
        if recorder.elsewhere() or recorder.phase in _PARTS or not self._made_optimizer():
            return None
        one = recorder.interval
        if one is not None and one.state == ENDED:
            recorder.interval = one = None
        while one is not None:
            if one.state == CALL and (one.kind == kind or one.kind == CHECKPOINT):
                return None
            one = one.outer
        now = _now()
        if not recorder.step_start_ns:
            recorder.step_start_ns = now
        made = Interval(recorder, CALL, now)
        recorder.interval = made
        self._decide(made, kind, by)
        return made

    def leave(self, one: Interval, failed: bool) -> None:
        """The call ended."""
        recorder = self.recorder
        inner = recorder.interval
        while inner is not None and inner is not one:  # candidates watched inside it
            inner = inner.outer
        if inner is None:
            return
        now = _now()
        recorder.interval = one
        if one.trained:
            self._write(one, "withdrawn")
            self._pop(one, now)
            return
        self._end(one, now, "failed" if failed else "done")
        self._pop(one, now)

    # Signs ----------------------------------------------------------------------

    def pass_begins(self, iterator: Any, now_ns: int) -> None:
        """A loader makes an iterator: a pass over it begins."""
        recorder = self.recorder
        recorder.trained.discard(id(iterator))
        one = recorder.interval
        if one is not None:
            if one.state == OPEN:
                self._end(one, now_ns, "done")
            elif one.state == STRETCH:
                self._stretch_ends(one, now_ns)
        one = recorder.interval
        if (one is None or one.state == ENDED) and self._made_optimizer():
            recorder.interval = None
            recorder.interval = Interval(recorder, WATCHED, now_ns)

    def fetch(self, iterator: Any, loader: int, now_ns: int) -> None:
        """A batch is fetched by a pass that is not known to feed the training, or while `interval` is set."""
        recorder = self.recorder
        if not self._made_optimizer():
            return
        one, key = recorder.interval, id(iterator)
        if one is not None and one.state == CALL:
            one.loader = one.loader or loader
            return
        if one is not None and key not in one.passes:
            self._other_fetches(one, key, now_ns)
            one = recorder.interval
        if one is None or one.state == ENDED:
            if key in recorder.trained:
                recorder.interval = None
                return
            recorder.interval = None
            recorder.interval = one = Interval(recorder, WATCHED, now_ns)
        if key in one.passes:
            if one.state == WATCHED and (one.proven or one.eval_mode):
                self._decide(one, EVALUATION, self._sign(one))
        elif key not in recorder.trained:
            one.passes.add(key)
            one.loader = one.loader or loader

    def _other_fetches(self, one: Interval, key: int, now_ns: int) -> None:
        """A pass that does not belong to `one` continues or begins."""
        if one.state == STRETCH:
            self._stretch_ends(one, now_ns)
        elif one.state == OPEN:
            self._end(one, now_ns, "done")
        elif one.state == WATCHED and one.sure and one.proven:  # one batch, such as `next(iter(loader))`
            self._decide(one, EVALUATION, self._sign(one))
            self._end(one, now_ns, "done")

    def batch(self, samples: int, tokens: int) -> None:
        """A batch arrived while `interval` is set."""
        one = self.recorder.interval
        if one is not None and one.state != ENDED:
            one.batches += 1
            if samples != NULL_INTEGER:
                one.samples = samples if one.samples == NULL_INTEGER else one.samples + samples
            if tokens != NULL_INTEGER:
                one.tokens = tokens if one.tokens == NULL_INTEGER else one.tokens + tokens

    def exhausted(self, iterator: Any, now_ns: int) -> None:
        """A pass ended while `interval` is set."""
        one = self.recorder.interval
        if one is None or id(iterator) not in one.passes:
            return
        if one.state == WATCHED:
            if not one.batches:
                self.recorder.interval = one.outer
                return
            # In a job that compiles, calls of modules that are not compiled are not seen.
            if one.gradless or one.forward:
                self._decide(one, EVALUATION, self._sign(one))
            else:
                self._decide(one, READING, self._texts[READING])
        if one.state == OPEN:
            self._end(one, now_ns, "done")

    def gradless(self, *, root: bool, training: bool, again: bool, now_ns: int) -> None:
        """An outermost module call without gradients. `root`: the training has called this module too;
        `training`: the module's flag; `again`: at least the third call in a row on one input."""
        recorder = self.recorder
        one = recorder.interval
        sure = root and not training
        if one is not None and one.state == WATCHED and one.passes:
            one.gradless = True
            one.sure = one.sure or sure
            one.train_mode = one.train_mode or (root and training)
            one.again = one.again or (root and again)
            return
        if not root or recorder.forward_start_ns:
            return
        if one is None or one.state == ENDED:
            recorder.interval = None
            recorder.interval = one = Interval(recorder, STRETCH, now_ns)
        if one.state == STRETCH:
            one.calls += 1
            one.sure = one.sure or sure
            one.again = one.again or again

    def forwards(self, *, training: bool, now_ns: int) -> None:
        """An outermost module call with gradients while `interval` is set."""
        one = self.recorder.interval
        if one is None:
            return
        if one.state == STRETCH:
            self._stretch_ends(one, now_ns)
        elif one.state == WATCHED:
            one.forward = True
            one.eval_mode = one.eval_mode or not training
        elif training and (one.proven or one.eval_mode):
            if one.state == OPEN:
                self._end(one, now_ns, "done")
            if one.state == ENDED:
                self.recorder.interval = None

    def trains(self, now_ns: int) -> None:
        """Backward or an optimizer step begins, or a step ends, while `interval` is set."""
        recorder = self.recorder
        one = recorder.interval
        if one is None:
            return
        if one.state == CALL:
            one.trained = one.kind != CHECKPOINT
            return
        if one.state == STRETCH:
            self._stretch_ends(one, now_ns)
            return
        if one.state == WATCHED:
            self._feed(one.passes)
        elif one.proven:
            if one.state == OPEN:
                self._end(one, now_ns, "done")
        else:
            self._withdraw(one, now_ns)
        recorder.interval = one.outer

    # Decisions ------------------------------------------------------------------

    def _feed(self, passes: set[int]) -> None:
        """These passes feed the training."""
        trained = self.recorder.trained
        if len(trained) > MOST_PASSES:
            trained.clear()  # each is recognized again at its next batch
        trained.update(passes)

    def _sign(self, one: Interval) -> int:
        if one.proven:
            key = "train mode" if one.train_mode and not one.sure else "gradless"
        else:
            key = "eval mode" if one.eval_mode else "no backward"
        return self._texts[key]

    def _decide(self, one: Interval, kind: str, by: int) -> None:
        """Make the candidate an interval and write its row, as pending."""
        recorder = self.recorder
        if one.state == WATCHED:
            one.state = OPEN
        one.kind, one.by = kind, by
        one.number = self._append(*self._fields(one, "pending"))
        if recorder.sampling:
            recorder.sampling, one.sampled = False, True
            recorder.stop_sampling()
        recorder.expect_forward()

    def _end(self, one: Interval, now_ns: int, state: str) -> None:
        """Remove its time from the current step, and complete its row."""
        recorder = self.recorder
        held_ns = recorder.held_ns - one.held_ns if recorder.step == one.step else 0
        one.own_ns = max(0, now_ns - one.began_ns - one.inner_ns - held_ns)
        if recorder.step == one.step:
            one.data_ns = recorder.data_ns - one.before[0]
            _put_back(recorder, one.before, now_ns - one.began_ns)
            self._count(one, one.own_ns)
        if one.again and one.by == self._texts["train mode"]:
            one.by = self._texts["train mode, again"]
        self._write(one, state)
        if one.state == OPEN:
            one.state = ENDED
        recorder.phase = "forward" if recorder.forward_start_ns else "other"
        if one.sampled and not recorder.micro_step and recorder.start_sampling is not None:
            recorder.sampling = recorder.start_sampling()
        recorder.expect_forward()

    def _pop(self, one: Interval, now_ns: int) -> None:
        recorder = self.recorder
        recorder.interval = one.outer
        if one.outer is not None:
            one.outer.inner_ns += now_ns - one.began_ns
        recorder.expect_forward()

    def _count(self, one: Interval, own_ns: int) -> None:
        if one.kind == CHECKPOINT:
            self.recorder.checkpoint_ns += own_ns
        else:
            self.recorder.eval_ns += own_ns

    def _withdraw(self, one: Interval, now_ns: int) -> None:
        """A backward followed after all: the pass feeds the training."""
        recorder = self.recorder
        self._feed(one.passes)
        if one.state == ENDED and recorder.step == one.step:
            self._count(one, -one.own_ns)
            recorder.data_ns += one.data_ns
            recorder.saw_data = True
            recorder.samples = _sum(recorder.samples, one.samples)
            recorder.tokens = _sum(recorder.tokens, one.tokens)
            if recorder.loader == NULL_STRING:
                recorder.loader = one.loader
        self._write(one, "withdrawn")
        if one.sampled and not recorder.micro_step and recorder.start_sampling is not None:
            recorder.sampling = recorder.start_sampling()

    def _stretch_ends(self, one: Interval, now_ns: int) -> None:
        """The training continues: record the stretch if it was longer than what every step does."""
        recorder = self.recorder
        recorder.interval = one.outer
        took = now_ns - one.began_ns - one.inner_ns
        of_each_step, self._stretch_step = one.step - self._stretch_step < 2, one.step
        before = recorder.past.costs(recorder.step, WARM_UP_STEPS)
        if of_each_step or recorder.step != one.step or len(before) < WARM_UP_STEPS:
            return
        if took > LONG_STEPS * before[-1].wall_ns and (one.sure or one.calls > 1):
            key = INFERENCE if one.sure else "inference in train mode"
            if key != INFERENCE and one.again:
                key += ", again"
            one.kind, one.by = INFERENCE, self._texts[key]
            self._end(one, now_ns, "done")

    def _write(self, one: Interval, state: str) -> None:
        fields = self._fields(one, state)
        if one.number:
            self._put(one.number, *fields)
        else:
            one.number = self._append(*fields)

    def _fields(self, one: Interval, state: str) -> list[int | float]:
        over = state != "pending"
        return [
            one.step, one.micro_step, one.began_ns + ANCHOR_NS, self._kinds[one.kind],
            one.own_ns / 1e9 if over else NULL_DOUBLE,
            one.data_ns / 1e9 if over and one.loader != NULL_STRING else NULL_DOUBLE,
            one.batches if over and one.loader != NULL_STRING else NULL_INTEGER,
            one.samples if over else NULL_INTEGER,
            one.loader, one.by, self._states[state], one.whole if over else NULL_INTEGER,
        ]


def _figures(recorder: Recorder) -> tuple[Any, ...]:
    """The step's figures so far, for `_put_back`."""
    return (
        recorder.data_ns, recorder.forward_ns, recorder.backward_ns, recorder.comm_ns, recorder.saw_data,
        recorder.saw_forward, recorder.saw_comm, recorder.loader, recorder.forward_start_ns,
        recorder.training_mode, recorder.samples, recorder.tokens,
    )


def _put_back(recorder: Recorder, figures: tuple[Any, ...], took_ns: int) -> None:
    """Restore the step's figures from before an interval that took `took_ns`."""
    (
        recorder.data_ns, recorder.forward_ns, recorder.backward_ns, recorder.comm_ns, recorder.saw_data,
        recorder.saw_forward, recorder.saw_comm, recorder.loader, start_ns,
        recorder.training_mode, recorder.samples, recorder.tokens,
    ) = figures
    recorder.forward_start_ns = start_ns + took_ns if start_ns else 0


_PARTS = ("data", "backward", "optimizer", *HELD_PHASES)
"""Phases in which a call recognized by name is part of the phase, not an interval."""


def _sum(count: int, more: int) -> int:
    """Sum of two counts, either of which may be unknown."""
    if more == NULL_INTEGER:
        return count
    return more if count == NULL_INTEGER else count + more
