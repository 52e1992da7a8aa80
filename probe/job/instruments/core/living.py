"""Living objects of a class, found without holding on to anything else that lives.

`gc.get_objects()` also gives tuples that other threads are still making, and while somebody holds such a
tuple `tuple(generator)` in the other thread ends with a SystemError. So what it gives is only gone through
inside one call of C, in which no other thread gets a turn; the objects themselves come from their classes.
Standard library only; off the hot path: some ten milliseconds in which no other thread runs Python.
"""

from __future__ import annotations

import gc
from itertools import chain, starmap
from typing import Any


def living(*classes: type) -> list[Any]:
    """Every object that the garbage collector knows whose class is one of these, or a subclass."""
    # By id, not by the class itself: a metaclass may have a hash of its own.
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
