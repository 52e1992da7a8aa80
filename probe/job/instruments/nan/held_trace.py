"""Held trace: traces a NaN on the training thread, before the optimizer's step; the step is already lost.

Used if forking is impossible (`forked_probe.refusal`), above all on a device. The thread is held for at most
`TIMES` steps' duration, and the job's state is unchanged afterwards: random states, buffers and attributes of
modules are restored. An operation that would write to another tensor of the job, call a collective, or exceed
the time limit raises instead (`Restraint`). On a thread of the autograd engine nothing raises: there such a
write is skipped, and a backward that might call a collective is not started. Only here does the training wait
for its device, and only if the step is lost. Uses the job's torch, inside functions.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from probe.base.isolation import Isolation, capture
from probe.checkpoint.random_states import random_states, restore_random_states
from probe.job.instruments.core.object_access import unwrapped
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.core.tensor_summaries import tensors_in, torch_module
from probe.job.instruments.nan import nan_trace
from probe.job.instruments.nan.replay import storage

TIMES = 3.0
"""The thread is held for at most this many steps' duration …"""
SHORTEST_S = 2.0
"""… or for this long if that is longer: a step of a millisecond is too short for any trace."""
STARVED = 5.0
"""Both limits are CPU time of the thread, which includes waiting for a device. The limit of wall time is this
many times as long, for an overloaded machine."""
PARALLEL = "DistributedDataParallel"
_COLLECTIVES = ("c10d", "_c10d_functional", "c10d_functional", "_dtensor", "symm_mem")
"""Namespaces of operations in which other ranks take part."""
_FRESH = ("aten::lift_fresh", "aten::lift_fresh_copy")
"""Operations whose output is new, though it shares the memory of their input."""
_CONTAINERS = (dict, list, set, OrderedDict, deque)
_ABSENT = object()


def not_ours(error: BaseException) -> bool:
    """Whether an error is one that a model's code never raises, such as Ctrl-C."""
    return not isinstance(error, Exception)


def refusal(call: Any, recorder: Recorder, ranks: int) -> str:
    """Why the training thread must not repeat this call; empty if it may."""
    if not recorder.alone:
        return "several threads train"
    why = nan_trace.replay_refusal(call)
    if not why and type(call.module).__name__ == "DataParallel":
        why = "several threads run the model"
    if not why and any(hasattr(one, "main_grad") for one in call.module.parameters()):
        why = "its backward adds to gradients of the job's own (`main_grad`)"
    if not why and ranks > 1 and PARALLEL not in {kind.__name__ for kind in type(call.module).__mro__}:
        why = "the ranks share the model in a way that may need all of them to repeat its forward"
    return why


def trace(
    scene: nan_trace.Scene, isolation: Isolation, limit_s: float, *, alone: bool = True
) -> dict[str, Any]:
    """Trace; returns the findings by name. `alone`: the job has no other ranks. Raises only an error from a
    signal handler, after restoring everything."""
    found: dict[str, Any] = {}
    errors: list[BaseException] = []
    of_signal = scene.passes

    def passes(error: BaseException) -> bool:
        mine = of_signal(error)
        if mine:
            errors.append(error)
        return mine

    isolation.mute()
    try:
        module = unwrapped(scene.call.module) if scene.call is not None else None
        with _kept_states(module, alone=alone) as restraint:
            restraint.begin(limit_s)
            held = scene._replace(passes=passes, restraint=restraint)
            _, error = capture(lambda: nan_trace.trace_held(held, found.__setitem__))
    finally:
        isolation.unmute()
    if error is not None and error not in errors:
        raise error
    if errors:
        isolation.let_through(errors[0])
    found["whole"] = True
    return found


@contextmanager
def _kept_states(root: Any, *, alone: bool) -> Iterator[Restraint]:
    """Restore at the end of the block the state that a forward of this model changes."""
    states = random_states()
    modules = ModuleStates(root) if root is not None else None
    back = [lambda: restore_random_states(states), *([modules.restore] if modules is not None else [])]
    try:
        yield Restraint(modules.buffers if modules is not None else [], alone=alone)
    finally:
        errors = [error for action in back if (error := _insist(action)) is not None]
        if errors:
            raise errors[0]


def _insist(action: Callable[[], object]) -> BaseException | None:
    """Run an action, again if an error such as a signal handler's interrupts it; returns that error."""
    error = capture(action)[1]
    if error is not None:
        capture(action)
    return error


class ModuleStates:
    """A snapshot of the attributes and buffers of a model's modules."""

    def __init__(self, root: Any) -> None:
        torch = torch_module()
        self._attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._contents: list[tuple[Any, Any]] = []
        for module in root.modules():
            attributes = vars(module)
            self._attributes.append((attributes, dict(attributes)))
            for value in attributes.values():
                if type(value) in _CONTAINERS:
                    self._contents.append((value, value.copy()))
        self.buffers = [one for one in root.buffers() if isinstance(one, torch.Tensor)]
        self._values = [one.detach().clone() for one in self.buffers]

    def restore(self) -> None:
        """Restore everything that has changed."""
        torch = torch_module()
        for attributes, before in self._attributes:
            for name in [name for name in attributes if name not in before]:
                del attributes[name]
            for name, value in before.items():
                if attributes.get(name, _ABSENT) is not value:
                    attributes[name] = value
        for container, before in self._contents:
            if not _same(container, before):
                container.clear()
                (container.extend if isinstance(container, (list, deque)) else container.update)(before)
        for buffer, value in zip(self.buffers, self._values, strict=True):
            if not torch.equal(buffer, value):
                buffer.data.copy_(value)  # keeps the version: graphs of the job check it


def _same(container: Any, before: Any) -> bool:
    """Whether a container holds the same objects in the same order."""
    if isinstance(container, set):
        return bool(container == before)
    now, then = (
        [part for item in one.items() for part in item] if isinstance(one, dict) else list(one)
        for one in (container, before)
    )
    return len(now) == len(then) and all(one is other for one, other in zip(now, then, strict=True))


class Restraint:
    """Raises if a repeated call would do something that cannot be undone, or takes too long."""

    def __init__(self, buffers: list[Any], *, alone: bool = True) -> None:
        self._thread = threading.get_ident()
        self._alone = alone
        self._cpu_until_s = self._until_s = float("inf")
        self.resting = False
        """True while our own code runs, which is not restrained."""
        self._spare = {storage(one) for one in buffers}
        self._made: set[int] = set()
        self._written: dict[Any, tuple[tuple[int, str], ...]] = {}
        self.stopped = ""
        """Why an operation was refused; empty until then."""

    def begin(self, limit_s: float) -> None:
        """Start the time limit."""
        self._cpu_until_s = time.thread_time() + limit_s
        self._until_s = time.monotonic() + STARVED * limit_s

    def made(self, value: Any) -> None:
        """Register tensors that do not belong to the job, and may be written to."""
        self._made.update(storage(tensor) for _, tensor in tensors_in(value))

    def over(self) -> bool:
        """Whether the time limit has passed; if so, the findings are incomplete."""
        here = threading.get_ident() == self._thread
        if time.monotonic() <= self._until_s and not (here and time.thread_time() > self._cpu_until_s):
            return False
        self.stopped = self.stopped or "it took too long"
        return True

    def allow_backward(self, nodes: Iterable[Any]) -> None:
        """Raise if a backward through these nodes might call a collective, or if time is up."""
        if self.over():
            self._refuse(self.stopped)
        own = [type(node).__name__ for node in nodes if hasattr(type(node), "_forward_cls")]
        if own and not self._alone:
            self._refuse(f"the ranks might meet in {own[0]}, a function of the job's own")

    def before(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Check an operation about to run. If its write is to be skipped, returns the tensor that it would
        have written to; else None."""
        here = threading.get_ident() == self._thread
        if here and self.over():
            self._refuse(self.stopped)
        schema = func._schema
        if here and schema.name.partition("::")[0] in _COLLECTIVES:
            self._refuse("a repeated forward calls no collectives")
        written = self._written.get(func)
        if written is None:
            written = self._written[func] = tuple(
                (place, one.name) for place, one in enumerate(schema.arguments)
                if one.alias_info is not None and one.alias_info.is_write
            )
        for place, name in written:
            given = args[place] if place < len(args) else kwargs.get(name)
            for _, tensor in tensors_in(given):
                key = storage(tensor)
                if not key or key in self._made or key in self._spare:
                    continue
                if not here:
                    return tensor
                self._refuse(f"`{schema.name}` writes to a tensor of the job's")
        return None

    def after(self, func: Any, output: Any) -> None:
        """The operation has run: register its new tensors."""
        schema = func._schema
        if schema.name in _FRESH or all(one.alias_info is None for one in schema.returns):
            self.made(output)

    def _refuse(self, why: str) -> None:
        self.stopped = self.stopped or why
        raise RuntimeError(self.stopped)
