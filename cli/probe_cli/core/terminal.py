"""Where output goes: whether it is a terminal, how wide, in colour, and safe to show.

Text from a job (names, reprs, file names) may carry escape sequences that
rewrite a terminal's screen or clipboard, so control and bidirectional
characters are shown as `\\uXXXX` on a terminal and left alone in a pipe.
Standard library only; the command's main thread.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import TextIO

_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_STYLES = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
}
NARROWEST = 40
"""Columns assumed at least: a narrower terminal wraps."""


def escape_controls(text: str, keep: str = "") -> str:
    """`text` with C0, C1 and bidirectional control characters written out, but those in `keep`.

    The result is valid inside a JSON string when `text` was.
    """
    if text.isprintable():
        return text

    def written_out(match: re.Match[str]) -> str:
        found = match.group()
        return found if found in keep else _NAMED.get(found, f"\\u{ord(found):04x}")

    return _UNSAFE.sub(written_out, text)


def display_width(text: str) -> int:
    """Terminal columns that `text` takes: wide characters count two, combining ones none."""
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def cut(text: str, width: int, keep_end: bool = False) -> str:
    """`text` in at most `width` columns, with an ellipsis where something was left out."""
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
    """stdout or stderr: `terminal`, `colour` and `width` (None in a pipe: nothing is cut there)."""

    def __init__(self, stream: TextIO, environ: Mapping[str, str]) -> None:
        self.stream = stream
        self.terminal = stream.isatty()
        self.colour = self.terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
        self.width = _width(stream, environ) if self.terminal else None

    def line(self, text: str = "") -> None:
        """Write one line, already made safe for a terminal."""
        self.stream.write(text + "\n")

    def text(self, text: str) -> None:
        """Write text of the job as it is; on a terminal with control characters written out."""
        self.stream.write(escape_controls(text.replace("\r\n", "\n"), "\n\t") if self.terminal else text)

    def json(self, answer: object) -> None:
        """Write an answer as one line of JSON."""
        text = json.dumps(answer, ensure_ascii=False)
        self.line(escape_controls(text) if self.terminal else text)

    def style(self, text: str, *names: str) -> str:
        """`text` in the given styles where colours are shown."""
        if not self.colour or not names:
            return text
        return f"\x1b[{';'.join(_STYLES[name] for name in names)}m{text}\x1b[0m"


def _width(stream: TextIO, environ: Mapping[str, str]) -> int:
    columns = environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns) > 0:
        return max(NARROWEST, int(columns))
    try:
        # A pseudo-terminal that nobody sized says 0.
        return max(NARROWEST, os.get_terminal_size(stream.fileno()).columns or 80)
    except (OSError, ValueError):
        return 80
