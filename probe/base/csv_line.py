"""A row as a line of CSV (RFC 4180): the same for the server's answers and the command's files.

Standard library only; any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def csv_line(values: Iterable[Any]) -> str:
    """JSON values as one line, without a line end: NULL is empty, an empty text is `""`, lists and objects
    are JSON. Raises `RecursionError` for a value that is nested too deeply."""
    return ",".join(map(_field, values))


def _field(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if text and not any(letter in text for letter in ',"\n\r') and text == text.strip():
        return text
    return '"' + text.replace('"', '""') + '"'
