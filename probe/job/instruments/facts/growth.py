"""Growth: detects objects of the program that grow from step to step (memory leaks).

Writes python.growth. Runs on the agent's thread, a fraction of a millisecond at a time, and holds no object
in between. Examines the variables of the user's frames, the globals of their modules, the attributes of their
`self`, of objects of the program's classes among them and of the data sets, and the entries of dictionaries.
The size of each is read: elements of a tensor, entries of a container, of a function's cache or of a default
argument, nodes of the graph that a tensor keeps. A row is written when a size has grown; a constant size has
none.

Calls no code of the job (`object_access`); keeps only names and numbers. A graph is followed only along the
first and along the last inputs of its nodes: a value that is accumulated in every step is at one end of a
sum. torch inside functions.
"""

from __future__ import annotations

import functools
import gc
import itertools
import sys
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator
from types import FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

from probe.base import clock
from probe.job.instruments.core.object_access import attributes, entries
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.data import Data
from probe.job.introspection import python_frames
from probe.recording.journal import Journal

FIRST_STEPS = 8
SOON_S, SOON_LOOKS, LATER_S = 1.5, 8, 10.0
"""Seconds between the first `SOON_LOOKS` rounds; their number; seconds between later rounds."""
SHARE = 1000
"""Pause after a round, as a multiple of its duration: rounds take at most 0.1 % of the time."""
SLICE_S, REST_S = 0.0003, 0.0005
"""Length of a slice with the GIL, and the break after it."""
GROWN_RATIO = 1.5
"""After its first rows, an object is written again when it has grown by this factor."""
FIRST_ROWS, MOST_ROWS, MOST_NAMES = 5, 2000, 1000
MOST_NODES = 1000
"""Maximum nodes followed in a graph: without a break, half a microsecond each."""
MOST_INNER = 64
"""A dictionary with more entries is measured as a whole."""
LEAST_ENTRIES, LEAST_ELEMENTS, LEAST_NODES = 16, 1024, 64
"""Minimum sizes: smaller objects cost nothing yet."""
LEAST_GRAPHS = 4
"""Minimum entries of a container whose newest one keeps a graph: each of those keeps much."""
WITH_GRAPH = "tensor with its graph"

_DICTIONARIES = (dict, defaultdict, OrderedDict)
_CONTAINERS = (list, deque, set, *_DICTIONARIES)
_CACHED = type(functools.lru_cache(maxsize=None)(len))
TENSOR, GRAPH, CONTAINER, CACHE, DEFAULT = "tensor", "graph", "container", "cache", "default"
CYCLE = "cycle"


class Size(NamedTuple):
    """The size of one object in one round."""

    kind: str
    entries: int
    """Elements, nodes, or entries."""
    bytes: int | None = None
    """Size of a tensor; estimate for a container of tensors, from its newest entry; None if unknown."""
    holds: str | None = None
    """Kind of a container's newest entry."""
    hits: int | None = None
    """Hits of a cache."""


class _Known:
    """State of one name over the rounds so far."""

    __slots__ = ("looks", "rows", "size", "written")

    def __init__(self, size: int) -> None:
        self.size = self.written = size
        self.looks = 1
        self.rows = 0


class Growth:
    """Measures objects; `step` is called once per round of the agent's thread."""

    def __init__(self, recorder: Recorder, data: Data | None, journal: Journal) -> None:
        self._recorder, self._data, self._journal = recorder, data, journal
        self._known: dict[tuple[str, str, str], _Known] = {}
        """By the function whose variable it is (empty for all else), the name, and the kind: `x` of one
        function is another object than `x` of the next."""
        self._rounds = self._rows = 0
        self._last_step = -1
        self._next_s = 0.0

    def step(self) -> None:
        """Run a round, if due and if steps have passed since the last one."""
        recorder, now_s = self._recorder, time.monotonic()
        step = recorder.counted_step
        if now_s < self._next_s or step is None or step < FIRST_STEPS or step <= self._last_step:
            return
        if self._rows >= MOST_ROWS:
            return
        self._rounds += 1
        self._last_step = step
        rows: list[dict[str, Any]] = []
        took_s, done = 0.0, 0
        while done >= 0:
            begun_s = time.perf_counter()
            found, done = self._slice(done, begun_s + SLICE_S)
            for home, name, size in found:
                rows += self._row(step, home, name, size)
            took_s += time.perf_counter() - begun_s
            if done >= 0:
                time.sleep(REST_S)
        if rows:
            self._rows += len(rows)
            self._journal.append({"table": "python.growth", "rows": rows})
        every_s = SOON_S if self._rounds < SOON_LOOKS else LATER_S
        self._next_s = time.monotonic() + max(every_s, SHARE * took_s)

    def _row(self, step: int, home: str, name: str, size: Size) -> list[dict[str, Any]]:
        """The row of an object that has grown; none in its first round, or if it has hardly grown."""
        key = (home, name, size.kind)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MOST_NAMES:
                return []
            known = self._known[key] = _Known(size.entries)
            if size.kind != CYCLE:  # a cycle may already be full
                return []
            known.written = 0
        known.looks += 1
        shrank, known.size = size.entries < known.size, size.entries
        if shrank:  # it is emptied at times, for example once per epoch: start over
            self._known[key] = _Known(size.entries)
            return []
        least = known.written + 1 if known.rows < FIRST_ROWS else known.written * GROWN_RATIO
        if size.entries < least:
            return []
        known.written = size.entries
        known.rows += 1
        return [{
            "step": step, "t_ns": clock.wall_ns(), "name": name, "kind": size.kind, "count": size.entries,
            "bytes": size.bytes, "holds": size.holds, "hits": size.hits, "row": known.rows,
        }]

    # Objects to measure ---------------------------------------------------------

    def _slice(self, done: int, until_s: float) -> tuple[list[tuple[str, str, Size]], int]:
        """Functions, names and sizes from position `done` on (an object and one of its parts), until the time
        is up; and where to continue, -1 at the end. No object is held between two slices: otherwise objects
        that the training releases, such as the outputs of a step, would stay in memory into the next step."""
        torch = sys.modules["torch"]
        found: list[tuple[str, str, Size]] = []
        seen: set[int] = set()
        first, begun = divmod(done, 1 + MOST_INNER)
        number = -1
        for home, place, table in self._tables():
            for name, thing in table:
                number += 1
                if number < first or not isinstance(name, str) or name.startswith("__"):
                    continue
                for part, (of, inner) in enumerate(_parts(torch, f"{place}{name}", thing)):
                    if number == first and part < begun:
                        continue
                    found += [(home, *one) for one in _sized(torch, of, inner, seen, 0)]
                    if time.perf_counter() > until_s:
                        return found, number * (1 + MOST_INNER) + part + 1
        return found, -1

    def _tables(self) -> Iterator[tuple[str, str, list[tuple[Any, Any]]]]:
        """The function of variables, and prefixes of names, each with names and objects: variables and
        globals of the user's frames, the attributes of their `self`, and those of the data sets."""
        frames = _user_frames(self._recorder.thread)
        owners: dict[int, tuple[str, Any]] = {}
        for frame in frames:
            found = python_frames.variables(frame)
            if frame.f_code.co_name != "<module>":
                yield f"{frame.f_code.co_name}:{frame.f_code.co_firstlineno}", "", entries(found)
            if "self" in found:
                owners.setdefault(id(found["self"]), ("self.", found["self"]))
        spaces = {id(frame.f_globals): frame.f_globals for frame in frames}
        main = sys.modules.get("__main__")
        if main is not None:
            spaces.setdefault(id(vars(main)), vars(main))
        for space in spaces.values():
            yield "", "", [(name, one) for name, one in entries(space) if not isinstance(one, ModuleType)]
        for reference in self._data.loaders if self._data is not None else []:
            dataset = attributes(reference()).get("dataset")
            for _ in range(4):  # Subset, and other wrappers of data sets
                if dataset is None:
                    break
                owners.setdefault(id(dataset), (f"{type(dataset).__name__}.", dataset))
                dataset = attributes(dataset).get("dataset")
        for place, owner in owners.values():
            yield "", place, entries(attributes(owner))
            own = [one for one in type(owner).__mro__ if python_frames.is_user_code(_file(one))]
            yield "", place, [entry for one in own for entry in entries(vars(one))]


def _parts(torch: Any, name: str, thing: Any) -> Iterator[tuple[str, Any]]:
    """An object, and the tensors and containers among the attributes of one of the program's classes."""
    yield name, thing
    if python_frames.is_user_code(_file(type(thing))):
        for attribute, inner in entries(attributes(thing))[:MOST_INNER]:
            if type(inner) in _CONTAINERS or type(inner) is torch.Tensor:
                yield f"{name}.{attribute}", inner


def _sized(torch: Any, name: str, thing: Any, seen: set[int], depth: int) -> Iterator[tuple[str, Size]]:
    kind = type(thing)
    if id(thing) in seen:
        return
    if kind is torch.Tensor:
        seen.add(id(thing))
        yield from _tensor(torch, name, thing)
    elif kind in _CONTAINERS:
        seen.add(id(thing))
        if kind in _DICTIONARIES and depth == 0 and len(thing) <= MOST_INNER:
            for key, inner in entries(thing):
                for of, part in _parts(torch, f"{name}[{_shown(key)}]", inner):
                    yield from _sized(torch, of, part, seen, 1)
        elif len(thing) >= LEAST_GRAPHS:
            size = _container(torch, thing)
            if size.entries >= LEAST_ENTRIES or size.holds == WITH_GRAPH:
                yield name, size
    elif kind is itertools.cycle:
        seen.add(id(thing))
        kept = [one for one in gc.get_referents(thing) if type(one) is list and len(one) >= LEAST_ENTRIES]
        if kept:
            yield name, _container(torch, kept[-1])._replace(kind=CYCLE)
    elif kind is _CACHED:
        seen.add(id(thing))
        info = thing.cache_info()  # in C: holds the cache's lock no longer than a lookup
        if info.maxsize is None and info.currsize >= LEAST_ENTRIES:
            yield name, Size(CACHE, info.currsize, hits=info.hits)
    elif kind is FunctionType:
        seen.add(id(thing))
        for argument, value in _defaults(thing):
            if type(value) in (list, deque) and len(value) >= LEAST_ENTRIES:
                yield f"{argument} of {name}", _container(torch, value)._replace(kind=DEFAULT)


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The default values of a function's arguments, which are created once, with the function."""
    code, given = function.__code__, function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(given) : code.co_argcount], given, strict=True)
    yield from entries(function.__kwdefaults__)


def _user_frames(thread: int | None) -> list[FrameType]:
    frame = None if thread is None else sys._current_frames().get(thread)
    return [one for one in python_frames.walk(frame) if python_frames.is_user_code(one.f_code.co_filename)]


def _file(kind: type) -> str:
    """The file of the module that a class is from; `<` if it has none."""
    found = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return found if isinstance(found, str) else "<"


def _shown(key: Any) -> str:
    return repr(key)[:40] if type(key) in (str, int, bool) else f"<{type(key).__name__}>"


def _tensor(torch: Any, name: str, tensor: Any) -> Iterator[tuple[str, Size]]:
    with torch._C.DisableTorchFunctionSubclass():
        count, first = tensor.numel(), tensor.grad_fn
        held = count * tensor.element_size()
    if first is not None:
        longest = max(_chain(first, 0), _chain(first, -1))
        if longest >= LEAST_NODES:
            yield name, Size(GRAPH, longest)
    if count >= LEAST_ELEMENTS:
        yield name, Size(TENSOR, count, held)


def _chain(first: Any, place: int) -> int:
    """Length of the chain of a graph's nodes along their first (`place` 0) or last (-1) inputs."""
    node, passed = first, 0
    while node is not None and passed < MOST_NODES:
        passed += 1
        behind = [one for one, _ in node.next_functions if one is not None]
        node = behind[place] if behind else None
    return passed


def _container(torch: Any, thing: Any) -> Size:
    """The size of a container, described by its newest entry; a set has no newest entry."""
    count = len(thing)
    newest: Any = None
    try:
        if type(thing) in _DICTIONARIES:
            newest = thing[next(reversed(thing))]
        elif type(thing) is not set:
            newest = thing[-1]
    except (LookupError, StopIteration, RuntimeError):  # the training thread is changing it
        return Size(CONTAINER, count)
    parts: Any = newest[:8] if type(newest) in (tuple, list) else [newest]
    if type(newest) is dict and len(newest) <= MOST_INNER:
        parts = [one for _, one in entries(newest)]
    tensors = [one for one in parts if type(one) is torch.Tensor]
    if not tensors:
        return Size(CONTAINER, count, holds=type(newest).__name__)
    with torch._C.DisableTorchFunctionSubclass():
        held = sum(one.numel() * one.element_size() for one in tensors)
        graph = any(one.grad_fn is not None for one in tensors)
    return Size(CONTAINER, count, count * held, WITH_GRAPH if graph else "tensor")
