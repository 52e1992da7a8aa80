"""Parameters that the graph of a loss leads to, and where those lie that no model has registered.

HOT PATH on sampled steps: `reached`, on the training thread right before backward; it reads `next_functions`
of at most `MOST_NODES` nodes and nothing that a node saved. `place_of` runs on the agent's thread and calls
no code of the job's. torch is the job's own.
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
"""Items looked at in a list or dictionary of a module's."""


class Graph(NamedTuple):
    """What a walk over the graph of a loss found."""

    leaves: dict[int, Any]
    """Those that backward will give a gradient to, by id."""
    nodes: int
    derivatives: bool
    """Whether a derivative is part of the loss, as in a gradient penalty or a physics-informed network."""


def reached(root: Any, limit_ns: int) -> Graph | None:
    """The graph of a loss; None when it is too large for the time. Activation checkpoints hide what is
    inside them."""
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
    return Graph(found, count, any(_DERIVATIVE in kind.__name__ for kind in kinds))


def kept_for(gradient: Any) -> int:
    """Tensors that the graph of a gradient keeps nearby, so that it could be differentiated: 0 when it has no
    graph, when something went through that already, or when it cannot be told without a hook of the job's."""
    first = getattr(gradient, "grad_fn", None)
    waiting, seen, count = [first] if first is not None else [], {first}, 0
    for node in waiting:  # which grows
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
    """Names of what `named_parameters()` does not find, by id: parameters in modules that lie in a list,
    tuple or dictionary of a registered module (`hidden[0].weight`), and tensors that are attributes of one
    or lie in such a list (`positions`)."""
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
