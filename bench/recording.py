"""Creates the terminal recording of README.md by running the demo.

    python bench/recording.py           runs ./bench/demo in a terminal: docs/demo.cast and docs/demo.svg
    python bench/recording.py --draw    draws docs/demo.svg again from docs/demo.cast

The cast is asciicast v2 (`asciinema play docs/demo.cast`); the picture shows the commands and their answers
one after the other. `tests/docs/test_recording.py` fails if the demo runs other commands than the recording.
"""

from __future__ import annotations

import argparse
import fcntl
import html
import json
import os
import pty
import re
import struct
import sys
import termios
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CAST, PICTURE = ROOT / "docs" / "demo.cast", ROOT / "docs" / "demo.svg"
COLUMNS, LINES = 112, 24
SHOWN_S = 5.0
"""Seconds for which the picture shows a command and its answer."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]")
_WIDE_PX, _HIGH_PX, _EDGE_PX = 7.8, 18, 14


def record(command: list[str]) -> str:
    """Run a command in a terminal and return its output as a cast."""
    began = time.time()
    pid, terminal = pty.fork()
    if not pid:
        os.environ.update(TERM="xterm-256color", PAGER="cat", NO_COLOR="1")
        os.chdir(ROOT)
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    head = {"version": 2, "width": COLUMNS, "height": LINES, "timestamp": int(began), "title": "./bench/demo"}
    events = [json.dumps(head)]
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:  # the terminal's other side is closed
            break
        if not data:
            break
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        said = _elsewhere(data.decode("utf-8", "replace"))
        events.append(json.dumps([round(time.time() - began, 3), "o", said]))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        sys.exit(f"{command[0]} ended with {code}: nothing is written")
    return "\n".join(events) + "\n"


def _elsewhere(text: str) -> str:
    """Replace the path of this checkout with `~/probe`, padded so that later columns stay in place."""
    here = re.compile(rf"{re.escape(str(ROOT))}(\S*)")
    return here.sub(lambda found: f"~/probe{found[1]}".ljust(len(found[0])), text)


def lines(cast: str) -> list[str]:
    """The lines on the terminal at the end of a cast, without overwritten text."""
    text = "".join(json.loads(line)[2] for line in cast.splitlines()[1:])
    return [_CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]).rstrip() for line in text.split("\n")]


def scenes(cast: str) -> list[list[str]]:
    """The lines of each command (`$ …`) and its answer."""
    found: list[list[str]] = []
    for line in lines(cast):
        if line.startswith("$ "):
            found.append([])
        if found:
            found[-1].append(line)
    return [scene[: _last(scene)] for scene in found]


def _last(scene: list[str]) -> int:
    return max(number for number, line in enumerate(scene, 1) if line)


def commands(cast: str) -> list[str]:
    """The commands of a cast, with PID for the job's PID."""
    typed = [" ".join(line.strip() for line in _typed(scene)) for scene in scenes(cast)]
    return [re.sub(r"^\$ probe \d+", "$ probe PID", one) for one in typed if one.startswith("$ probe")]


def _typed(scene: list[str]) -> list[str]:
    """The lines of a scene up to the end of its command's quotes."""
    taken: list[str] = []
    for line in scene:
        taken.append(line)
        if "".join(taken).count('"') % 2 == 0:
            break
    return taken


def draw(cast: str) -> str:
    """Draw the scenes of a cast as an SVG that shows one after the other."""
    shown = [scene for scene in scenes(cast) if len(scene) > 1]
    high = max(min(len(scene), LINES) for scene in shown)
    width, height = round(COLUMNS * _WIDE_PX + 2 * _EDGE_PX), high * _HIGH_PX + 2 * _EDGE_PX
    whole_s, part = len(shown) * SHOWN_S, 100 / len(shown)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="13"',
        ' font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, monospace" role="img">',
        "<title>A recording of ./bench/demo</title>",
        f"<style>g {{ opacity: 0; animation: shown {whole_s:g}s steps(1) infinite }}",
        f"@keyframes shown {{ 0% {{ opacity: 1 }} {part:.3f}% {{ opacity: 0 }} }}",
        "text { fill: #d7dae0; white-space: pre } .typed { fill: #9cdcaa; font-weight: bold }</style>",
        f'<rect width="{width}" height="{height}" rx="8" fill="#1d2027"/>',
    ]
    for number, scene in enumerate(shown):
        parts.append(f'<g style="animation-delay: {number * SHOWN_S:g}s">')
        typed = len(_typed(scene))
        for place, line in enumerate(scene[:LINES]):
            mark = ' class="typed"' if place < typed else ""
            y = _EDGE_PX + (place + 1) * _HIGH_PX - 5
            parts.append(f'<text{mark} x="{_EDGE_PX}" y="{y}">{html.escape(line[:COLUMNS])}</text>')
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    options.add_argument("--draw", action="store_true", help="only draw the picture again")
    if not options.parse_args().draw:
        CAST.write_text(record([str(ROOT / "bench" / "demo")]), encoding="utf-8")
    PICTURE.write_text(draw(CAST.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
