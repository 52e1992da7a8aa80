"""Random states: detects random states that the training repeats, and random draws in an evaluation.

Writes python.random_states. Wrappers see `torch.manual_seed`, `random.seed` and `numpy.random.seed`; they do
nothing before the first step. On the training thread after a seeding, at the next step of an optimizer: a
checksum of that generator's state, a few microseconds. If the state was restored after an evaluation, it
differs from earlier ones; the state of a step returns only if the training itself was seeded again.

From time to time, on the training thread in an evaluation: the state of torch's generator at each module call
inside the model, for one call of the model. A wrapper of `Module.eval` detects that an evaluation begins,
because forwards are not watched on every step. torch inside functions.
"""

from __future__ import annotations

import random
import sys
import time
import zlib
from typing import Any

from probe.base.clock import wall_ns
from probe.base.isolation import Isolation
from probe.job.instruments.core.object_access import attributes, entries
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.forward import Forward
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.instruments.modules.module_names import ModuleNames
from probe.job.instruments.modules.recomputed_masks import checksum
from probe.job.instruments.tensors.activations import transformed
from probe.recording.layout import NULL_BOOLEAN, NULL_INTEGER, NULL_STRING

EARLY_ROWS, SPACED_STEPS = 32, 64
"""Number of first seedings that are all recorded; minimum steps between later ones."""
AGAIN_S, LATER_S, MOST_LOOKS = 5.0, 60.0, 20
"""Minimum seconds between two inspected evaluations; after a false start; maximum number inspected."""
MOST_MODULES = 4096
MOST_CALLS = 48
SEEDED, EVALUATION = "seeded", "evaluation"


class RandomStates:
    """Watches the generators."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, optimizers: Optimizers, forward: Forward,
        names: ModuleNames,
    ) -> None:
        self._recorder, self._isolation = recorder, isolation
        self._optimizers, self._forward, self._names = optimizers, forward, names
        self._append = recorder.rings["python.random_states"].append
        self._words = {one: recorder.intern(one) for one in (SEEDED, EVALUATION, "torch", "random", "numpy")}
        self._patches = Patches()
        self._pending: dict[str, tuple[int, int, int]] = {}
        """Per generator: the seed, the call site, and the checksum of the state right after."""
        self._calls: dict[str, int] = {}
        self._rows = self._next_step = 0
        self._before = self._seen = self._step = 0
        self._last: Any = None
        self._inside: set[int] = set()
        self._inspections = 0
        self._next_s = 0.0

    def install(self) -> None:
        """Wrap the functions that seed; off the hot path."""
        torch = sys.modules["torch"]
        shared = torch.manual_seed is torch.random.manual_seed
        self._watch(torch.random, "manual_seed", "torch")
        if shared:  # keep one function under both names: pickle looks it up by one of them
            self._patches.wrap(torch, "manual_seed", lambda _: torch.random.manual_seed, traced=True)
        else:
            self._watch(torch, "manual_seed", "torch")
        self._watch(random, "seed", "random")
        if "numpy.random" in sys.modules:
            self._watch(sys.modules["numpy.random"], "seed", "numpy")
        self._watch_eval(torch.nn.Module)
        self.step_begins = self._isolation.guard("random states", self._step_begins)
        self._guarded_inspect = self._isolation.guard("random states", self._inspect)

    def uninstall(self) -> None:
        """Put the originals back."""
        self._patches.undo()
        self._optimizers.seeded = self._forward.draws = None
        self._last = None

    def _watch(self, owner: Any, name: str, generator: str) -> None:
        note = self._isolation.guard("random states", self._seeded)
        live, recorder = self._patches.live, self._recorder
        tracing = sys.modules["torch"].compiler.is_compiling

        def make(original: Any) -> Any:
            def seed(*args: Any, **kwargs: Any) -> Any:
                result = original(*args, **kwargs)
                if not tracing() and live[0] and recorder.step > 0:
                    caller = sys._getframe(1)
                    note(generator, args[0] if args else None, caller.f_code.co_filename, caller.f_lineno)
                return result

            return seed

        self._patches.wrap(owner, name, make, traced=True)

    def _watch_eval(self, owner: Any) -> None:
        begins = self._isolation.guard("random states", self._eval_begins)
        live, forward, tracing = self._patches.live, self._forward, sys.modules["torch"].compiler.is_compiling

        def make(original: Any) -> Any:
            def eval(module: Any) -> Any:
                if not tracing() and forward.draws is not None and live[0]:
                    begins()
                return original(module)

            return eval

        self._patches.wrap(owner, "eval", make, traced=True)

    # On the training thread -----------------------------------------------------

    def _eval_begins(self) -> None:
        """A module is put into eval mode while the next evaluation is to be inspected."""
        recorder = self._recorder
        if not recorder.sampling and not recorder.elsewhere():
            self._forward.arm()

    def _seeded(self, generator: str, seed: Any, file: str, line: int) -> None:
        recorder = self._recorder
        self._calls[generator] = self._calls.get(generator, 0) + 1
        if recorder.elsewhere() or recorder.step < self._next_step:
            return
        state = _state(generator)
        if state is None:
            return
        number = seed if type(seed) is int and abs(seed) < 1 << 62 else NULL_INTEGER
        self._pending[generator] = (number, recorder.intern(f"{file.rpartition('/')[2]}:{line}"), state)
        self._optimizers.seeded = self

    def _step_begins(self) -> None:
        """The first step of an optimizer after a seeding: write the state of each seeded generator."""
        recorder = self._recorder
        begun = time.monotonic_ns()
        self._optimizers.seeded = None
        pending, self._pending = self._pending, {}
        for generator, (seed, where, before) in pending.items():
            state = _state(generator)
            if state is not None:
                self._put(SEEDED, generator, seed, where, self._calls[generator], state, state != before)
        self._next_step = recorder.step + (1 if self._rows < EARLY_ROWS else SPACED_STEPS)
        recorder.cost_ns += time.monotonic_ns() - begun

    def _inspect(self, module: Any) -> None:
        """Inspect a module call without gradients, for the first calls of an evaluation."""
        recorder, held = self._recorder, module.__dict__
        if recorder.elsewhere():
            return
        if id(module) in self._forward.roots or self._last is None:
            if self._last is not None:  # a whole call of the model was seen
                self._finish(drawn=False, between="", dropout=False)
            elif id(module) in self._forward.roots and held.get("training") is False:
                self._begin(module)
            else:
                self._seen += 1
                if self._seen > MOST_CALLS:  # rollouts in training mode, or another model
                    self._pause(LATER_S)
            return
        fresh = type(module).__name__.startswith("Dropout")  # may have been constructed inside forward
        if recorder.step != self._step or (id(module) not in self._inside and not fresh):
            self._pause(AGAIN_S)
            return
        state = _state("torch")
        kind = type(module).__name__
        self._seen += 1
        if kind.startswith("Dropout") and held.get("training") is True and held.get("p", 0) > 0:
            self._finish(drawn=True, between=kind, dropout=True)
        elif state != self._before:
            between = f"{self._name(self._last)} and {self._name(module)}"
            self._finish(drawn=True, between=between, dropout=False)
        elif self._seen >= MOST_CALLS:
            self._finish(drawn=False, between="", dropout=False)
        else:
            self._last = module

    def _begin(self, model: Any) -> None:
        """A call of a model in eval mode begins."""
        state = _state("torch")
        if state is None:
            self._pause(AGAIN_S)
            return
        self._inside = _modules_of(model)
        self._before, self._step, self._seen, self._last = state, self._recorder.step, 0, model

    def _pause(self, pause_s: float) -> None:
        """Stop inspecting for a while; if forwards are not watched, remove the hook."""
        recorder = self._recorder
        self._forward.draws = self._last = None
        self._seen = 0
        self._next_s = time.monotonic() + pause_s
        if not (recorder.timing or recorder.begin_awaited or recorder.interval is not None):
            self._forward.disarm()

    def _name(self, module: Any) -> str:
        if id(module) in self._forward.roots:
            return "the input"
        return self._names.path(module) or type(module).__name__

    def _finish(self, *, drawn: bool, between: str, dropout: bool) -> None:
        self._pause(AGAIN_S)
        self._inspections += 1
        where = self._recorder.intern(between) if between else NULL_STRING
        self._put(EVALUATION, "torch", NULL_INTEGER, where, NULL_INTEGER, NULL_INTEGER, drawn, int(dropout))

    def _put(
        self, reason: str, generator: str, seed: int, where: int, calls: int, state: int, drawn: bool,
        dropout: int = NULL_BOOLEAN,
    ) -> None:
        self._rows += 1
        recorder = self._recorder
        self._append(
            recorder.step, wall_ns(), self._words[reason], self._words[generator], seed, where, calls, state,
            self._optimizers.made_count, drawn, dropout,
        )

    # The agent's thread -----------------------------------------------------

    def collect(self) -> None:
        """Arrange for the next evaluation to be inspected, if due."""
        due = self._inspections < MOST_LOOKS and time.monotonic() >= self._next_s
        if due and self._recorder.step > 0 and self._forward.draws is None and self._last is None:
            self._forward.draws = self._guarded_inspect


def _state(generator: str) -> int | None:
    """A checksum of a generator's state; None if it cannot be read now."""
    if generator == "torch":
        torch: Any = sys.modules["torch"]
        if transformed(torch):
            return None
        return checksum(torch.get_rng_state())
    if generator == "random":
        return hash(random.getstate()[1])
    found = sys.modules["numpy.random"].get_state(legacy=False).get("state", {})
    if "key" not in found or "pos" not in found:  # the usual generator was replaced
        return None
    return zlib.crc32(memoryview(found["key"])) ^ int(found["pos"])


def _modules_of(model: Any) -> set[int]:
    """Ids of the modules inside a model; a dropout that is constructed inside forward is not one."""
    found: set[int] = set()
    waiting = [model]
    while waiting and len(found) < MOST_MODULES:
        one = waiting.pop()
        if one is not None and id(one) not in found:
            found.add(id(one))
            waiting += [child for _, child in entries(attributes(one).get("_modules"))]
    return found
