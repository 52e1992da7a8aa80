"""Progress of training, read from the rings.

Reads the rings from outside, whether their writer is alive, hung or dead; costs the job nothing. `History`
remembers the rows it has read, so that further reads cost only the new rows. Runs in threads of the server,
or in the command. May import numpy (through the ring reader).
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.base import clock
from probe.base.errors import RecordingError
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER
from probe.recording.reader import Rows, Tail, open_ring
from probe.recording.recording import Meta
from probe.recording.strings import read_strings

USUAL_STEPS = 64
"""The usual step time is the median of this many: enough to be stable, few enough to follow a schedule."""
RECENT_STEPS = 5
"""The recent step time is the median of this many: of five, two may be an accident."""
WARM_UP_STEPS = 3
"""The first steps warm caches and compile: no usual step time before they end (as in the governor)."""
_SIGNS = ("python.steps", "python.pulse", "python.batches", "python.losses", "python.scalars")
"""Tables whose rows the training thread writes itself."""
_LAST_BATCHES, _FEW_BATCHES = 256, 16
"""Rows of python.batches that are read: the first limits the counted batches of an evaluation; the second is
enough for a step of training."""
_READ = (*_SIGNS, "process.memory")
_LAST_INTERVALS = 4
"""Rows of python.intervals that are read: intervals may be nested."""
_CLOCKS_APART_S = 1.0
"""New rows this far in the future, or this much older than the last read, mean that the wall clock was set
between the starts of the two processes."""


@dataclass(frozen=True)
class Progress:
    """Progress of training. Times are seconds before the read; None if there is no row."""

    steps: int
    """Steps finished since recording began."""
    step: int | None
    """The last finished step."""
    last_step_s: float | None
    """Since the end of the last step; None before the first."""
    usual_step_s: float | None
    """Median of the last unsampled steps; None before the first three."""
    longest_pause_s: float | None
    """The longest step since the warm-up, from which the run recovered."""
    quiet_s: float | None
    """Since the training thread wrote a row of any kind."""
    phase: str | None
    phase_s: float | None
    """Since the phase began."""
    pending_loader: str | None
    """The loader of the pending batch."""
    pending_s: float | None
    batches: int
    """Batches that arrived since the last step, within the rows read."""
    last_batch_s: float | None
    """Since the last batch arrived."""
    sample_s: float | None
    """Since the agent's own thread took its last memory sample, for which it needs the GIL."""
    sample_interval_s: float | None
    recorded_s: float
    """Since recording began."""
    interval: str | None = None
    """Kind of the current interval, as in python.intervals: `evaluation`, `checkpoint`, …"""
    interval_s: float | None = None
    """Since it began."""


class History:
    """One recording's rings, read repeatedly. Not thread-safe."""

    def __init__(self, meta: Meta) -> None:
        self.meta = meta
        self._folder = Path(meta.rings)
        self._tails = {
            table: Tail(
                self._folder / f"{table}.ring", meta.owner, _FEW_BATCHES if table == "python.batches" else 1
            ) for table in _READ
        }
        self._intervals = Tail(self._folder / "python.intervals.ring", meta.owner, _LAST_INTERVALS)
        self._batches: tuple[object, int | None, _Batches] | None = None
        self._last: dict[str, Any] = {}
        self._texts: list[str | None] = [None]
        self._walls: deque[float] = deque(maxlen=USUAL_STEPS)
        self._usual_s: float | None = None
        self._interval: tuple[str | None, int] | None = None
        self._longest_s: float | None = None
        self._newest_ns: int | None = None
        self._read_ns = 0
        self._ahead_ns = 0
        """How far our wall clock is ahead of the writer's."""
        self.disregard_next = False
        """Set if the current step is delayed from outside (stopped): it does not count as a usual pause."""

    def read(self, now_ns: int | None = None) -> Progress | None:
        """The progress now; None if the recording is gone or damaged."""
        # Read the clock first: time without a CPU between reading rows and clock must not count as quiet.
        began_ns = clock.wall_ns() if now_ns is None else now_ns
        try:
            for table, tail in self._tails.items():
                if tail.read():
                    self._take(table, tail)
            self._read_interval()
            return self._progress(began_ns, clock.wall_ns() if now_ns is None else now_ns)
        except (OSError, RecordingError):
            return None

    def new_step_s(self) -> float | None:
        """Seconds since the last step ended, if it ended after the last read of any kind; else None. Reads
        one ring: a fifth of the work of `read`."""
        began_ns = clock.wall_ns()
        tail = self._tails["python.steps"]
        before = tail.highest
        try:
            if tail.read():
                self._take("python.steps", tail)
        except (OSError, RecordingError):
            return None
        last = self._last.get("python.steps")
        ended_ns = None if last is None or tail.highest == before else _time(last)
        if ended_ns is None:
            return None
        return max(0.0, (began_ns - self._clock_ahead(ended_ns, began_ns, clock.wall_ns()) - ended_ns) / 1e9)

    @property
    def steps(self) -> int:
        """Number of recorded steps, as of the last read."""
        return self._tails["python.steps"].highest

    @property
    def usual_step_s(self) -> float | None:
        """Median of the last unsampled steps, as of the last read; None before the first three."""
        return self._usual_s if self.steps >= WARM_UP_STEPS else None

    @property
    def recent_step_s(self) -> float | None:
        """Median of the last few unsampled steps, as of the last read; None before there are as many."""
        few = [self._walls[place] for place in range(-min(RECENT_STEPS, len(self._walls)), 0)]
        return statistics.median(few) if len(few) == RECENT_STEPS else None

    @property
    def last_step(self) -> int | None:
        """Number of the last finished step, as of the last read."""
        last = self._last.get("python.steps")
        return None if last is None else int(last["step"])

    # Reading ----------------------------------------------------------------

    def _take(self, table: str, tail: Tail) -> None:
        """Process the new rows of a table."""
        if table == "python.batches":
            self._read_batches()
        elif tail.rows is not None and len(tail.rows):
            self._last[table] = tail.rows[-1]
            if table == "python.steps":
                self._take_steps(tail.new)

    def _take_steps(self, rows: Rows | None) -> None:
        """Update the usual and longest step times with new rows of python.steps."""
        if rows is None or not len(rows):
            return
        walls_s = rows["wall_s"] - _seconds(rows, "held_s")  # time held by an action does not count
        worked_s = walls_s - _seconds(rows, "eval_s") - _seconds(rows, "checkpoint_s")
        self._walls.extend(worked_s[rows["sampled"] != 1][-USUAL_STEPS:].tolist())
        self._usual_s = statistics.median(self._walls) if self._walls else None
        waited = walls_s[rows["step"] >= WARM_UP_STEPS]
        if self.disregard_next:
            self.disregard_next = False
            waited = waited[1:]
        if len(waited):
            self._longest_s = max(self._longest_s or 0.0, float(waited.max()))

    def _read_interval(self) -> None:
        """Read the current interval; a recording of an older version has none."""
        try:
            unnamed = self._interval is not None and self._interval[0] is None  # its string was yet to come
            if self._intervals.read() or unnamed:
                self._interval = _under_way(self._intervals.rows, self._text)
        except (OSError, RecordingError):
            self._interval = None

    def _read_batches(self) -> None:
        """Read the last batches: a few, or more if all of those were requested since the last step."""
        tail = self._tails["python.batches"]
        rows = tail.rows
        assert rows is not None
        last = self._last.get("python.steps")
        if len(rows) and tail.highest > _FEW_BATCHES and (last is None or rows[0]["t_ns"] > last["t_ns"]):
            with open_ring(self.meta, "python.batches") as ring:
                rows = ring.read(max(0, tail.highest - _LAST_BATCHES), tail.highest)
        if len(rows):
            self._last["python.batches"] = rows

    # Interpreting -----------------------------------------------------------

    def _text(self, number: Any) -> str | None:
        """A string of the recording; the string table only grows, so it is reread only for a new number."""
        index = int(number)
        if index >= len(self._texts):
            version = self._tails["python.steps"].version
            self._texts = read_strings(self._folder / "strings", self.meta.owner, version)
        return self._texts[index] if index < len(self._texts) else None

    def _progress(self, now_ns: int, read_ns: int) -> Progress:
        """The progress as of `now_ns`, from rows read by `read_ns`."""
        times = {name: _time(row) for name, row in self._last.items() if name != "python.batches"}
        batches = self._batches_since(times.get("python.steps"))
        times["python.batches"] = batches.newest_ns
        newest_ns = max((time for time in times.values() if time is not None), default=None)
        now_ns -= self._clock_ahead(newest_ns, now_ns, read_ns)

        def ago(t_ns: int | None) -> float | None:
            return None if t_ns is None else max(0.0, (now_ns - t_ns) / 1e9)

        signs = [times[name] for name in _SIGNS if times.get(name) is not None]
        phase, phase_ns = self._phase(batches)
        return Progress(
            steps=self.steps,
            step=self.last_step,
            last_step_s=ago(times.get("python.steps")),
            usual_step_s=self.usual_step_s,
            longest_pause_s=self._longest_s,
            quiet_s=ago(max(signs, default=None)),  # type: ignore[type-var]
            phase=phase, phase_s=ago(phase_ns),
            pending_loader=batches.pending_loader, pending_s=ago(batches.pending_ns),
            batches=batches.arrived, last_batch_s=ago(batches.arrived_ns),
            interval=None if self._interval is None else self._interval[0],
            interval_s=None if self._interval is None else ago(self._interval[1]),
            sample_s=ago(times.get("process.memory")),
            sample_interval_s=_number(self.meta.settings.get("memory_interval_s")),
            recorded_s=ago(self.meta.started_ns) or 0.0,
        )

    def _batches_since(self, last_step_ns: int | None) -> _Batches:
        """The last batches interpreted; cached while they and the last step stay the same. A row may come
        before its strings do: it is interpreted again then."""
        rows, known = self._last.get("python.batches"), self._batches
        if known is None or known[0] is not rows or known[1] != last_step_ns or not known[2].complete:
            known = self._batches = rows, last_step_ns, _Batches(rows, last_step_ns, self._text)
        return known[2]

    def _clock_ahead(self, newest_ns: int | None, now_ns: int, read_ns: int) -> int:
        """How far our clock is ahead of the writer's, derived from rows that arrived between two reads: they
        cannot be older than the time between."""
        first, came = self._newest_ns is None, newest_ns != self._newest_ns
        between_ns, self._read_ns, self._newest_ns = now_ns - self._read_ns, now_ns, newest_ns
        if newest_ns is not None and came:
            age_ns = now_ns - newest_ns
            if newest_ns - read_ns > _CLOCKS_APART_S * 1e9:
                self._ahead_ns = age_ns
            elif not first:
                apart = age_ns > between_ns + _CLOCKS_APART_S * 1e9
                self._ahead_ns = age_ns - between_ns if apart else 0
        return self._ahead_ns

    def _phase(self, batches: _Batches) -> tuple[str | None, int | None]:
        """The phase, if its last change belongs to the current step (not every step is timed)."""
        if batches.pending_ns is not None:
            return "data", batches.pending_ns
        row, last = self._last.get("python.pulse"), self._last.get("python.steps")
        # NULL_INTEGER: the step that was running at attach has no number.
        current = (0, NULL_INTEGER) if last is None else (int(last["step"]) + 1,)
        if row is None or int(row["step"]) not in current:
            return None, None
        began = _time(row)
        if batches.arrived_ns is not None and began is not None and batches.arrived_ns > began:
            return "other", batches.arrived_ns
        return self._text(row["phase"]), began


class _Batches:
    """The pending and arrived batches, from the last rows of python.batches."""

    def __init__(
        self, rows: Rows | None, last_step_ns: int | None, text: Callable[[int], str | None]
    ) -> None:
        self.pending_loader: str | None = None
        self.pending_ns: int | None = None
        self.arrived = 0
        self.arrived_ns: int | None = None
        self.newest_ns: int | None = None
        self.complete = True
        """Whether all of their strings are known."""
        if rows is None or not len(rows):
            return
        numbers = rows["state"].tolist()
        meant = {number: text(number) for number in set(numbers)}
        states = [meant[number] for number in numbers]
        took_s = rows["fetch_s"].copy()
        took_s[took_s == NULL_DOUBLE] = 0.0
        ends = (rows["t_ns"] + (took_s * 1e9).astype("int64")).tolist()
        self.newest_ns = max(ends)
        if states[-1] == "pending":
            self.pending_ns = int(rows[-1]["t_ns"])
            self.pending_loader = text(int(rows[-1]["loader"]))
        self.complete = None not in states and not (self.pending_ns and self.pending_loader is None)
        done = [end for state, end in zip(states, ends, strict=True) if state == "done"]
        self.arrived = sum(last_step_ns is None or end > last_step_ns for end in done)
        self.arrived_ns = max(done, default=None)


def interval_under_way(meta: Meta) -> tuple[str | None, int] | None:
    """Kind and start (wall ns) of the training thread's current interval; None if there is none, or if the
    recording's version has no intervals."""
    try:
        with open_ring(meta, "python.intervals") as ring:
            highest = ring.highest(0)
            rows = ring.read(max(0, highest - _LAST_INTERVALS), highest)
            version = ring.version
    except (OSError, RecordingError):
        return None

    def text(number: Any) -> str | None:
        try:
            texts = read_strings(Path(meta.rings) / "strings", meta.owner, version)
        except (OSError, RecordingError):
            return None
        return texts[int(number)] if int(number) < len(texts) else None

    return _under_way(rows, text)


def _under_way(rows: Rows | None, text: Callable[[Any], str | None]) -> tuple[str | None, int] | None:
    """Kind and start of the last interval without an end."""
    rows = rows[rows["duration_s"] == NULL_DOUBLE] if rows is not None else None
    return (text(rows[-1]["kind"]), int(rows[-1]["t_ns"])) if rows is not None and len(rows) else None


def _seconds(rows: Rows, column: str) -> Any:
    """A column with 0 for NULL; 0 if the recording's version lacks the column."""
    if column not in (rows.dtype.names or ()):
        return 0.0
    found = rows[column].copy()
    found[found == NULL_DOUBLE] = 0.0
    return found


def _time(row: Any) -> int | None:
    t_ns = int(row["t_ns"])
    return None if t_ns == NULL_INTEGER else t_ns


def _number(text: str | None) -> float | None:
    try:
        return float(text or "")
    except ValueError:
        return None
