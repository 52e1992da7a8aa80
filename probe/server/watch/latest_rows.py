"""The last calls and steps of a living rank, for a reader that returns every few seconds.

Decoded rows are kept: only new rows, and rows that may have been completed since, are read and decoded again.
One object per rank; thread `probe-watch`. May import numpy (through the ring reader).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from probe.diagnose.ranks.rank_evidence import PENDING, Call, Step
from probe.recording.layout import NULLS
from probe.recording.reader import NUMBER, RingFile, Rows, Tail
from probe.recording.recording import Meta
from probe.recording.strings import DAMAGED, read_strings

_AGAIN = 64
"""Rows that are compared each time: a job completes a row within a few steps. Older calls that were pending
are read again, too."""
_Row = TypeVar("_Row", bound=tuple[Any, ...])


class RankRows:
    """The last `calls` rows of python.collectives and `steps` rows of python.steps of one rank."""

    def __init__(self, meta: Meta, calls: int, steps: int) -> None:
        self.meta = meta
        self._texts: list[str | None] = [None]
        self._calls = _LastRows(meta, "python.collectives", calls, Call, self._text)
        self._steps = _LastRows(meta, "python.steps", steps, Step, self._text)

    def read(self) -> bool:
        """Read new rows; returns whether anything has changed. Raises like `RingFile`."""
        return bool(self._steps.read() + self._calls.read())  # both, always

    @property
    def calls(self) -> tuple[Call, ...]:
        """The calls, in the order in which they were entered."""
        return tuple(sorted(self._calls.rows, key=lambda call: call.t_ns or 0))

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps, oldest first."""
        return tuple(self._steps.rows)

    def _text(self, number: int) -> str | None:
        """A text of the recording; the table only grows, so it is read again only for a new number."""
        if number >= len(self._texts):
            self._texts = read_strings(Path(self.meta.rings) / "strings", self.meta.owner)
        return self._texts[number] if number < len(self._texts) else DAMAGED


class _LastRows(Generic[_Row]):
    """The last `count` rows of one ring as named tuples of `kind`."""

    def __init__(
        self, meta: Meta, table: str, count: int, kind: type[_Row], text: Callable[[int], str | None]
    ) -> None:
        self._path = Path(meta.rings) / f"{table}.ring"
        self._again = min(_AGAIN, count)
        self._tail = Tail(self._path, meta.owner, self._again)
        self._count, self._text = count, text
        self._kind: Callable[..., _Row] = kind
        self._names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        self._numbers: list[int] = []
        self.rows: list[_Row] = []

    def read(self) -> bool:
        """Read new rows; returns whether anything has changed."""
        before = self._tail.highest
        pending = next((number for number, row in zip(self._numbers, self.rows, strict=True)
                        if getattr(row, "state", None) == PENDING), before)
        if not self._tail.read() and pending > before - self._again:
            return False
        highest = self._tail.highest
        after = max(0, highest - self._count, min(pending - 1, before - self._again))
        rows = self._tail.read_again
        assert self._tail.facts is not None
        kinds = dict(self._tail.facts[1].columns)
        if rows is None or after < before - self._again:  # an older call is pending
            with RingFile(self._path, self._tail.owner, self._tail.facts) as ring:
                rows = ring.read(after, highest)
        rows = rows[rows[NUMBER] > after]
        known = zip(self._numbers, self.rows, strict=True)
        kept = [one for one in known if highest - self._count < one[0] <= after]
        found = [*kept, *zip(rows[NUMBER].tolist(), self._decoded(rows, kinds), strict=True)]
        self._numbers, self.rows = [number for number, _ in found], [row for _, row in found]
        return True

    def _decoded(self, rows: Rows, kinds: dict[str, str]) -> list[_Row]:
        columns = [self._values(rows, name, kinds.get(name)) for name in self._names]
        return [self._kind(*values) for values in zip(*columns, strict=True)]

    def _values(self, rows: Rows, name: str, kind: str | None) -> list[Any]:
        """Values of one column as Python objects; None of a column that an older version lacks."""
        if kind is None:
            return [None] * len(rows)
        values = rows[name].tolist()
        if kind == "VARCHAR":
            meant = {number: self._text(number) for number in set(values)}
            return [meant[number] for number in values]
        null = NULLS[kind]
        known = [None if value == null else value for value in values]
        return [None if value is None else bool(value) for value in known] if kind == "BOOLEAN" else known
