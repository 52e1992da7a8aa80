"""Manual updates: counts the steps of a loop that updates its parameters without a torch optimizer.

Such a loop is recognized by the traces of an update: after a backward, a parameter has changed or gradients
were cleared. This is checked where the next step may begin: at a batch, at `Module.zero_grad`, at the first
module call, and at the latest at the next backward. HOT PATH: called at these points on the training thread,
until the job makes an optimizer. Ends steps of python.steps through the recorder. Uses the job's torch.
"""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

from probe.base.isolation import Isolation
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE

_now = time.monotonic_ns
MOST_NODES = 4096
"""Nodes of the loss graph searched for parameters; once, at the first backward."""
SAMPLE_ELEMENTS = 16
"""Elements of the parameter compared, on the CPU only: an update through `.data` changes no version."""


class ManualUpdates:
    """Ends steps where a parameter was updated by hand. `made_optimizer()`: whether the job ever made one."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, made_optimizer: Callable[[], bool]
    ) -> None:
        self.recorder = recorder
        self._made_optimizer = made_optimizer
        self._watched: weakref.ref[Any] | None = None
        """The largest parameter that the loss depends on."""
        self._before: tuple[Any, ...] = ()
        """Result of `_state` when the last backward ended."""
        self._patches = Patches()
        self._isolation = isolation

    def install(self) -> None:
        """Wrap `Module.zero_grad`; off the hot path."""
        import torch

        cleared = self._isolation.guard("updates", self._cleared)
        live, tracing = self._patches.live, torch.compiler.is_compiling

        def wrap_zero_grad(original: Any) -> Any:
            def zero_grad(module: Any, *args: Any, **kwargs: Any) -> Any:
                if not tracing() and live[0]:
                    cleared(module)
                return original(module, *args, **kwargs)

            return zero_grad

        self._patches.wrap(torch.nn.Module, "zero_grad", wrap_zero_grad, traced=True)

    def uninstall(self) -> None:
        """Put the original back."""
        self._patches.undo()

    # HOT PATH ---------------------------------------------------------------

    def backward_begins(self, root: Any) -> bool:
        """A backward begins; called before the recorder's method. False if steps are now counted another
        way, so that this object is no longer needed."""
        if self._is_superseded():
            return False
        if self._watched is None or self._watched() is None:
            self._watched = _largest_leaf(root)
        if self._updated():
            self._end(_now(), "backward")
        return True

    def backward_ends(self) -> None:
        """Remember the parameter as backward left it."""
        self._before = () if self._made_optimizer() else self._state()

    def data_begins(self, now_ns: int) -> None:
        """The loop fetches a batch."""
        if not self._is_superseded() and self._updated():
            self._end(now_ns)

    def forward_begins(self, now_ns: int) -> bool:
        """The first module call of a micro step; whether a step ended here."""
        recorder = self.recorder
        if recorder.sampling or self._is_superseded() or not self._updated():
            return False  # sampling ends outside of module calls, whose hooks it removes
        recorder.next_sample = max(recorder.next_sample, recorder.step + 2)  # nor does it begin inside
        self._end(now_ns)
        return True

    def _cleared(self, module: Any) -> None:
        """Called before `module.zero_grad()`: after a backward, it begins the next step."""
        recorder = self.recorder
        if self._is_superseded() or not recorder.micro_step or recorder.elsewhere():
            return
        watched = self._watched() if self._watched is not None else None
        if watched is not None and any(one is watched for one in module.parameters()):
            self._end(_now())

    def _is_superseded(self) -> bool:
        """Whether steps are counted another way; False until the last manual update has ended its step."""
        return self.recorder.explicit or (self._made_optimizer() and not self._before)

    def _updated(self) -> bool:
        return bool(self.recorder.micro_step and self._before) and self._state() != self._before

    def _state(self) -> tuple[Any, ...]:
        """Version, gradient and some elements of the watched parameter; empty if it may not be read."""
        watched = self._watched() if self._watched is not None else None
        if watched is None or not self.recorder.owns_gradients():
            return ()
        gradient = watched.grad
        cleared = None if gradient is None else (id(gradient), gradient._version)
        some = watched.detach().view(-1)[:SAMPLE_ELEMENTS].tolist() if _is_plain(watched) else None
        return watched._version, cleared, some

    def _end(self, now_ns: int, boundary: str = "update") -> None:
        self._before = ()
        self.recorder.end_step(now_ns, boundary, NULL_DOUBLE, NULL_BOOLEAN)


def _is_plain(parameter: Any) -> bool:
    """Whether elements can be read without waiting for a device or other ranks or running subclass code."""
    torch = sys.modules["torch"]
    plain = type(parameter) in (torch.Tensor, torch.nn.Parameter) and parameter.is_cpu
    return bool(plain and parameter.is_contiguous() and not torch._C._len_torch_dispatch_stack())


def _largest_leaf(root: Any) -> weakref.ref[Any] | None:
    """The largest parameter among the nearest nodes of a loss graph."""
    first = getattr(root, "grad_fn", None)
    waiting, seen = [first] if first is not None else [], {first}
    best, most = None, -1
    while waiting and len(seen) <= MOST_NODES:
        node = waiting.pop()
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf.numel() > most:
            best, most = leaf, leaf.numel()
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return None if best is None else weakref.ref(best)
