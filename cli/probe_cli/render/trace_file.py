"""Streams a trace in the Trace Event Format, which Perfetto and chrome://tracing open.

A process of the trace is a rank, a thread is a lane of one of its tracks. Slices of a lane must nest, so a
slice that only overlaps another goes to the next lane. Only the open slices of each lane are kept in memory.
Standard library only; runs in the command's main thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TextIO

TRACKS = ("steps", "modules", "collectives", "intervals", "spans", "events")
"""The tracks of a rank, in display order."""
MOST_LANES = 100
ROUNDING_NS = 1000
"""Slices that overlap by less are treated as adjacent: durations are recorded as floating-point seconds, and
start and end come from two clock readings."""


class Slice(NamedTuple):
    """An event with a duration; `end_ns` is None while it is still open. Times are nanoseconds since 1970 by
    the clock of the rank's host."""

    rank: int
    start_ns: int
    end_ns: int | None
    name: str
    category: str
    arguments: Mapping[str, Any]


class _Open(NamedTuple):
    """An open slice of a lane, inside which later slices may nest."""

    start_ns: int
    end_ns: int | None


class TraceFile:
    """The trace file. `ahead_ns`: lead of each rank's clock; `origin_ns`: the time shown as 0."""

    def __init__(
        self, file: TextIO, names: Mapping[int, str], ahead_ns: Mapping[int, int], origin_ns: int
    ) -> None:
        self._file = file
        self._ahead_ns = ahead_ns
        self._origin_ns = origin_ns
        self._named: set[int] = set()
        self.events = 0
        self.left_out = 0
        """Number of slices for which there was no lane."""
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        for place, (rank, name) in enumerate(sorted(names.items())):
            self._describe(rank, None, "process_name", {"name": name})
            self._describe(rank, None, "process_sort_index", {"sort_index": place})

    def slices(self, track: str, found: Iterable[Slice]) -> Iterator[tuple[Slice, int]]:
        """Write slices of a track, sorted by rank and start, longer ones first; yields each written slice
        with its lane."""
        number = TRACKS.index(track)
        rank: int | None = None
        lanes: list[list[_Open]] = []
        for one in found:
            if one.rank != rank:
                rank, lanes = one.rank, []
            lane, placed = _placed(lanes, one)
            if placed is None:
                self.left_out += 1
                continue
            begin = {"ph": "B" if placed.end_ns is None else "X", **self._thread(one.rank, number, lane)}
            what = {"name": one.name, "cat": one.category, "args": one.arguments}
            self._write({**begin, **what}, self.shown_ns(one.rank, placed.start_ns), placed)
            yield one, lane

    def instant(self, rank: int, t_ns: int, name: str, category: str, arguments: Mapping[str, Any]) -> None:
        """Write an instant event on the track `events`."""
        where = {"ph": "i", "s": "t", **self._thread(rank, TRACKS.index("events"), 0)}
        what = {"name": name, "cat": category, "args": arguments}
        self._write({**where, **what}, self.shown_ns(rank, t_ns))

    def counter(self, rank: int, t_ns: int, name: str, value: float) -> None:
        """Write one value of a counter."""
        what = {"ph": "C", "pid": _process(rank), "name": name, "args": {"value": value}}
        self._write(what, self.shown_ns(rank, t_ns))

    def arrow(self, number: int, name: str, first: tuple[int, int, int], other: tuple[int, int, int]) -> None:
        """Write an arrow between two slices of the track `collectives`, each given as a rank, a lane and a
        time inside the slice on the common timeline. `number` identifies the arrow."""
        what = {"id": number, "name": name, "cat": "collective"}
        for phase, (rank, lane, shown_ns) in (({"ph": "s"}, first), ({"ph": "f", "bp": "e"}, other)):
            self._write({**phase, **what, **self._thread(rank, TRACKS.index("collectives"), lane)}, shown_ns)

    def shown_ns(self, rank: int, t_ns: int) -> int:
        """Convert a time of a rank's clock to the common timeline."""
        return t_ns - self._ahead_ns[rank]

    def close(self, about: Mapping[str, Any]) -> None:
        """Finish the file with metadata about the trace."""
        self._file.write(f'\n],"otherData":{json.dumps(about)}}}\n')

    def _thread(self, rank: int, track: int, lane: int) -> dict[str, int]:
        """The process and thread number of a lane, unique in the file; names the lane on first use."""
        thread = ((rank + 1) * len(TRACKS) + track) * MOST_LANES + lane
        if thread not in self._named:
            self._named.add(thread)
            name = TRACKS[track] if lane == 0 else f"{TRACKS[track]} {lane + 1}"
            self._describe(rank, thread, "thread_name", {"name": name})
            self._describe(rank, thread, "thread_sort_index", {"sort_index": track * MOST_LANES + lane})
        return {"pid": _process(rank), "tid": thread}

    def _describe(self, rank: int, thread: int | None, name: str, arguments: Mapping[str, Any]) -> None:
        where = {"pid": _process(rank)} if thread is None else {"pid": _process(rank), "tid": thread}
        self._write({"ph": "M", **where, "name": name, "args": arguments})

    def _write(
        self, event: Mapping[str, Any], shown_ns: int | None = None, long: _Open | None = None
    ) -> None:
        text = json.dumps(event)
        if shown_ns is not None:  # written as text: a float would lose nanoseconds in a long recording
            text = f'{text[:-1]}, "ts": {_microseconds(max(0, shown_ns - self._origin_ns))}}}'
        if long is not None and long.end_ns is not None:
            text = f'{text[:-1]}, "dur": {_microseconds(long.end_ns - long.start_ns)}}}'
        self._file.write(f"{',' if self.events else ''}{text}\n")
        self.events += 1


def _process(rank: int) -> int:
    """The process number of a rank; Perfetto treats process 0 as the kernel."""
    return rank + 1


def _microseconds(nanoseconds: int) -> str:
    return f"{nanoseconds // 1000}.{nanoseconds % 1000:03d}"


def _placed(lanes: list[list[_Open]], one: Slice) -> tuple[int, _Open | None]:
    """The lane in which a slice nests, and the slice clipped to nest there; None if no lane is free."""
    for lane in range(MOST_LANES):
        if lane == len(lanes):
            lanes.append([])
        around, start_ns, end_ns = lanes[lane], one.start_ns, one.end_ns
        while around and (ended_ns := around[-1].end_ns) is not None and ended_ns <= start_ns + ROUNDING_NS:
            start_ns = max(start_ns, ended_ns)
            around.pop()
        if around:
            outer = around[-1]
            if outer.end_ns is None or end_ns is None or end_ns > outer.end_ns + ROUNDING_NS:
                continue
            start_ns, end_ns = max(start_ns, outer.start_ns), min(end_ns, outer.end_ns)
        placed = _Open(start_ns, None if end_ns is None else max(start_ns, end_ns))
        around.append(placed)
        return lane, placed
    return MOST_LANES, None
