"""Flame graphs of sampled stacks: as SVG, as a file for speedscope, and as the difference between two.

The SVG is self-contained: `flame_graph.js` zooms and searches in it. Where scripts are not allowed, the
picture is the same, with each frame's figures in a tooltip. Names of functions and files come from the job:
they are escaped here, and the script inserts them only as text. Standard library only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from zlib import crc32

from probe_cli.core.figures import share
from probe_cli.core.terminal import cut, escape_controls

WIDTH_PX = 1200
_ROW_PX = 18
_MARGIN_PX = 10
_HEAD_PX = 62
_KEY_PX = 18
_LETTER_PX = 6.6
NARROWEST_PX = 0.05
"""The SVG omits frames narrower than this; zooming makes all others wide enough to read."""
DEEPEST = 256
"""Number of frames drawn per stack, from the outermost; a speedscope file has all."""

_KEYS = "click or Enter: zoom; Esc: show all; arrows: move; /: search; n: next match"
_STYLE = (
    ".frame { cursor: pointer } .frame:hover rect, .frame:focus rect { stroke: #000; stroke-width: 1.5 }"
    " .frame:focus { outline: none } .frame.above { opacity: 0.55 } .frame.found rect { fill: #cc79a7 }"
    " .reset { cursor: pointer; text-decoration: underline } input { width: 240px; font: 11px monospace }"
)
"""Search results are purple, distinguishable from orange and blue without red-green vision."""

Stack = tuple[str, ...]
Stacks = Mapping[str, Counter[Stack]]
"""Sampled stacks, outermost frame first, by the name of their process or thread: `rank 0`."""


class Frame:
    """A frame and its callees, with its share of all samples: `ratio` in this graph, `other_ratio` in the
    graph it is compared with."""

    __slots__ = ("calls", "name", "other_ratio", "ratio")

    def __init__(self, name: str) -> None:
        self.name = name
        self.ratio = 0.0
        self.other_ratio = 0.0
        self.calls: dict[str, Frame] = {}

    def add(self, stack: Iterable[str], ratio: float, other_ratio: float = 0.0) -> None:
        """Add samples with this stack below the frame."""
        frame = self
        frame.ratio += ratio
        frame.other_ratio += other_ratio
        for name in stack:
            frame = frame.calls.setdefault(name, Frame(name))
            frame.ratio += ratio
            frame.other_ratio += other_ratio


def merged(stacks: Stacks) -> Frame:
    """Merge all stacks into one tree, each process below a frame with its name. All have the same width,
    regardless of their number of samples."""
    root = Frame("all")
    for name, found in stacks.items():
        for stack, many in found.items():
            root.add((name, *stack) if len(stacks) > 1 else stack, many / found.total() / len(stacks))
    return root


def difference(stacks: Stacks, others: Stacks) -> Frame:
    """Merge both sides into one tree, without frames for their names."""
    root = Frame("all")
    for found in stacks.values():
        for stack, many in found.items():
            root.add(stack, many / found.total() / len(stacks))
    for found in others.values():
        for stack, many in found.items():
            root.add(stack, 0.0, many / found.total() / len(others))
    return root


def svg(root: Frame, title: str, about: str, sides: tuple[str, str] | None = None) -> Iterator[str]:
    """The graph as SVG, outermost frames on top. With `sides`, the names of the two sides: a frame has the
    mean width of both, and is orange if the first side spends more time in it, blue if less."""
    drawn = list(_laid_out(root, sides is not None))
    head_px = _HEAD_PX + _KEY_PX * (sides is not None)
    height = head_px + _ROW_PX * (1 + max(depth for _, depth, *_ in drawn)) + _MARGIN_PX
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {height}" width="{WIDTH_PX}"'
        f' height="{height}" font-family="monospace" font-size="11" data-left="{_MARGIN_PX}"'
        f' data-inside="{WIDTH_PX - 2 * _MARGIN_PX}" data-letter="{_LETTER_PX}">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n"
        f'<rect width="{WIDTH_PX}" height="{height}" fill="#fff"/>\n'
        f'<text x="{_MARGIN_PX}" y="18" font-size="14">{_text(title)}</text>\n'
        f'<text x="{_MARGIN_PX}" y="34" fill="#555">{_text(about)}</text>\n'
        f'<text class="details" x="{_MARGIN_PX}" y="{head_px - 10}" aria-live="polite"'
        f' data-keys="{_KEYS}"/>\n'
        f'<text class="reset" x="{WIDTH_PX - _MARGIN_PX}" y="{head_px - 10}" text-anchor="end"'
        ' style="display: none">show all (Esc)</text>\n'
    )
    if sides:
        yield from _colour_key(sides)
    most = max(abs(one.ratio - one.other_ratio) for one, *_ in drawn) if sides else 0.0
    for frame, depth, left_px, width_px, caller in drawn:
        if sides:
            more = frame.ratio - frame.other_ratio
            fill = _difference_colour(more / most if most else 0.0)
            figures = (
                f"{sides[0]}: {share(frame.ratio)}, {sides[1]}: {share(frame.other_ratio)}"
                f" ({more * 100:+.1f} points)"
            )
        else:
            fill, figures = _colour(frame.name), share(frame.ratio)
        top = head_px + depth * _ROW_PX
        yield (
            f'<g class="frame" data-depth="{depth}" data-caller="{caller}">'
            f"<title>{_text(frame.name)}\n{_text(figures)}</title>"
            f'<rect x="{left_px:.2f}" y="{top}" width="{width_px:.2f}" height="{_ROW_PX - 1}" fill="{fill}"/>'
        )
        letters = int((width_px - 6) / _LETTER_PX)
        if letters >= 3:
            shown = _text(cut(_plain(frame.name), letters))
            yield f'<text x="{left_px + 3:.2f}" y="{top + 12.5}">{shown}</text>'
        yield "</g>\n"
    script = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    yield f"<script><![CDATA[\n{script}]]></script>\n</svg>\n"


def _colour_key(sides: tuple[str, str]) -> Iterator[str]:
    """The legend for the colours of a difference, above the graph."""
    left = _MARGIN_PX
    for ratio, words in ((1.0, f"more time in {sides[0]}"), (0.0, "equal"), (-1.0, f"more in {sides[1]}")):
        words, fill = cut(_plain(words), 60), _difference_colour(ratio)
        yield (
            f'<rect x="{left}" y="41" width="12" height="12" fill="{fill}" stroke="#555"/>'
            f'<text x="{left + 17}" y="51">{_text(words)}</text>\n'
        )
        left += 17 + round(_LETTER_PX * (len(words) + 3))


def speedscope(stacks: Stacks, title: str, rate_hz: float) -> str:
    """A speedscope file: one profile per name, with the samples grouped by stack."""
    numbers: dict[str, int] = {}
    profiles = []
    for name, found in stacks.items():
        ordered = sorted(found.items())
        profiles.append({
            "type": "sampled", "name": name, "unit": "seconds", "startValue": 0,
            "endValue": found.total() / rate_hz, "weights": [many / rate_hz for _, many in ordered],
            "samples": [
                [numbers.setdefault(frame, len(numbers)) for frame in stack] for stack, _ in ordered
            ],
        })
    return json.dumps({
        "$schema": "https://www.speedscope.app/file-format-schema.json", "name": title, "exporter": "probe",
        "activeProfileIndex": 0, "shared": {"frames": [{"name": _plain(name)} for name in numbers]},
        "profiles": profiles,
    })


def _laid_out(root: Frame, compared: bool) -> Iterator[tuple[Frame, int, float, float, int]]:
    """Lay out the frames: frame, depth, left edge, width, and the caller's index in this order (-1: none).
    The callees of a frame are sorted by name, so that two graphs are comparable."""
    inside_px = WIDTH_PX - 2 * _MARGIN_PX
    whole = (root.ratio + root.other_ratio) or 1.0
    waiting = [(root, 0, float(_MARGIN_PX), -1)]
    place = 0
    while waiting:
        frame, depth, left_px, caller = waiting.pop()
        width_px = inside_px * (frame.ratio + frame.other_ratio) / whole
        yield frame, depth, left_px, width_px, caller
        this, place = place, place + 1
        if depth + 1 >= DEEPEST:
            continue
        for name in sorted(frame.calls):
            below = frame.calls[name]
            below_px = inside_px * (below.ratio + below.other_ratio) / whole
            if below_px >= NARROWEST_PX:
                waiting.append((below, depth + 1, left_px, this))
            left_px += below_px


def _colour(name: str) -> str:
    """A warm colour, the same for a function in every graph."""
    number = crc32(name.encode("utf-8", "backslashreplace"))
    return f"#{230 + number % 25:02x}{130 + number // 25 % 90:02x}{60 + number // 2250 % 60:02x}"


def _difference_colour(ratio: float) -> str:
    """Grey for 0, orange for 1, blue for -1: distinguishable without red-green vision."""
    end = (240, 130, 40) if ratio > 0 else (90, 150, 210)
    return "#" + "".join(f"{round(232 + (one - 232) * min(1.0, abs(ratio))):02x}" for one in end)


def _plain(text: str) -> str:
    return escape_controls(text).encode("utf-8", "backslashreplace").decode()


def _text(text: str) -> str:
    """Text for the SVG: markup escaped, characters that XML does not allow replaced."""
    return escape("".join(one if one not in "\ufffe\uffff" else "\ufffd" for one in _plain(text)))
