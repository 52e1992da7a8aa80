"""Reached parameters: finds the parameters in a loss's graph, and the names of unregistered ones.

HOT PATH on sampled steps: `reached`, on the training thread right before backward; it reads `next_functions`
of at most `MOST_NODES` nodes, and no saved tensors. `places_of` runs on the agent's thread and calls no code
of the job. Uses the job's torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from probe.job.instruments.core.object_access import attributes, entries, unwrapped

MOST_NODES = 20_000
_CLOCK_EVERY = 256
_LEAF, _DERIVATIVE = "AccumulateGrad", "BackwardBackward"
_SAVED, _MOST_NEAR = "_raw_saved_", 8
_MOST_ITEMS = 256
"""Items searched in a list or dictionary of a module."""


class Graph(NamedTuple):
    """The result of a walk over a loss's graph."""

    leaves: dict[int, Any]
    """Leaves that will receive a gradient in backward, by id."""
    nodes: int
    derivatives: bool
    """Whether a derivative is part of the loss, as in a gradient penalty or a physics-informed network."""
    functions: tuple[type, ...] = ()
    """The types of the nodes that autograd functions written in Python made."""


def reached(root: Any, limit_ns: int) -> Graph | None:
    """Walk the graph of a loss; None if it is too large or takes too long. The inside of an activation
    checkpoint is not visible."""
    first = getattr(root, "grad_fn", None)
    found: dict[int, Any] = {}
    if first is None:
        return Graph({id(root): root} if getattr(root, "requires_grad", False) else found, 0, False)
    waiting, seen, kinds = [first], {first}, set()
    ends_ns = time.monotonic_ns() + limit_ns
    count = 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count > MOST_NODES or (count % _CLOCK_EVERY == 0 and time.monotonic_ns() > ends_ns):
            return None
        kind = type(node)
        kinds.add(kind)
        if kind.__name__ == _LEAF:
            leaf = node.variable
            found[id(leaf)] = leaf
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    own = tuple(kind for kind in kinds if hasattr(kind, "_forward_cls"))
    return Graph(found, count, any(_DERIVATIVE in kind.__name__ for kind in kinds), own)


def kept_for(gradient: Any) -> int:
    """Number of tensors saved in the nearest nodes of a gradient's graph, for differentiating it again. 0 if
    there is no graph, if a backward already consumed it, or if a hook of the job packed the tensors."""
    first = getattr(gradient, "grad_fn", None)
    waiting, seen, count = [first] if first is not None else [], {first}, 0
    for node in waiting:  # grows while it is iterated over
        for name in dir(node):
            raw = getattr(node, name) if name.startswith(_SAVED) else None
            if raw is not None and getattr(raw, "unpack_hook", raw) is None:
                count += getattr(raw, "data", None) is not None  # None: freed, or not needed
        for following, _ in node.next_functions:
            if following is not None and following not in seen and len(waiting) < _MOST_NEAR:
                seen.add(following)
                waiting.append(following)
    return count


def places_of(wanted: set[int], roots: list[Any]) -> dict[int, str]:
    """Names, by id, of parameters that `named_parameters()` does not find: those of modules in a list, tuple
    or dictionary of a registered module (`hidden[0].weight`), and tensors that are attributes of a module or
    in such a container (`positions`)."""
    found: dict[int, str] = {}
    for root in roots:
        for path, parameter in _hidden(unwrapped(root)):
            if id(parameter) in wanted:
                found.setdefault(id(parameter), path)
    return found


def _hidden(root: Any) -> Iterator[tuple[str, Any]]:
    tensor = sys.modules["torch"].Tensor
    waiting: list[tuple[str, Any, bool]] = [("", root, False)]
    seen: set[int] = set()
    while waiting:
        path, module, hidden = waiting.pop()
        held = attributes(module)
        if id(module) in seen or not isinstance(held.get("_parameters"), dict):
            continue
        seen.add(id(module))
        if hidden:
            for key, parameter in entries(held["_parameters"]):
                yield f"{path}.{key}".strip("."), parameter
        for key, child in entries(held.get("_modules")):
            waiting.append((f"{path}.{key}".strip("."), child, hidden))
        for key, value in held.items():
            if key.startswith("_"):
                continue
            if issubclass(type(value), tensor):
                yield f"{path}.{key}".strip("."), value
            for place, item in _items(value):
                name = f"{path}.{key}[{place}]".strip(".")
                if issubclass(type(item), tensor):
                    yield name, item
                else:
                    waiting.append((name, item, True))


def _items(value: Any) -> list[tuple[Any, Any]]:
    if type(value) in (list, tuple):
        return list(enumerate(value[:_MOST_ITEMS]))
    if type(value) is dict and len(value) <= _MOST_ITEMS:
        return [(repr(key) if isinstance(key, str) else key, item) for key, item in entries(value)]
    return []
