"""The stacks of all ranks, merged into one tree and into classes of ranks.

As in STAT: a prefix tree from the outermost frame on, each node with the ranks that go through it, and
classes of ranks that are at the same place. Two stacks are at the same place if their frames are equal down
to the innermost frame of user code (user code by line, libraries by function), and so are the functions
called from there, down to the call of a collective and without the internals of waiting. So ranks that wait
in one collective are one class even if their backends differ by a line. A rank that is stopped or has ended
is never in a class with living ones.

Pure; any thread; standard library only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, NamedTuple

from probe.base import package, rank_sets

ALIVE, STOPPED, ENDED = "alive", "stopped", "ended"
"""States of a process; `ended`: the stack is the last in its recording."""
NOT_TRAINING = "no thread has trained yet"
"""Shown instead of a stack."""

Capture = Mapping[str, Any]
Stack = tuple[int, ...]
"""Numbers of frames, outermost first."""

_INSTRUMENTS = f"{package.FOLDER}job/instruments/"
_COLLECTIVE_CALLS = "torch/distributed/distributed_c10d.py"
_INTERNALS = (
    "/threading.py", "/queue.py", "/selectors.py", "/subprocess.py", "multiprocessing/connection.py",
    "multiprocessing/synchronize.py", "multiprocessing/queues.py", "multiprocessing/popen_fork.py",
    "concurrent/futures/_base.py", "torch/distributed/c10d_logger.py",
)
"""Files whose functions only wait."""
_KEY = itemgetter("func", "file", "lineno", "is_user")


class Merged(NamedTuple):
    """All ranks' stacks: `tree` as rows of cluster.stacks, `classes` as rows of cluster.stack_classes.

    A node also has `is_user`; a class has `frames` (innermost first, of its lowest rank) and on request
    `threads`, the other threads of its ranks with their places."""

    tree: list[dict[str, Any]]
    classes: list[dict[str, Any]]


def merge(captures: Mapping[int, Capture], all_threads: bool = False) -> Merged:
    """Merge captures by rank. `all_threads`: the classes also list their other threads."""
    frames = _Frames()
    stacks: dict[Stack, list[int]] = {}
    for rank, capture in captures.items():
        stacks.setdefault(frames.stack(training_frames(capture)), []).append(rank)
    frames.close()
    stacks = frames.visible(stacks)
    classes = _classes(captures, stacks, frames)
    if all_threads:
        _add_threads(captures, classes)
    return Merged(_tree(stacks, frames), classes)


def training_frames(capture: Capture) -> Sequence[Mapping[str, Any]]:
    """Frames of the training thread, innermost first; of the main thread when none has trained yet."""
    thread = training_thread(capture)
    return () if thread is None else thread["frames"]


def training_thread(capture: Capture) -> Mapping[str, Any] | None:
    """The training thread, or the main one when none has trained yet; None when it is not in the capture."""
    threads = capture.get("threads") or ()
    for thread in threads:
        if thread.get("training"):
            found: Mapping[str, Any] = thread
            return found
    return next((thread for thread in threads if thread.get("thread_id") == capture.get("pid")), None)


class _Frames:
    """Every distinct frame once, by number, so that its properties are computed once, not for each rank."""

    def __init__(self) -> None:
        self._numbers: defaultdict[tuple[str, str, int | None, bool], int] = defaultdict(count().__next__)
        self.known: list[tuple[str, str, int | None, bool]] = []
        """(function, file, line, whether it is the user's), by number."""
        self.user: list[bool] = []
        self._coarse: list[int] = []
        """Number of the frame that represents it in a class: for a library function, its first line seen."""
        self._internal: list[bool] = []
        self._collective: list[bool] = []
        self._hidden: set[int] = set()
        self._names: list[str] = []
        self._outer: dict[Stack, Stack] = {}
        self._above: dict[Stack, str] = {}
        """Caches for all but the innermost frame, which many stacks share: its place, and its text."""

    def stack(self, frames: Sequence[Mapping[str, Any]]) -> Stack:
        """Frames, innermost first, as numbers."""
        return tuple(map(self._numbers.__getitem__, map(_KEY, frames)))[::-1]

    def close(self) -> None:
        """Compute the properties of all frames, after all stacks were numbered."""
        self.known = list(self._numbers)
        standing: dict[tuple[str, str], int] = {}
        files: dict[str, tuple[str, bool, bool, bool]] = {}
        for number, (func, file, line, is_user) in enumerate(self.known):
            about = files.get(file)
            if about is None:
                about = files[file] = (
                    file.rpartition("/")[2], file.endswith(_INTERNALS), file.endswith(_COLLECTIVE_CALLS),
                    file.startswith(_INSTRUMENTS),
                )
            name, internal, collective, hidden = about
            self._names.append(f"{func} ({name}:{'?' if line is None else line})" if is_user else func)
            self.user.append(is_user)
            self._coarse.append(number if is_user else standing.setdefault((func, file), number))
            self._internal.append(internal)
            self._collective.append(collective)
            if hidden:
                self._hidden.add(number)

    def visible(self, stacks: dict[Stack, list[int]]) -> dict[Stack, list[int]]:
        """The stacks without probe's own hooks."""
        hidden = self._hidden
        if not hidden:
            return stacks
        found: dict[Stack, list[int]] = {}
        for stack, ranks in stacks.items():
            found.setdefault(tuple(one for one in stack if one not in hidden), []).extend(ranks)
        return found

    def place(self, stack: Stack) -> Stack:
        """Equal for all stacks at the same place."""
        if stack and self.user[stack[-1]]:  # the place of its callers is cached: others share it
            outer = stack[:-1]
            known = self._outer.get(outer)
            if known is None:
                known = self._outer[outer] = tuple([self._coarse[number] for number in outer])
            return (*known, stack[-1])
        inner = self._inner(stack)
        found = [self._coarse[number] for number in stack[:inner]]
        for number in stack[inner:]:
            if self._internal[number]:
                continue
            found.append(self._coarse[number])
            if self._collective[number]:
                break
        return tuple(found)

    def _inner(self, stack: Stack) -> int:
        """The number of frames down to the innermost user frame, inclusive."""
        inner = len(stack)
        while inner and not self.user[stack[inner - 1]]:
            inner -= 1
        return inner

    def text(self, place: Stack) -> str:
        """A place as text, innermost first: the library call, then the user's frames."""
        if not place:
            return NOT_TRAINING
        inner = self._inner(place)
        called = [self._names[number] for number in place[inner:]][::-1]
        if called and self._collective[place[-1]]:
            called = called[:1]
        elif len(called) > 2:
            called = [called[0], "…", called[-1]]
        return " <- ".join([*called, *self._users(place[:inner])])

    def _users(self, place: Stack) -> list[str]:
        """The user frames of a place that ends with one: the innermost, and those above it as one text."""
        if not place:
            return []
        outer = place[:-1]
        above = self._above.get(outer)
        if above is None:
            named = [self._names[number] for number in outer if self.user[number]]
            above = self._above[outer] = " <- ".join(reversed(named))
        return [self._names[place[-1]], above] if above else [self._names[place[-1]]]

    def shown(self, frames: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Frames without those of probe's own hooks."""
        if not self._hidden:
            return frames
        return [frame for frame in frames if not frame["file"].startswith(_INSTRUMENTS)]


# Classes ----------------------------------------------------------------------


def _classes(
    captures: Mapping[int, Capture], stacks: dict[Stack, list[int]], frames: _Frames
) -> list[dict[str, Any]]:
    """Rows of classes, the largest first."""
    found: dict[tuple[str, Stack], list[int]] = {}
    state_of = {rank: capture.get("state") or ALIVE for rank, capture in captures.items()}
    for stack, ranks in stacks.items():
        place = frames.place(stack)
        for rank in ranks:
            key = state_of[rank], place
            if key in found:
                found[key].append(rank)
            else:
                found[key] = [rank]
    members = [(len(ranks), -min(ranks), state, place, ranks) for (state, place), ranks in found.items()]
    members.sort(reverse=True)
    rows: list[dict[str, Any]] = []
    for many, first, state, place, ranks in members:
        those = [captures[rank] for rank in ranks]
        rows.append(
            {
                "class": len(rows), "ranks": _text(ranks), "rank_count": many, "state": state,
                "stack": frames.text(place), "phase": _common(those, "phase"), "step": _common(those, "step"),
                "frames": frames.shown(training_frames(captures[-first])),
            }
        )
    return rows


def _common(captures: list[Capture], what: str) -> Any:
    """The common value; None when they differ."""
    first = captures[0].get(what)
    return first if all(capture.get(what) == first for capture in captures[1:]) else None


def _add_threads(captures: Mapping[int, Capture], classes: list[dict[str, Any]]) -> None:
    """Add the other threads of each class, merged by name and place."""
    frames = _Frames()
    for one in classes:
        one["threads"] = []
    found: dict[tuple[int, str, Stack], set[int]] = {}
    for one in classes:
        for rank in rank_sets.from_text(one["ranks"]):
            own = training_thread(captures[rank])
            for thread in captures[rank].get("threads") or ():
                if thread is not own:
                    name = str(thread.get("thread_name") or "thread")
                    if thread.get("process_id") not in (None, captures[rank].get("pid")):
                        name += " of a child process"
                    key = one["class"], name, frames.stack(thread["frames"])
                    found.setdefault(key, set()).add(rank)
    frames.close()
    merged: dict[tuple[int, str, Stack], set[int]] = {}
    for (number, name, stack), ranks in found.items():
        merged.setdefault((number, name, frames.place(stack)), set()).update(ranks)
    for (number, name, place), ranks in merged.items():
        text = frames.text(place) if place else "no Python frame"
        classes[number]["threads"].append({"name": name, "ranks": _text(list(ranks)), "stack": text})


# The tree ---------------------------------------------------------------------


class _Nodes(NamedTuple):
    """The tree while it is built; node 0 is the root, without a frame; numbers are above their parents'."""

    parents: list[int]
    frames: list[int]
    ends: dict[int, list[int]]
    """Ranks whose stack ends at a node."""


def _tree(stacks: dict[Stack, list[int]], frames: _Frames) -> list[dict[str, Any]]:
    """Rows of nodes, each before its children, which are in descending order of ranks."""
    nodes = _grown(stacks, len(frames.known))
    children, counts = _counted(nodes)
    order: list[int] = []  # all ranks in the order of the tree: those of a node are contiguous
    rows: list[dict[str, Any]] = []
    spans: list[tuple[int, int]] = []
    waiting: list[tuple[int, int | None, int]] = [(0, None, -1)]
    while waiting:
        node, parent, depth = waiting.pop()
        ends = nodes.ends.get(node, ())
        row = len(rows)
        if node:
            func, file, line, is_user = frames.known[nodes.frames[node]]
            rows.append(
                {
                    "node": row, "parent": parent, "depth": depth, "func": func, "file": file,
                    "lineno": line, "ranks": "", "rank_count": counts[node], "ends": len(ends),
                    "is_user": is_user,
                }
            )
            spans.append((len(order), counts[node]))
        order += ends
        here = row if node else None
        waiting += [(child, here, depth + 1) for child in children.get(node, ())]
    _name_ranks(rows, spans, order)
    return rows


def _grown(stacks: dict[Stack, list[int]], size: int) -> _Nodes:
    """The nodes of all stacks, whose frames have numbers below `size`."""
    parents, numbers = [0], [0]
    ends: dict[int, list[int]] = {}
    known: dict[int, int] = {}
    find = known.get
    callers: dict[Stack, int] = {}
    for stack, ranks in stacks.items():
        outer = stack[:-1]  # many stacks differ in the innermost frame alone
        node = callers.get(outer, 0)
        for number in stack[-1:] if node else stack:
            key = node * size + number
            below = find(key)
            if below is None:
                below = known[key] = len(parents)
                parents.append(node)
                numbers.append(number)
            node = below
        if outer:
            callers[outer] = parents[node]
        ends[node] = ranks
    return _Nodes(parents, numbers, ends)


def _counted(nodes: _Nodes) -> tuple[dict[int, list[int]], list[int]]:
    """The children of each node, and how many ranks go through each.

    Children with the most ranks, then with the lowest rank, come last: they are taken from the end."""
    size = len(nodes.parents)
    counts, lowest = [0] * size, [1 << 40] * size
    for node, ranks in nodes.ends.items():
        counts[node], lowest[node] = len(ranks), min(ranks)
    children: dict[int, list[int]] = {}
    for node in range(size - 1, 0, -1):
        parent = nodes.parents[node]
        counts[parent] += counts[node]
        if lowest[node] < lowest[parent]:
            lowest[parent] = lowest[node]
        if parent in children:
            children[parent].append(node)
        else:
            children[parent] = [node]
    for below in children.values():
        if len(below) > 1:
            below.sort(key=lambda node: (counts[node] << 40) - lowest[node])
    return children, counts


def _name_ranks(rows: list[dict[str, Any]], spans: list[tuple[int, int]], order: list[int]) -> None:
    """Fill in the ranks of each node; a node with all ranks of its parent shares the text."""
    for row, (first, many) in zip(rows, spans, strict=True):
        parent = row["parent"]
        if parent is not None and rows[parent]["rank_count"] == many:
            row["ranks"] = rows[parent]["ranks"]
        else:
            row["ranks"] = _text(order[first : first + many])


def _text(ranks: list[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else rank_sets.as_text(ranks)
