"""Transitions: detects reinforcement-learning environments that are not reset, from the replay buffer.

An entry of such a list or deque is a tuple with one flag (a bool: the episode has ended) and two observations
of the same shape, before and after. If all flags are set and each entry starts with the observation at which
the previous one ended, nothing resets the environment. Names of variables do not matter. Runs on the agent's
thread, a fraction of a millisecond per container; calls no code of the job. torch inside functions.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from probe.job.instruments.core.object_access import attributes
from probe.job.instruments.facts.hyperparameters import Value, named_things

LEAST, NEWEST = 128, 256
"""Minimum entries of a container, and number of newest entries examined."""
PAIRS = 32
"""Number of entries compared with their successor."""
MOST_CONTAINERS = 4
_SHORTEST, _LONGEST = 4, 10
"""Minimum and maximum number of fields of an entry."""
_MOST_ELEMENTS = 1024
"""Largest observation compared by its elements; larger ones are compared by identity."""


def facts(thread: int | None) -> Iterator[tuple[str, Value]]:
    """For each container of transitions in the frames: number of entries examined, of those with the flag, of
    pairs compared, and of those that continue from the observation at which the previous entry ended."""
    found, seen = 0, set[int]()
    for name, thing in _containers(thread):
        if found < MOST_CONTAINERS and id(thing) not in seen and len(thing) >= LEAST:
            seen.add(id(thing))
            counts = counted(_newest(thing))
            if counts is not None:
                found += 1
                for what, number in zip(("looked", "ended", "pairs", "carried_on"), counts, strict=True):
                    yield f"transitions.{name}.{what}", number


def _containers(thread: int | None) -> Iterator[tuple[str, Any]]:
    """Lists and deques among the variables, and among the attributes of the variables' values."""
    for name, thing in named_things(thread):
        if type(thing) in (list, deque):
            yield name, thing
        elif type(thing).__module__.partition(".")[0] not in ("builtins", "torch", "numpy"):
            for inner, value in attributes(thing).items():
                if type(value) in (list, deque):
                    yield f"{name}.{inner}", value


def _newest(thing: Any) -> list[Any]:
    """The newest entries, newest last; copied in one C call, which no other thread interrupts."""
    if type(thing) is list:
        return thing[-NEWEST:]
    return list(itertools.islice(reversed(thing), NEWEST))[::-1]


def counted(entries: Sequence[Any]) -> tuple[int, int, int, int] | None:
    """Number of entries, of those with the flag, of pairs compared, and of pairs that continue from an end;
    None if the entries are no transitions."""
    if len(entries) < LEAST or not all(type(one) is tuple and len(one) == len(entries[0]) for one in entries):
        return None
    if not _SHORTEST <= len(entries[0]) <= _LONGEST:
        return None
    columns = range(len(entries[0]))
    flags = [place for place in columns if all(_is_flag(one[place]) for one in entries)]
    shapes = [_shape(value) for value in entries[-1]]
    places = [
        (before, after) for before in columns for after in columns
        if before != after and shapes[before] is not None and shapes[before] == shapes[after]
    ]
    if len(flags) != 1 or not places:
        return None
    ended = sum(bool(one[flags[0]]) for one in entries)
    newest = entries[-PAIRS - 1 :]
    pairs = [(one, following) for one, following in itertools.pairwise(newest) if one[flags[0]]]
    carried_on = max(
        sum(_equal(one[after], following[before]) for one, following in pairs) for before, after in places
    )
    return len(entries), ended, len(pairs), carried_on


def _is_flag(value: Any) -> bool:
    kind = type(value)
    return kind is bool or (kind.__module__ == "numpy" and kind.__name__ in ("bool_", "bool"))


def _shape(value: Any) -> tuple[int, ...] | None:
    """The shape of an observation; None for anything else."""
    numpy = sys.modules.get("numpy")
    if type(value) is sys.modules["torch"].Tensor or (numpy is not None and type(value) is numpy.ndarray):
        return tuple(value.shape) if len(value.shape) else None
    return None


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    shape = _shape(one)
    if shape is None or shape != _shape(other) or one.dtype != other.dtype:
        return False
    torch: Any = sys.modules["torch"]
    if math.prod(shape) > _MOST_ELEMENTS:
        return False
    if type(one) is torch.Tensor:
        return one.is_cpu and other.is_cpu and bool(torch.equal(one, other))
    return bool((one == other).all())
