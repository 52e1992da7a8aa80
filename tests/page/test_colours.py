"""The colours of the page, in the light and in the dark scheme: text can be read on its ground, and curves
differ for whoever sees fewer colours."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

from probe.page import gateway

STYLE = (Path(gateway.__file__).parent / "static" / "style.css").read_text(encoding="utf-8")
BLOCKS = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
LIGHT, DARK = (dict(re.findall(r"--(\w+): (#\w+)", block)) for block in BLOCKS)
SCHEMES = {"light": LIGHT, "dark": {**LIGHT, **DARK}}
READABLE = 4.5
"""Contrast of text, by WCAG 2.2, level AA."""
APART = 12.0
"""Least difference of two colours in CIELAB; neighbours on a printed scale of greys differ by about 5."""
SEEN = {
    "all colours": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "no red": ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.0520)),
    "no green": ((0.3673, 0.8606, -0.2280), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)),
    "no blue": ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)),
}
"""What is left of linear red, green and blue (Machado, Oliveira and Fernandes 2009)."""
Colour = tuple[float, float, float]


def linear(colour: str) -> Colour:
    """Red, green and blue as amounts of light."""
    parts = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    red, green, blue = (int(parts[place : place + 2], 16) / 255 for place in (0, 2, 4))
    return (light(red), light(green), light(blue))


def light(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


def contrast(one: str, other: str) -> float:
    dark, bright = sorted(weighted(linear(colour), (0.2126, 0.7152, 0.0722)) for colour in (one, other))
    return (bright + 0.05) / (dark + 0.05)


def weighted(colour: Colour, weights: Colour) -> float:
    return sum(part * weight for part, weight in zip(colour, weights, strict=True))


def lab(colour: Colour) -> Colour:
    x, y, z = (
        root(weighted(colour, row) / white)
        for row, white in (((0.4124, 0.3576, 0.1805), 0.9505), ((0.2126, 0.7152, 0.0722), 1.0),
                           ((0.0193, 0.1192, 0.9505), 1.089))
    )
    return (116 * y - 16, 500 * (x - y), 200 * (y - z))


def root(part: float) -> float:
    return max(0.0, part) ** (1 / 3) if part > 0.008856 else 7.787 * max(0.0, part) + 16 / 116


@pytest.mark.parametrize("scheme", SCHEMES)
def test_text_can_be_read_on_its_ground(scheme: str) -> None:
    colours = SCHEMES[scheme]
    for name in ("text", "dim", "link", "alarm", "notice", "ok"):
        for ground in ("ground", "panel"):
            assert contrast(colours[name], colours[ground]) >= READABLE, (name, ground)


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_no_two_curves_or_phases_look_alike(scheme: str, seen: str) -> None:
    curves = {name: linear(value) for name, value in SCHEMES[scheme].items() if re.fullmatch("c[0-6]", name)}
    assert len(curves) == 7
    left = {
        name: lab((weighted(one, SEEN[seen][0]), weighted(one, SEEN[seen][1]), weighted(one, SEEN[seen][2])))
        for name, one in curves.items()
    }
    for one, other in combinations(left, 2):
        apart = sum((here - there) ** 2 for here, there in zip(left[one], left[other], strict=True)) ** 0.5
        assert apart >= APART, (one, other)
