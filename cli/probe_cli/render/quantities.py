"""Formats numeric columns for reading: three digits and a unit, one unit per column.

The unit comes from the column's name (`wall_s`, `rss_bytes`, `avg(duration)`), as everywhere in probe;
columns without a unit in their name are left unchanged. Only for a terminal: a pipe gets every digit. Pure,
standard library only.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from probe_cli.core.figures import value

_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "bytes": ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")),
}
_FACTORS = {"s": ("s", 1.0), "ms": ("s", 1e-3), "us": ("s", 1e-6), "ns": ("s", 1e-9), "bytes": ("bytes", 1.0)}
_AGGREGATE = re.compile(r"(?:avg|sum|min|max|mean|median|any_value|first|last)\(([\w.\"]+)\)$")
_SUFFIX = re.compile(r"(?:^|_)(s|ms|us|ns|bytes)$")
_NAMED = {"duration": "s", "time_offset": "s", "bytes": "bytes"}
"""Units of columns whose names, chosen for compatibility with other tools, do not contain them."""
_A_TIME_NS = 10**17
"""Threshold in nanoseconds: wall times since 1973 are larger, durations up to three years are smaller."""


def formatted(name: str, values: Sequence[Any]) -> Callable[[Any], str] | None:
    """A function that formats the numbers of a column; None if the column has no known unit."""
    unit = unit_of(name)
    numbers = [number for one in values if not isinstance(one, bool) if (number := value(one)) is not None]
    finite = [abs(number) for number in numbers if math.isfinite(number)]
    if unit is None or not finite:
        return None
    if unit == "ns" and min(finite) > _A_TIME_NS:
        return _wall_time
    base, factor = _FACTORS[unit]
    scale, word = _scale(base, max(finite) * factor)

    def text(found: Any) -> str:
        number = value(found)
        if number is None or not math.isfinite(number):
            return str(found)
        return f"{three_digits(number * factor / scale)} {word}"

    return text


def unit_of(name: str) -> str | None:
    """The unit in the name of a column: `s`, `ms`, `us`, `ns`, `bytes`; None for others and for rates."""
    match = _AGGREGATE.match(name)
    plain = (match[1] if match else name).rpartition(".")[2].strip('"').lower()
    if plain in _NAMED:
        return _NAMED[plain]
    found = _SUFFIX.search(plain)
    return found[1] if found and "_per_" not in plain and plain != found[1] else None


def _scale(base: str, largest: float) -> tuple[float, str]:
    scales = _SCALES[base]
    if largest == 0:
        return next(one for one in scales if one[0] == 1.0)
    return next((one for one in scales if largest >= one[0]), scales[-1])


def three_digits(number: float) -> str:
    """`157`, `0.0484`, `1,204`, `2.7e-4`, `0`."""
    if number == 0:
        return "0"
    if abs(number) >= 999.5:
        return f"{number:,.0f}"
    if abs(number) >= 1e-3:
        return f"{number:.3g}"
    mantissa, _, exponent = f"{number:.2g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


def _wall_time(found: Any) -> str:
    """The number, for use in a query, followed by the local time."""
    if not isinstance(found, (int, float)) or isinstance(found, bool):
        return str(found)
    return f"{found}  {time.strftime('%d %b %H:%M:%S', time.localtime(found * 1e-9))}"
