"""A trace as a picture for the documents: the slices and arrows of its file over time, a lane for each level
of each track, as Perfetto draws them."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

_FILLS = ("#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#d55e00", "#8a8f00", "#777777")
"""As in the page: told apart by whoever sees fewer colours."""
_WIDE_PX, _LEFT_PX, _LANE_PX, _GAP_PX, _EDGE_PX = 1060, 170, 17, 7, 12
_LETTER_PX = 6.2


def svg(slices: Sequence[Any], arrows: Sequence[tuple[Any, Any]], title: str) -> str:
    """All slices of a trace, the first of which begins at 0; one without an end goes on to the right."""
    first = min(one.start_ns for one in slices)
    last = max(one.start_ns if one.end_ns == float("inf") else one.end_ns for one in slices)
    names = sorted({one.name for one in slices if one.category != "step"})
    fills = {name: _FILLS[place % len(_FILLS)] for place, name in enumerate(names)}
    levels = [_level(slices, one) for one in slices]
    depths: dict[tuple[int, str], int] = {}
    for one, level in zip(slices, levels, strict=True):
        depths[one.rank, one.thread] = max(depths.get((one.rank, one.thread), 0), level + 1)
    tops, top = {}, 2 * _LANE_PX
    for track in sorted(depths, key=lambda track: track[0]):
        tops[track] = top
        top += depths[track] * _LANE_PX + _GAP_PX

    def at(moment_ns: float) -> float:
        return _LEFT_PX + min(1.0, (moment_ns - first) / (last - first)) * (_WIDE_PX - _LEFT_PX - _EDGE_PX)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE_PX} {top + _EDGE_PX}" font-size="11"',
        f' font-family="system-ui, sans-serif" role="img"><title>{html.escape(title)}</title>',
        f'<rect width="{_WIDE_PX}" height="{top + _EDGE_PX}" fill="#ffffff"/>',
    ]
    for tick in range(6):
        x = at(first + tick * (last - first) / 5)
        label = f"{tick * (last - first) / 5e6:.0f} ms"
        parts.append(f'<path d="M{x:.1f} 22V{top}" stroke="#d1d9e0"/>')
        anchor = "middle" if tick < 5 else "end"
        parts.append(f'<text x="{x:.1f}" y="15" text-anchor="{anchor}" fill="#59636e">{label}</text>')
    for (rank, name), y in tops.items():
        track = f"rank {rank}  {html.escape(name)}"
        parts.append(f'<text x="{_EDGE_PX}" y="{y + 13}" fill="#1b1f24">{track}</text>')
    middles = {}
    for one, level in zip(slices, levels, strict=True):
        x, y = at(one.start_ns), tops[one.rank, one.thread] + level * _LANE_PX
        wide = max(0.6, at(one.end_ns) - x)
        middles[id(one)] = (x, y + _LANE_PX / 2)
        fill = fills.get(one.name, "#4c5866")
        said = html.escape(one.name[: int(wide / _LETTER_PX)] if wide > 3 * _LETTER_PX else "")
        parts.append(f'<rect x="{x:.2f}" y="{y}" width="{wide:.2f}" height="{_LANE_PX - 2}" fill="{fill}"/>')
        parts.append(f'<text x="{x + 3:.2f}" y="{y + 12}" fill="#ffffff">{said}</text>' if said else "")
    for last_one, other in arrows:
        (x0, y0), (x1, y1) = middles[id(last_one)], middles[id(other)]
        parts.append(f'<path d="M{x0:.1f} {y0}L{x1:.1f} {y1}" stroke="#1b1f24" marker-end="url(#tip)"/>')
    tip = '<marker id="tip" markerWidth="6" markerHeight="6" refX="5" refY="3" orient="auto">'
    parts.append(f'<defs>{tip}<path d="M0 0L6 3L0 6z" fill="#1b1f24"/></marker></defs>')
    return "\n".join([*filter(None, parts), "</svg>", ""])


def _level(slices: Sequence[Any], one: Any) -> int:
    """How many slices of its track it lies in."""
    return sum(
        other is not one and (other.rank, other.thread) == (one.rank, one.thread)
        and other.start_ns <= one.start_ns and one.end_ns <= other.end_ns
        and (other.end_ns - other.start_ns) > (one.end_ns - one.start_ns) for other in slices
    )
