"""Finds the living objects of a class without holding a reference to any other object.

`gc.get_objects()` also returns tuples that other threads are still building, and a reference to one makes
`tuple(generator)` there raise SystemError. So its result is only iterated over inside one C call, during
which no other thread runs; the objects themselves are found through their classes. Off the hot path: holds
the GIL for some ten milliseconds. Standard library only.
"""

from __future__ import annotations

import gc
from itertools import chain, starmap
from typing import Any


def living(*classes: type) -> list[Any]:
    """All objects known to the garbage collector of these classes or their subclasses."""
    # By id, not by the class itself: a metaclass may define a hash.
    present = set(map(id, map(type, chain.from_iterable(starmap(gc.get_objects, [()])))))
    kinds = {id(one): one for one in _with_subclasses(classes) if id(one) in present}
    return [one for one in gc.get_referrers(*kinds.values()) if id(type(one)) in kinds] if kinds else []


def _with_subclasses(classes: tuple[type, ...]) -> list[type]:
    found: dict[int, type] = {}
    waiting = list(classes)
    while waiting:
        one = waiting.pop()
        if id(one) not in found:
            found[id(one)] = one
            waiting.extend(type.__subclasses__(one))
    return list(found.values())
