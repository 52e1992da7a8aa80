"""Call arguments: the tensors that a model was called with, copies with some replaced, and their layout.

Runs only in a forked child (`dependence_audit`). The layout states which dimension is the samples and which
the positions of a sequence, and how that is known. It is never guessed, because the audit searches for models
that confuse these dimensions. Uses the job's torch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from probe.job.instruments.tensors.input_targets import token_shares

MOST_TENSORS = 16
SHARE = 0.98
"""Minimum share of the targets that must equal the next tokens of the input."""
LEAST_TOKENS = 32


class Arguments:
    """Positional and keyword arguments. `tensors`, by name: those in plain containers can be replaced."""

    def __init__(self, torch: Any, args: Any, kwargs: Any) -> None:
        self._torch, self._args, self._kwargs = torch, args, kwargs
        self.tensors: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._collect("", [*args])
        self._collect("", dict(kwargs))

    def _collect(self, name: str, value: Any) -> None:
        if isinstance(value, self._torch.Tensor):
            known = id(value) in self._names or len(self.tensors) >= MOST_TENSORS
            if value.dim() and value.numel() and not known:
                self.tensors[name] = value
                self._names[id(value)] = name
        elif type(value) is dict:
            for key, item in value.items():
                self._collect(f"{name}.{key}" if name else str(key), item)
        elif type(value) in (list, tuple):
            for number, item in enumerate(value):
                self._collect(f"{name}[{number}]" if name else f"argument {number}", item)

    def replaced(self, changes: dict[str, Any]) -> tuple[Any, Any]:
        """args and kwargs with some tensors replaced, and copies of all others."""
        return self._copy(self._args, changes), self._copy(self._kwargs, changes)

    def _copy(self, value: Any, changes: dict[str, Any]) -> Any:
        if isinstance(value, self._torch.Tensor):
            new = changes.get(self._names.get(id(value), ""), value)
            return new.detach().clone().requires_grad_(value.requires_grad)
        if type(value) in (list, tuple):
            return type(value)(self._copy(item, changes) for item in value)
        if type(value) is dict:
            return {key: self._copy(item, changes) for key, item in value.items()}
        return value


class Layout(NamedTuple):
    """`samples` along dimension `axis` (0 or 1) of the inputs; `positions` along the other one, 0 if that is
    not known to be a sequence. `counted`: mask of the counted targets, as [samples, positions]; or None."""

    samples: int
    axis: int
    positions: int
    tokens: str
    """Name of the input with a token per position; empty without."""
    shifted: bool
    """Whether the targets are the next tokens of that input."""
    counted: Any
    known_by: str

    def by_sample(self, tensor: Any) -> Any:
        """A view with samples first, and positions second if there are any; None if the shape does not
        match."""
        first, second = (self.samples, self.positions) if not self.axis else (self.positions, self.samples)
        shape = tensor.shape
        if first and second and len(shape) and shape[0] == first * second and first * second > self.samples:
            tensor = tensor.reshape(first, second, *shape[1:])
        elif len(shape) <= self.axis or shape[self.axis] != self.samples:
            return None
        return tensor.transpose(0, 1) if self.axis else tensor

    def by_position(self, tensor: Any) -> Any:
        """A view as [samples, positions, …]; None if it has no such dimensions."""
        found = self.by_sample(tensor)
        fits = found is not None and self.positions and found.dim() > 1 and found.shape[1] == self.positions
        return found if fits else None

    def behind_channels(self, tensor: Any) -> Any:
        """The same of [samples, channels, positions], as convolutions and losses of classes have it. Features
        as many as there are positions look the same: asked only where no output is as above."""
        found = self.by_sample(tensor)
        fits = found is not None and self.positions and found.dim() == 3 and found.shape[2] == self.positions
        return found.transpose(1, 2) if fits else None

    def of_samples(self, tensor: Any) -> Any:
        """An argument with its samples first; None if it has no dimension of that size."""
        for axis in (self.axis, 1 - self.axis):
            if tensor.dim() > axis and tensor.shape[axis] == self.samples:
                return tensor.transpose(0, axis)
        return None


def layout_of(
    torch: Any, given: Arguments, samples: int | None, target: Any, ignored: int | None
) -> Layout | str:
    """The layout, or why it is unknown. `samples`: size of the loader's batch, from the indices that its
    sampler drew; None if unknown. `target`: of the loss function; None if it was not saved."""
    tokens = {
        name: one for name, one in given.tensors.items()
        if one.dim() == 2 and not one.is_floating_point() and one.dtype is not torch.bool and one.shape[1] > 1
    }
    if target is not None and not target.is_floating_point():
        for name, one in tokens.items():
            found = _of_next_tokens(torch, name, one, target, ignored)
            if found is not None:
                return found
    if samples is None or samples < 2:
        return "which dimension counts the samples is not known: no sampler drew indices, or only one"
    shapes = [one.shape for one in given.tensors.values() if one.dim() > 1]
    axes = {axis for shape in shapes for axis in (0, 1) if shape[axis] == samples}
    if not axes:
        return f"no argument has a dimension of the {samples} samples of the batch"
    if any(shape[0] == shape[1] == samples for shape in shapes):
        return f"two dimensions have the size of the batch, {samples}"
    axis = min(axes)
    name = next((name for name, one in tokens.items() if one.shape[axis] == samples), "")
    positions = tokens[name].shape[1 - axis] if name else 0
    return Layout(samples, axis, int(positions), name, False, None, f"the sampler drew {samples} indices")


def _of_next_tokens(torch: Any, name: str, given: Any, target: Any, ignored: int | None) -> Layout | None:
    if given.numel() < LEAST_TOKENS or given.shape[0] < 2:
        return None
    shares = token_shares(torch, given, target, ignored)
    if shares is None:
        return None
    flat = target.reshape(-1)
    for axis, share in enumerate((shares.across, shares.along)):
        if not float(share) >= SHARE:
            continue
        counted = None
        if flat.numel() == given.numel() and ignored is not None:
            counted = (flat != ignored).view(given.shape)
            counted = counted.T if axis else counted
        samples, positions = (int(given.shape[axis]), int(given.shape[1 - axis]))
        return Layout(
            samples, axis, positions, name, True, counted,
            f"the targets are {float(share):.1%} the next tokens along dimension {1 - axis}",
        )
    return None


def padding_mask(torch: Any, given: Arguments, layout: Layout) -> tuple[str, Any] | None:
    """Name of an argument that is a padding mask, and the padding as a mask [samples, positions]: exactly
    where the argument has one of its values, all tokens are the same."""
    if not layout.tokens:
        return None
    tokens = given.tensors[layout.tokens]
    for name, mask in given.tensors.items():
        if mask.shape != tokens.shape or name == layout.tokens:
            continue
        marked = mask != 0
        plain = mask.dtype is torch.bool or bool(((mask == 0) | (mask == 1)).all())
        if not plain or not bool(marked.any()) or bool(marked.all()):
            continue
        for padding in (marked, ~marked):
            inside, outside = tokens[padding], tokens[~padding]
            if bool((inside == inside[0]).all()) and not bool((outside == inside[0]).any()):
                return name, padding.T if layout.axis else padding
    return None
