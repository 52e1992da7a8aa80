"""Repeated forwards: repeats a model's call with some of its arguments replaced.

Runs only in a forked child (`dependence_audit`). Each repetition starts with the same buffers and the same
random state; batch normalization and dropout are in eval mode by default. Uses the job's torch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from probe.job.instruments.core.tensor_summaries import has_float_values, tensors_in
from probe.job.instruments.dependence.call_arguments import Arguments

SEED = 20_011
MOST_OUTPUTS = 8
MOST_EVENTS = 4096
MOST_BYTES = 256 << 20
"""Maximum size of module inputs and outputs kept for comparison."""
ATTENTION = ("softmax", "scaled_dot_product")


class Event(NamedTuple):
    """A module's input (if `entered`) or output."""

    module: Any
    entered: bool
    tensor: Any


class Place(NamedTuple):
    """The module in whose own code a difference first shows. `attends`: that code computes attention."""

    module: Any
    attends: bool


class RepeatedForwards:
    """The model, its arguments, and the other state that its call depends on."""

    def __init__(self, torch: Any, model: Any, given: Arguments, autocast: Any) -> None:
        self._torch, self._model, self._given, self._autocast = torch, model, given, autocast
        self._modes = [(module, module.training) for module in model.modules()]
        self._buffers = [(one, one.detach().clone()) for one in model.buffers()]
        torch.backends.mha.set_fastpath_enabled(False)  # it computes differently from the training

    def run(self, changes: dict[str, Any], *, training: bool = False) -> list[Any]:
        """The floating-point outputs with some arguments replaced."""
        with self._torch.no_grad():
            return self._outputs(self._call(changes, training=training, seed=SEED))

    def draws(self) -> bool:
        """Whether the outputs of a training forward depend on the random state."""
        with self._torch.no_grad():
            ones, others = (
                self._outputs(self._call({}, training=True, seed=seed)) for seed in (SEED, SEED + 1)
            )
        return not all(map(self._torch.equal, ones, others))

    def gradients(self, forward_seed: int, backward_seed: int) -> list[Any]:
        """Gradients of the parameters in a training forward and its backward, each with its own random
        state."""
        for parameter in self._model.parameters():
            parameter.grad = None
        with self._torch.enable_grad():
            outputs = self._outputs(self._call({}, training=True, seed=forward_seed))
            ends = [one for one in outputs if one.requires_grad]
            total = sum((one.float() * _weights(self._torch, one)).sum() for one in ends)
            _seed(self._torch, backward_seed)
            if isinstance(total, self._torch.Tensor):
                total.backward()
        return [None if one.grad is None else one.grad.clone() for one in self._model.parameters()]

    def gradients_of(self, number: int, parameters: list[Any]) -> list[Any]:
        """Gradients of an output's `weighted` sum, None for parameters that it does not depend on. No hooks
        of parameters run, such as one that averages over the ranks."""
        torch = self._torch
        with torch.enable_grad():
            output = self._outputs(self._call({}, training=False, seed=SEED))[number]
            if not output.requires_grad:
                return [None] * len(parameters)
            total = (output.double() * _weights(torch, output)).sum()
            return list(torch.autograd.grad(total, parameters, allow_unused=True))

    def weighted(self, number: int) -> tuple[float, float]:
        """The weighted sum of an output's elements, and the scale of its rounding errors: the root of the sum
        of their squares."""
        output = self.run({})[number].double()
        parts = output * _weights(self._torch, output)
        return float(parts.sum()), float(output.norm())

    def first_difference(
        self, changes: dict[str, Any], differs: Callable[[Any, Any], bool]
    ) -> Place | None:
        """The place where a module's input or output first `differs` when arguments are replaced."""
        before, operations = self._events({}), self._operations()
        after = self._events(changes)
        stack: list[Any] = []
        for one, other in zip(before, after, strict=False):
            if one.module is not other.module or one.entered != other.entered:
                return None  # a different path through the model
            same_shape = one.tensor is not None and one.tensor.shape == other.tensor.shape
            different = same_shape and differs(one.tensor, other.tensor)
            if different:
                module = (stack[-1] if stack else self._model) if one.entered else one.module
                return Place(module, module in operations)
            stack = [*stack, one.module] if one.entered else stack[:-1]
        return None

    def of_module(self, module: Any, changes: dict[str, Any]) -> tuple[Any, Any]:
        """Output of a module's first call before and after arguments are replaced; None if unknown."""
        found = [
            next((one.tensor for one in events if one.module is module and not one.entered), None)
            for events in (self._events({}), self._events(changes))
        ]
        return found[0], found[1]

    def output_of(self, module: Any, change: Callable[[Any], Any] | None = None) -> Any:
        """Output of a module's first call, after `change` of its first floating-point argument and of all
        others of its shape; None if unknown."""
        shapes: list[Any] = []
        outputs: list[Any] = []

        def changed(value: Any) -> Any:
            if not isinstance(value, self._torch.Tensor) or not value.is_floating_point():
                return value
            shapes.append(value.shape)
            return value if change is None or value.shape != shapes[0] else change(value)

        def enters(_module: Any, args: Any, kwargs: Any) -> Any:
            if outputs:
                return None
            new = tuple(changed(one) for one in args)
            return new, {key: changed(one) for key, one in kwargs.items()}

        def leaves(_module: Any, _args: Any, output: Any) -> None:
            found = [one for _, one in tensors_in(output, depth=2) if has_float_values(one)]
            outputs.append(found[0] if found else None)

        hooks = [module.register_forward_pre_hook(enters, with_kwargs=True)]
        hooks.append(module.register_forward_hook(leaves))
        try:
            self.run({})
        finally:
            for hook in hooks:
                hook.remove()
        return outputs[0] if outputs else None

    def attending(self) -> list[Any]:
        """The modules in whose own code attention is computed, in order of their names."""
        operations = self._operations()
        return [one for one in self._model.modules() if one in operations]

    def _call(self, changes: dict[str, Any], *, training: bool, seed: int) -> Any:
        torch = self._torch
        with torch.no_grad():
            for buffer, kept in self._buffers:
                buffer.copy_(kept)
        for module, mode in self._modes:
            module.training = mode and training
        _seed(torch, seed)
        args, kwargs = self._given.replaced(changes)
        with torch.autocast("cpu", dtype=self._autocast, enabled=self._autocast is not None):
            return self._model(*args, **kwargs)

    def _outputs(self, output: Any) -> list[Any]:
        return [one for _, one in tensors_in(output) if has_float_values(one)][:MOST_OUTPUTS]

    def _events(self, changes: dict[str, Any]) -> list[Event]:
        """Inputs and outputs of modules, in order."""
        events: list[Event] = []
        room = [MOST_BYTES]

        def kept(value: Any) -> Any:
            tensors = [one for _, one in tensors_in(value, depth=2) if has_float_values(one) and one.dim()]
            tensor = tensors[0] if tensors else None
            room[0] -= 0 if tensor is None else tensor.numel() * tensor.element_size()
            return tensor.detach().clone() if tensor is not None and room[0] > 0 else None

        def enters(module: Any, args: Any) -> None:
            if len(events) < MOST_EVENTS:
                events.append(Event(module, True, kept(args)))

        def leaves(module: Any, _args: Any, output: Any) -> None:
            if len(events) < MOST_EVENTS:
                events.append(Event(module, False, kept(output)))

        self._hooked(enters, leaves, changes)
        return events

    def _operations(self) -> set[Any]:
        """The modules in whose own code attention or a softmax is computed."""
        from torch.utils import _python_dispatch

        stack: list[Any] = []
        found: set[Any] = set()

        def dispatch(_mode: Any, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if stack and any(part in func._schema.name for part in ATTENTION):
                found.add(stack[-1])
            return func(*args, **(kwargs or {}))

        mode: Any = _python_dispatch.TorchDispatchMode
        with type("Watch", (mode,), {"__torch_dispatch__": dispatch})():
            self._hooked(lambda module, _: stack.append(module), lambda *_: stack.pop() and None, {})
        return found

    def _hooked(self, enters: Any, leaves: Any, changes: dict[str, Any]) -> None:
        nn = self._torch.nn.modules.module
        hooks = nn.register_module_forward_pre_hook(enters), nn.register_module_forward_hook(leaves)
        try:
            self.run(changes)
        finally:
            for hook in hooks:
                hook.remove()


def _seed(torch: Any, seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


def _weights(torch: Any, output: Any) -> Any:
    """A fixed weight for each element: a plain sum has zero gradient behind a softmax or a normalization."""
    return torch.linspace(-1.0, 1.0, output.numel()).view(output.shape)
