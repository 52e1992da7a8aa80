"""Formats numbers, sizes, durations, ages, percentages and bars as text. Pure; standard library only.

A missing value is shown as `unknown` or `-`, never as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "unknown"
_BLOCKS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
_TEXTS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def value(found: object) -> float | None:
    """A number from an answer, where NaN and infinities are strings; None for anything else."""
    if isinstance(found, (int, float)):
        return float(found)
    return _TEXTS.get(found) if isinstance(found, str) else None


def figure(found: object) -> str:
    """A number with four significant digits: `0.0003`, `2.374`, `18,500`."""
    number = value(found)
    if number is None:
        return UNKNOWN
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "inf" if number > 0 else "-inf"
    if number == int(number) and abs(number) < 1e15:
        return f"{int(number):,}"
    if abs(number) >= 1e4:
        return f"{number:,.0f}"
    return f"{number:.4g}" if abs(number) >= 1e-3 else f"{number:.2e}".replace("e-0", "e-")


def short(found: object) -> str:
    """A large number with three significant digits: `18.5 k`, `1.2 M`."""
    number = value(found)
    if number is None or not math.isfinite(number):
        return figure(found)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(number) >= limit:
            return f"{number / (1e3 if unit == 'k' else limit):.3g} {unit}"
    return figure(number) if abs(number) < 100 else f"{number:,.0f}"


def duration(found: object) -> str:
    """Seconds as text: `0.21 ms`, `12 ms`, `1.5 s`."""
    number = value(found)
    if number is None:
        return UNKNOWN
    if abs(number) < 1e-3:
        return f"{number * 1e3:.2g} ms"
    return f"{number * 1e3:.3g} ms" if abs(number) < 1 else f"{number:.3g} s"


def durations(found: Sequence[object]) -> list[str]:
    """A list of seconds as text in one common unit: ms, or s if the longest is ten seconds or more."""
    numbers = [value(one) for one in found]
    longest = max((abs(one) for one in numbers if one is not None), default=0.0)
    factor, unit = (1.0, "s") if longest >= 10 else (1e3, "ms")
    return [
        UNKNOWN if one is None else f"{_three(one * factor)} {unit}" for one in numbers
    ]


def _three(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 999.5 else f"{number:.3g}"


def age(seconds: float | None) -> str:
    """How long ago, `-` for None: `0.4 s ago`, `12 s ago`, `3 min ago`, `5 h ago`, `2 d ago`."""
    if seconds is None:
        return "-"
    if seconds < 9.95:
        return f"{max(seconds, 0):.1f} s ago"
    if seconds < 120:
        return f"{seconds:.0f} s ago"
    for unit, length, until in (("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < until:
            return f"{seconds // length:.0f} {unit} ago"
    return f"{seconds // 86400:.0f} d ago"


def span(found: object) -> str:
    """A long time in two units, `-` for None: `48 s`, `12 min`, `2 h 10 min`, `3 d 4 h`."""
    number = value(found)
    if number is None:
        return "-"
    minutes = round(number / 60)
    if number < 120:
        return f"{number:.0f} s"
    if minutes < 120:
        return f"{minutes} min"
    hours = round(number / 3600)
    return f"{minutes // 60} h {minutes % 60} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def known(value: object) -> str:
    """The value as text, `-` for None."""
    return "-" if value is None else str(value)


def count(value: int | None) -> str:
    """An integer with thousands separators, `-` for None."""
    return "-" if value is None else f"{value:,}"


def size(found: object) -> str:
    """Bytes as text: `328 MiB`."""
    number = value(found)
    if number is None:
        return UNKNOWN
    for unit in ("B", "KiB", "MiB"):
        if abs(number) < 1024:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} GiB" if abs(number) < 1000 else f"{number:,.0f} GiB"


def share(found: object) -> str:
    """A ratio as a percentage; a small one is `<1 %`, and only 0 is `0 %`."""
    number = value(found)
    if number is None:
        return UNKNOWN
    return "<1 %" if 0 < number < 0.01 else f"{100 * number:.0f} %"


def bar(ratio: float, width: int) -> str:
    """A bar for a ratio up to 1, at most `width` columns, in eighths of a column."""
    eighths = max(0, min(width * 8, round(ratio * width * 8)))
    full, rest = divmod(eighths, 8)
    return "█" * full + (_BLOCKS[rest] if rest else "")


def sparkline(values: Sequence[float | None], width: int) -> str:
    """A sparkline of at most `width` columns; empty for fewer than two values."""
    found = [one for one in values if one is not None and math.isfinite(one)]
    if len(found) < 2:
        return ""
    if len(found) > width:
        found = [
            sum(part) / len(part)
            for place in range(width)
            if (part := found[place * len(found) // width : (place + 1) * len(found) // width])
        ]
    least, most = min(found), max(found)
    span = most - least
    return "".join(_LEVELS[int((one - least) / span * 7.999) if span > 0 else 3] for one in found)
