"""Terminal output: width, colour and escaping.

Text from a job (names, reprs, file names) may contain escape sequences that
rewrite the screen or clipboard, so control and bidirectional characters are
shown as `\\uXXXX` on a terminal and left unchanged in a pipe.
Standard library only; runs in the command's main thread.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import TextIO

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "magenta": "35",
    "cyan": "36",
}
_ENDLESS = 10**9
NARROWEST = 40
"""Columns assumed on a narrower terminal, which then wraps."""


def escape_controls(text: str, keep: str = "") -> str:
    """`text` with C0, C1 and bidirectional control characters escaped, except those in `keep`.

    Valid inside a JSON string if `text` was.
    """
    if text.isprintable():
        return text

    def escaped(match: re.Match[str]) -> str:
        found = match.group()
        return found if found in keep else _NAMED.get(found, f"\\u{ord(found):04x}")

    return _UNSAFE.sub(escaped, text)


def display_width(text: str) -> int:
    """Width of `text` in terminal columns: wide characters count two, combining ones zero."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def cut(text: str, width: int, keep_end: bool = False) -> str:
    """`text` cut to `width` columns, with an ellipsis where it was cut."""
    if display_width(text) <= width:
        return text
    letters = reversed(text) if keep_end else iter(text)
    kept: list[str] = []
    left = width - 1
    for letter in letters:
        left -= display_width(letter)
        if left < 0:
            break
        kept.append(letter)
    return "…" + "".join(reversed(kept)) if keep_end else "".join(kept) + "…"


class Output:
    """stdout or stderr: `terminal`, `colour` and `width` (None in a pipe, where nothing is cut)."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self.stream = stream
        self.terminal = stream.isatty()
        self.moves = self.terminal and environ.get("TERM") != "dumb"
        """Whether the cursor can be moved, to overwrite earlier output."""
        self.colour = self.moves and not environ.get("NO_COLOR")
        self.width = _width(stream, environ) if self.terminal else None
        self._pager = _pager(environ) if self.terminal else ""

    def line(self, text: str = "") -> None:
        """Write one line, already made safe for a terminal."""
        self.stream.write(text + "\n")

    def lines(self, texts: Iterable[str]) -> None:
        """Write lines, already made safe for a terminal."""
        for text in texts:
            self.line(text)

    def page(self, texts: Iterable[str]) -> None:
        """Write lines like `lines`, but through the user's pager if they exceed the terminal's height."""
        found = list(texts)
        if self._pager and len(found) >= self._height():
            self.stream.flush()
            _through(self._pager, "".join(text + "\n" for text in found), self.stream)
        else:
            self.lines(found)

    def _height(self) -> int:
        try:
            return os.get_terminal_size(self.stream.fileno()).lines or _ENDLESS
        except (OSError, ValueError):
            return _ENDLESS

    def json(self, value: object) -> None:
        """Write a value as one line of JSON."""
        text = json.dumps(value, ensure_ascii=False)
        self.line(escape_controls(text) if self.terminal else text)

    def text(self, text: str) -> None:
        """Write text from the job unchanged; control characters escaped on a terminal."""
        self.stream.write(escape_controls(text.replace("\r\n", "\n"), "\n\t") if self.terminal else text)

    def style(self, text: str, *names: str) -> str:
        """`text` in the given styles, if colours are on."""
        if not self.colour or not names:
            return text
        return f"\x1b[{';'.join(_STYLES[name] for name in names)}m{text}\x1b[0m"


def _pager(environ: Mapping[str, str]) -> str:
    """The command in PAGER, `less` if unset; empty for no pager (`cat`, or PAGER set to nothing)."""
    found = environ.get("PAGER", "less").strip()
    return "" if found == "cat" or environ.get("TERM", "dumb") == "dumb" else found


def _through(pager: str, text: str, screen: TextIO) -> None:
    """Show text in a pager and wait until the user leaves it; write it directly if the pager cannot run."""
    import shlex
    import subprocess

    options = {"LESS": "FRX", "LV": "-c"}  # show colours, and exit at once if the text fits
    try:
        running = subprocess.Popen(
            shlex.split(pager), stdin=subprocess.PIPE, stdout=screen, text=True, encoding="utf-8",
            errors="backslashreplace", env={**options, **os.environ},
        )
    except (OSError, ValueError):
        screen.write(text)
        return
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # left before its end
        running.communicate(text)
    while True:
        try:
            running.wait()
            return
        except KeyboardInterrupt:  # meant for the pager, which keeps running
            continue


def _width(stream: TextIO, environ: Mapping[str, str]) -> int:
    columns = environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return max(NARROWEST, int(columns))
    try:
        # A pseudo-terminal without a size reports 0.
        return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns or 80)
    except (OSError, ValueError):
        return 80
