"""Parameters that the graph of a loss leads to, and where those lie that no model has registered.

HOT PATH on sampled steps: `reached`, on the training thread right before backward; it reads `next_functions`
of at most `MOST_NODES` nodes and nothing that a node saved. `place_of` runs on the agent's thread and calls
no code of the job's. torch is the job's own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from probe.job.instruments.core.object_access import attributes, entries, unwrapped

MOST_NODES = 20_000
_CLOCK_EVERY = 256
_LEAF = "AccumulateGrad"
_MOST_ITEMS = 256
"""Items looked at in a list or dictionary of a module's."""


def reached(root: Any, limit_ns: int) -> dict[int, Any] | None:
    """The leaves that backward from `root` will give a gradient to, by id; None when the graph is too large
    for the time. Activation checkpoints hide what is inside them."""
    first = getattr(root, "grad_fn", None)
    found: dict[int, Any] = {}
    if first is None:
        return {id(root): root} if getattr(root, "requires_grad", False) else found
    waiting, seen = [first], {first}
    ends_ns = time.monotonic_ns() + limit_ns
    count = 0
    while waiting:
        node = waiting.pop()
        count += 1
        if count > MOST_NODES or (count % _CLOCK_EVERY == 0 and time.monotonic_ns() > ends_ns):
            return None
        if type(node).__name__ == _LEAF:
            leaf = node.variable
            found[id(leaf)] = leaf
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)
    return found


def places_of(wanted: set[int], roots: list[Any]) -> dict[int, str]:
    """Names of parameters in modules that lie in a list, tuple or dictionary of a registered module, where
    `named_parameters()` does not look: `hidden[0].weight`, by id."""
    found: dict[int, str] = {}
    for root in roots:
        for path, parameter in _hidden(unwrapped(root)):
            if id(parameter) in wanted:
                found.setdefault(id(parameter), path)
    return found


def _hidden(root: Any) -> Iterator[tuple[str, Any]]:
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
            for place, item in _items(value):
                waiting.append((f"{path}.{key}[{place}]".strip("."), item, True))


def _items(value: Any) -> list[tuple[Any, Any]]:
    if type(value) in (list, tuple):
        return list(enumerate(value[:_MOST_ITEMS]))
    if type(value) is dict and len(value) <= _MOST_ITEMS:
        return [(repr(key) if isinstance(key, str) else key, item) for key, item in entries(value)]
    return []
