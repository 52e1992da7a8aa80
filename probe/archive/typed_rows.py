"""Typed rows: rows of a journal as a DuckDB query with the types of their table. Standard library only.

Each value is passed as text, because DuckDB guesses an array's type from a sample of its values. A value that
does not fit its column becomes NULL.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from probe.recording.tables import Column


def query(columns: Sequence[Column]) -> str:
    """A query with the columns in this order, whose one parameter is the result of `parameter`."""
    selected = ", ".join(
        f"TRY_CAST(texts[{place}] AS {column.type}) AS \"{column.name}\""
        for place, column in enumerate(columns, 1)
    )
    return f"SELECT {selected} FROM (SELECT unnest(from_json(?, '[[\"VARCHAR\"]]')) AS texts)"


def parameter(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows as the parameter of `query`; missing values are NULL."""
    return json.dumps([[_as_text(row.get(column.name)) for column in columns] for row in rows])


def _as_text(value: Any) -> str | None:
    if value is None:
        return None
    kind = type(value)
    if kind is str:
        return str(value) if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if kind is int or (kind is float and value - value == 0.0):  # twice as fast as json.dumps
        return repr(value)
    return json.dumps(value)
