"""Steps of a loop that updates its parameters by hand, without an optimizer of torch.

Such a loop is known by what an update leaves behind: after a backward a parameter has changed, or gradients
were cleared. That is looked for where the next step may begin: at a batch, at `Module.zero_grad`, at the
first module call, and at the latest at the next backward. HOT PATH: called at these edges on the training
thread, until the job makes an optimizer. Ends steps of python.steps through the recorder. torch is the job's
own.
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
"""Elements of the parameter compared: an update through `.data` changes no version. On the CPU only."""


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
        """What `_state` was when the last backward ended."""
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
        """Before the recorder knows. False if this is no longer needed: another way of counting steps won."""
        if self._over():
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
        """The loop asks for a batch."""
        if not self._over() and self._updated():
            self._end(now_ns)

    def forward_begins(self, now_ns: int) -> bool:
        """The first module call of a micro step; whether a step ended here."""
        recorder = self.recorder
        if recorder.sampling or self._over() or not self._updated():
            return False  # sampling ends outside of module calls, whose hooks it removes
        recorder.next_sample = max(recorder.next_sample, recorder.step + 2)  # nor does it begin inside
        self._end(now_ns)
        return True

    def _cleared(self, module: Any) -> None:
        """Before `module.zero_grad()`: after a backward, that is where the next step begins."""
        recorder = self.recorder
        if self._over() or not recorder.micro_step or recorder.elsewhere():
            return
        watched = self._watched() if self._watched is not None else None
        if watched is not None and any(one is watched for one in module.parameters()):
            self._end(_now())

    def _over(self) -> bool:
        """Whether steps are counted otherwise; not before the last update by hand has ended its step."""
        return self.recorder.explicit or (self._made_optimizer() and not self._before)

    def _updated(self) -> bool:
        return bool(self.recorder.micro_step and self._before) and self._state() != self._before

    def _state(self) -> tuple[Any, ...]:
        """What an update of the watched parameter changes; nothing if it may not be touched."""
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
    """Whether reading some elements neither waits for a device or other ranks nor runs code of a subclass."""
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
