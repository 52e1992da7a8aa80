"""The job's own tables: `@probe.table` declares one, `probe.record` writes a row. Tables user.NAME.

A class is declared once, usually while its module is imported. Its ring is created when recording begins, or
immediately if it has begun; without a recording, a row costs one call that does nothing. An invalid
declaration is reported by one line on stderr. Imported without torch. HOT PATH: `record` runs inside steps,
on any thread: it never raises, waits or reads from a device.
"""

from __future__ import annotations

import functools
import operator
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from probe.base.clock import ANCHOR_NS
from probe.base.errors import UsageError
from probe.base.isolation import Isolation, describe, quietly, say
from probe.job.instruments.core.plain_numbers import plain_number
from probe.recording import declared, layout
from probe.recording.tables import Column, Table

if TYPE_CHECKING:
    from probe.job.instruments.core.recorder import Recorder
    from probe.recording.recording import Recording

_Class = TypeVar("_Class", bound=type)
_now = time.monotonic_ns
_TYPES: dict[Any, str] = {int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", str: "VARCHAR"}
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WIDEST_BITS = 63
_HINT = "Use int, float, bool or str, each also | None"
_KEYS = ("unit", "doc")
"""Keys in a field's metadata that describe its column."""


@overload
def table(cls: _Class, /) -> _Class: ...
@overload
def table(*, name: str = "") -> Callable[[_Class], _Class]: ...
def table(cls: Any = None, /, *, name: str = "") -> Any:
    """Declare your own table: a class decorator, placed above `@dataclass`.

    The fields are its columns: int, float, bool or str, each optionally `| None`. The class's docstring
    describes a row, `field(metadata={"unit": "ms", "doc": "…"})` a column. `name`: of the table, by default
    the class name in snake case; queries find it as user.NAME. The class is not changed."""
    if cls is None:
        return functools.partial(_declare, name)
    return _declare(name, cls)


def record(row: object) -> None:
    """Write one row of a declared table, at the current step. Does nothing if recording is off.

    A value that does not fit its column becomes NULL; the first one is reported on stderr."""
    HERE.record(row)


def _declare(name: str, cls: Any) -> Any:
    quietly(lambda: HERE.declare(cls, name), f"no table of {getattr(cls, '__name__', 'this')}")
    return cls


class Live(NamedTuple):
    """The agent's objects needed to write rows."""

    recording: Recording
    recorder: Recorder
    isolation: Isolation


def _nothing(*_arguments: object) -> None:
    return None


class OwnRows:
    """The tables that this process declared, and their writers. One per process, `HERE`."""

    def __init__(self) -> None:
        self.live: Live | None = None
        self.record: Callable[[object], object] = _nothing
        self._changing = threading.RLock()
        self._tables: dict[str, Table] = {}
        self._classes: dict[type, Table] = {}
        self._writers: dict[type, Callable[[Any], object]] = {}
        self._made: set[str] = set()
        """Full names of the tables with a ring in this recording."""
        self.opening: list[Callable[[Live], None]] = []
        """Callbacks for when recording begins; used by spans and events."""
        self.closing: list[Callable[[], None]] = []
        self._reported = False

    def declare(self, cls: Any, name: str = "") -> None:
        """Register the table of a dataclass; raises `UsageError`, `NoRoom` or `OSError`."""
        made = _table_of(cls, name)
        with self._changing:
            known = self._tables.get(made.full_name)
            if known is None and len(self._tables) >= declared.MOST_TABLES:
                raise UsageError(f"{declared.MOST_TABLES} tables are declared already, which is the most")
            if known is not None and known != made and made.full_name in self._made:
                raise UsageError(
                    f"{made.full_name} is being recorded with other columns or another text",
                    hint='Give it another name: @probe.table(name="…"), or begin another recording',
                )
            for old, other in list(self._classes.items()):
                again = _same_place(old, cls)  # its module was run again
                if again or (other.full_name == made.full_name and other != made):
                    self._classes.pop(old)
                    self._writers.pop(old, None)
                    if not again:
                        say(f"{made.full_name} is declared with other columns again: rows of the class that "
                            "had it before are not recorded")
            self._tables[made.full_name] = made
            self._classes[cls] = made
            if self.live is not None:
                self._open(self.live, cls, made)

    def attach(self, live: Live) -> None:
        """Write to this recording from now on. A table without room is left out, which one line reports."""
        with self._changing:
            self.live = live
            self._made.clear()
            self.record = live.isolation.guard("own tables", self._record)
            for cls, made in list(self._classes.items()):
                quietly(functools.partial(self._open, live, cls, made), f"{made.full_name} is not recorded")
            for begin in self.opening:
                quietly(functools.partial(begin, live), "spans and events are not recorded")

    def detach(self, *, forked: bool = False) -> None:
        """Write nothing from now on. `forked`: in a child, where a thread that no longer exists may hold the
        lock."""
        if forked:
            self._changing = threading.RLock()
        with self._changing:
            self.record, self.live = _nothing, None
            self._writers.clear()
            for end in self.closing:
                end()

    def ring(self, live: Live, made: Table) -> Any:
        """The ring of a table in the recording; created if it has none yet."""
        with self._changing:
            ring = live.recording.rings.get(made.full_name) or live.recording.add(made)
            self._made.add(made.full_name)
            return ring

    def _open(self, live: Live, cls: type, made: Table) -> None:
        self._writers[cls] = _writer(made, self.ring(live, made).append, live.recorder)

    def _inherited(self, row: Any) -> Callable[[Any], object] | None:
        """The writer of the row's nearest declared base class; None if there is none."""
        for cls in type(row).__mro__[1:]:
            if cls in self._writers:
                return self._writers[cls]
        if not self._reported and not any(cls in self._classes for cls in type(row).__mro__):
            self._reported = True
            say(f"probe.record did nothing: {type(row).__name__} is not declared with @probe.table. "
                "This is reported only once")
        return None

    # HOT PATH ---------------------------------------------------------------

    def _record(self, row: Any) -> None:
        write = self._writers.get(type(row)) or self._inherited(row)
        if write is not None:
            write(row)


HERE = OwnRows()


def _same_place(one: type, other: type) -> bool:
    return (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__) and one is not other


def _table_of(cls: Any, name: str) -> Table:
    """The declaration in a dataclass; raises `UsageError`."""
    dataclasses = sys.modules.get("dataclasses")  # imported already if the class is a dataclass
    if not isinstance(cls, type) or dataclasses is None or not dataclasses.is_dataclass(cls):
        raise UsageError("it is not a dataclass", hint="Write @dataclass between @probe.table and the class")
    if not isinstance(name, str):
        raise UsageError("a table's name is text")
    columns = [
        Column(field.name, _type_of(cls, field.type), *(str(field.metadata.get(key, "")) for key in _KEYS))
        for field in dataclasses.fields(cls)
    ]
    doc = " ".join((cls.__doc__ or "").split())
    if doc.startswith(f"{cls.__name__}("):  # generated by `dataclass`
        doc = f"{cls.__name__} that the job recorded"
    named = name or _WORDS.sub("_", cls.__name__).lower()
    return declared.user_table(named, doc or f"{cls.__name__} that the job recorded", columns)


def _type_of(cls: type, annotation: Any) -> str:
    """SQL type of a field; raises `UsageError`."""
    found = annotation
    if isinstance(found, str):
        from typing import get_type_hints

        names = vars(sys.modules.get(cls.__module__, operator))
        holder = type("one", (), {"__annotations__": {"it": found}})
        try:
            found = get_type_hints(holder, dict(names), dict(vars(cls)))["it"]
        except (NameError, SyntaxError, TypeError, AttributeError) as error:
            what = f"the type {annotation!r} cannot be read: {describe(error)}"
            raise UsageError(what, hint=_HINT) from None
    parts = [part for part in getattr(found, "__args__", ()) if part is not type(None)]
    found = parts[0] if len(parts) == 1 else found
    if found not in _TYPES:
        raise UsageError(f"{annotation!r} is not a column type", hint=_HINT)
    return _TYPES[found]


_ROW = """
def write(row):
    {values} = {attributes}
    if {exact}:
        append(recorder.step, now() + anchor_ns, {fields})
    else:
        append(recorder.step, now() + anchor_ns, *fitted([{values}]))
"""
"""Source of a table's row writer, generated as dataclasses generate their methods: a loop over the columns
would take half a microsecond. The names in it are attributes that `declared` has checked."""
_EXACT = {
    "BIGINT": "type({0}) is int and -limit < {0} < limit", "DOUBLE": "type({0}) is float",
    "BOOLEAN": "type({0}) is bool", "VARCHAR": "type({0}) is str",
}


def _writer(made: Table, append: Callable[..., int], recorder: Recorder) -> Callable[[Any], object]:
    """Create the function that writes an instance of the class as a row of the table."""
    columns = made.columns[2:]
    said = False

    def fitted(values: list[Any]) -> list[Any]:
        """The fields of a row whose values do not all have the declared types."""
        nonlocal said
        fields = []
        for column, value in zip(columns, values, strict=True):
            field = _field(column.type, value)
            if field is None and value is not None and not said:
                said = True
                what = f"{made.full_name}.{column.name} is {column.type}"
                say(f"{what}, so {type(value).__name__} becomes NULL. This is reported only once")
            fields.append(_NULLS[column.type] if field is None else field)
        return fields

    places = {f"v{place}": column for place, column in enumerate(columns)}
    text = _ROW.format(
        values=", ".join(places), attributes=", ".join(f"row.{column.name}" for column in columns),
        exact=" and ".join(_EXACT[column.type].format(value) for value, column in places.items()),
        fields=", ".join(f"packed({one})" if places[one].type == "VARCHAR" else one for one in places),
    )
    names: dict[str, Any] = {
        "append": append, "recorder": recorder, "now": _now, "anchor_ns": ANCHOR_NS, "fitted": fitted,
        "limit": 1 << _WIDEST_BITS, "packed": layout.packed_text,
    }
    exec(text, names)
    write: Callable[[Any], object] = names["write"]
    return write


_NULLS: dict[str, Any] = {**layout.NULLS, "VARCHAR": layout.NULL_TEXT}


def _field(kind: str, value: Any) -> Any:
    """A value as a ring stores it; None if it does not fit the SQL type."""
    if kind == "VARCHAR":
        return layout.packed_text(str.__str__(value)) if isinstance(value, str) else None
    if kind == "BOOLEAN" and isinstance(value, bool):
        return int(value)
    number = int(value) if isinstance(value, bool) else plain_number(value)
    if number is None or (kind == "BOOLEAN" and number not in (0, 1)):
        return None
    if kind == "DOUBLE":
        try:
            return float(number)
        except OverflowError:  # an integer too large for a double
            return None
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    return number if isinstance(number, int) and number.bit_length() <= _WIDEST_BITS else None
