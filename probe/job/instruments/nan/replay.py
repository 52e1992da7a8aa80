"""Replay: repeats a forward, or a backward from the model's output, and checks every operation.

Runs in a forked child (`forked_probe`), or on the training thread while it is held (`held_trace`), which
then restrains every operation. The forward runs under a dispatch mode that checks the output of every
operation: the *birth* is the operation that turned finite numbers into a NaN or an infinity; its module,
inputs and name are kept. Deliberate infinities (a mask filled with -inf, an infinite constant) are followed
but blamed only if they turn into NaN. The backward has a hook on each node of the graph. Uses the job's
torch, inside functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Protocol

from probe.base.isolation import capture, describe
from probe.job.instruments.core.tensor_summaries import (
    has_float_values,
    is_nonfinite,
    statistics,
    tensors_in,
    torch_module,
    which_nonfinite,
)

MOST_INPUTS = 4
_UNSET = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
"""Operations whose output is uninitialized memory."""
_MASKED = ("softmax", "attention", "logsumexp")
"""Operations whose input contains -inf on purpose; a row of only -inf gives NaN."""
_SAVED = "_saved_"


class Restrains(Protocol):
    """See `held_trace.Restraint`."""

    resting: bool
    stopped: str

    def before(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Raise if an operation must not run, or return a substitute for its result; else None."""

    def after(self, func: Any, output: Any) -> None:
        """The operation has run."""

    def over(self) -> bool:
        """Whether the time limit has passed."""

    def allow_backward(self, labels: Iterable[Any]) -> None:
        """Raise if a backward through these nodes may do harm."""


class Modules:
    """The stack of module calls; `path` names a module."""

    def __init__(self, path: Callable[[Any], str | None]) -> None:
        self.stack: list[tuple[Any, Any]] = []
        self._path = path
        self._handles: list[Any] = []
        self.left: Callable[[Any, Any], object] | None = None
        """Called with a module and its output when its call ends."""

    def watch(self) -> None:
        """Register hooks on all modules of this process."""
        nn = torch_module().nn.modules.module
        self._handles.append(nn.register_module_forward_pre_hook(self._enter))
        self._handles.append(nn.register_module_forward_hook(self._leave))

    def unwatch(self) -> None:
        """Remove the hooks."""
        while self._handles:
            self._handles.pop().remove()

    def _enter(self, module: Any, args: Any) -> None:
        self.stack.append((module, args))

    def _leave(self, module: Any, _args: Any, output: Any) -> None:
        while self.stack and self.stack.pop()[0] is not module:
            continue
        if self.left is not None:
            self.left(module, output)

    def name(self, module: Any) -> str:
        """Path of a module, else its class."""
        return self._path(module) or type(module).__name__

    def innermost(self) -> str | None:
        """Path of the module whose own code is running; None outside of modules."""
        return self.name(self.stack[-1][0]) if self.stack else None


class Forward:
    """A repeated forward. `births` fills as it runs."""

    def __init__(
        self, modules: Modules, sources: list[tuple[str, str, Any]], restraint: Restrains | None = None
    ) -> None:
        """`sources`: kind, name and tensor of each parameter, buffer and input."""
        self.modules = modules
        self.births: list[dict[str, Any]] = []
        self._of: dict[int, dict[str, Any]] = {}
        self._restraint = restraint
        bad = which_nonfinite([tensor for *_, tensor in sources])
        for kind, name, tensor in [one for one, is_bad in zip(sources, bad, strict=True) if is_bad]:
            if tensor.numel():
                self._of[storage(tensor)] = {
                    "source": kind,
                    "name": name,
                    "deliberate": kind in ("buffer", "input") and _only_infinite(tensor),
                    "kind": _kind(tensor),
                }

    def run(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Call the module, without gradients; returns its output."""
        with torch_module().no_grad(), watching(self._check_output, self._restraint):
            return module(*args, **kwargs)

    def birth_of(self, output: Any) -> dict[str, Any] | None:
        """The birth behind the first bad tensor of an output; None if all are finite."""
        for _, tensor in tensors_in(output):
            if is_nonfinite(tensor):
                found = self._of.get(storage(tensor))
                return found or {"source": "unknown", "kind": _kind(tensor), "deliberate": False}
        return None

    def _check_output(self, func: Any, args: Any, kwargs: Any, output: Any) -> None:
        operation = func._schema.name.removeprefix("aten::")
        if operation in _UNSET:
            return
        for _, tensor in tensors_in(output, depth=2):
            if is_nonfinite(tensor):
                self._of[storage(tensor)] = self._birth(operation, args, kwargs, tensor)
            elif _covers(tensor):
                self._of.pop(storage(tensor), None)

    def _birth(self, operation: str, args: Any, kwargs: Any, output: Any) -> dict[str, Any]:
        given = [tensor for _, tensor in tensors_in([args, kwargs])]
        before = [
            self._of[storage(one)]
            for one in given
            if storage(one) in self._of and (is_nonfinite(one) or storage(one) == storage(output))
        ]
        own = next((one for one in before if not one["deliberate"]), None)
        if own is not None:
            return own
        kind = _kind(output)
        if before and (kind == "inf" or not any(part in operation for part in _MASKED)):
            return before[0]
        birth = {
            "source": "operation",
            "op": operation,
            "module": self.modules.innermost(),
            "kind": kind,
            "deliberate": not before and kind == "inf" and _is_deliberate(args, kwargs, given),
            "masked": bool(before),
            "output": statistics(output),
            "scalars": _scalars(args, kwargs),
            "inputs": [statistics(one) for one in given[:MOST_INPUTS]],
            "module_inputs": [statistics(one) for _, one in tensors_in(self.modules.stack[-1][1])][
                :MOST_INPUTS
            ]
            if self.modules.stack
            else [],
        }
        self.births.append(birth)
        return birth


def watching(check: Callable[[Any, Any, Any, Any], object] | None, restraint: Restrains | None) -> Any:
    """A dispatch mode that checks the result of every operation, and restrains operations."""
    from torch.utils import _python_dispatch

    mode: Any = _python_dispatch.TorchDispatchMode

    def dispatch(_mode: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        restrained = restraint is not None and not restraint.resting
        if restraint is not None and restrained:
            instead = restraint.before(func, args, kwargs)
            if instead is not None:
                return instead
        output = func(*args, **kwargs)
        if restraint is not None and restrained:
            restraint.after(func, output)
        if check is not None:
            check(func, args, kwargs, output)
        return output

    return type("Watch", (mode,), {"__torch_dispatch__": dispatch})()


def storage(tensor: Any) -> int:
    """Address of a tensor's storage: the same for all views of it."""
    torch = torch_module()
    return int(tensor.untyped_storage().data_ptr()) if tensor.layout is torch.strided else id(tensor)


def _covers(tensor: Any) -> bool:
    """Whether a tensor covers its whole storage, so that no bad value is left there."""
    if not has_float_values(tensor):
        return False
    return bool(tensor.untyped_storage().nbytes() <= tensor.numel() * tensor.element_size())


def _kind(tensor: Any) -> str:
    return "nan" if bool(torch_module().isnan(tensor).any()) else "inf"


def _only_infinite(tensor: Any) -> bool:
    return _kind(tensor) == "inf"


def _scalars(args: Any, kwargs: Any) -> list[float]:
    """Numbers among the arguments."""
    flat = [*args, *kwargs.values()]
    return [float(one) for one in flat if isinstance(one, (int, float)) and not isinstance(one, bool)]


def _is_deliberate(args: Any, kwargs: Any, given: list[Any]) -> bool:
    """Whether an operation writes an infinity deliberately."""
    return not given or any(one - one != 0.0 for one in _scalars(args, kwargs))


class Backward:
    """A repeated backward from the model's output, with a gradient of ones."""

    def __init__(
        self, modules: Modules, restraint: Restrains | None = None, ends: list[Any] | None = None
    ) -> None:
        """`ends`: the parameters it runs to, without changing their gradients. None: to all, adding to their
        gradients, which is allowed only in a fork."""
        self.origin: dict[str, Any] | None = None
        self._modules = modules
        self._restraint = restraint
        self._ends = ends
        self._labels: dict[Any, str] = {}
        modules.left = self._label

    def run(self, module: Any, args: Any, kwargs: Any) -> Any:
        """Call the module and run backward; returns the output."""
        torch = torch_module()
        restrained = watching(None, self._restraint) if self._restraint is not None else nullcontext()
        with torch.enable_grad(), restrained:
            output = module(*args, **kwargs)
            self._modules.left = None
            roots = [one for _, one in tensors_in(output) if one.requires_grad and has_float_values(one)]
            handles = [node.register_hook(self._hook(node)) for node in self._labels]
            try:
                self._run_back(roots, [torch.ones_like(one) for one in roots])
            finally:
                for handle in handles:  # nodes and hooks would keep each other and the graph's tensors alive
                    handle.remove()
        return output

    def _run_back(self, roots: list[Any], ones: list[Any]) -> None:
        autograd = torch_module().autograd
        if roots and self._ends is None:
            autograd.backward(roots, ones, retain_graph=True)
        elif roots and self._ends and self._restraint is not None:
            self._restraint.allow_backward(self._labels)
            autograd.grad(roots, self._ends, ones, allow_unused=True)

    def _label(self, module: Any, output: Any) -> None:
        """Label the nodes that a call created, except those of calls inside it."""
        waiting = [one.grad_fn for _, one in tensors_in(output) if one.grad_fn is not None]
        name = self._modules.name(module)
        while waiting:
            node = waiting.pop()
            if node in self._labels or node.name().endswith("AccumulateGrad"):
                continue
            self._labels[node] = name
            waiting += [one for one, _ in node.next_functions if one is not None]

    def _hook(self, node: Any) -> Callable[[Any, Any], None]:
        restraint = self._restraint

        def check(made: Any, came: Any) -> None:
            if restraint is None:
                find_origin(made, came)
                return
            if restraint.over():
                return
            restraint.resting = True
            # Must not raise on a thread of autograd's engine.
            _, error = capture(lambda: find_origin(made, came))
            restraint.resting = False
            if error is not None:
                restraint.stopped = restraint.stopped or describe(error)

        def find_origin(made: Any, came: Any) -> None:
            if (
                self.origin is None
                and any(is_nonfinite(one) for one in made)
                and not any(is_nonfinite(one) for one in came)
            ):
                bad = next(one for one in made if is_nonfinite(one))
                self.origin = {
                    "op": node.name(),
                    "module": self._labels[node],
                    "kind": _kind(bad),
                    "inputs": saved(node),
                    "gradient": statistics(bad),
                }

        return check


def saved(node: Any) -> list[dict[str, Any]]:
    """Statistics of the tensors that a node of the graph saved in the forward."""
    found = []
    for name in dir(node):
        value = getattr(node, name, None) if name.startswith(_SAVED) else None
        if has_float_values(value):
            found.append({"name": name.removeprefix(_SAVED), **statistics(value)})
    for number, value in enumerate(getattr(node, "saved_tensors", None) or ()):
        if has_float_values(value):
            found.append({"name": f"saved {number}", **statistics(value)})
    return found[:MOST_INPUTS]
