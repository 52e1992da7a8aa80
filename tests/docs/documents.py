"""The documents, taken apart: fenced blocks by kind, commands in them, code and links in the text.

Only fences say what they hold, so only fences are allowed: a block of another kind, or
one without a kind, is an error, and nothing can be shown that no test runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
KINDS = {
    "console": "commands after `$ ` (continued after `> `) and what they print",
    "sh": "one command a line",
    "sql": "one query",
    "python": "a program",
    "ipython": "a notebook's cell, which tests/client/test_page runs",
    "json": "a configuration, which cli/test_mcp starts",
    "http": "routes, which test_declarations holds against the code",
}
_FENCE = re.compile(r"(`{3,}|~{3,})(.*)")
_CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")


class Block(NamedTuple):
    """A fenced block and the line it begins at."""

    kind: str
    text: str
    line: int


class Shown(NamedTuple):
    """A command of a `console` or `sh` block, and the output shown below it."""

    command: str
    output: str
    line: int


class NotRun(Exception):
    """A block that no test would run."""


def blocks(text: str) -> list[Block]:
    """All blocks of a document; raises `NotRun` for code in a form or of a kind that nothing runs."""
    return [part for part in _parts(text) if isinstance(part, Block)]


def prose(text: str) -> str:
    """The document without its blocks."""
    return "\n".join(part for part in _parts(text) if isinstance(part, str))


def _parts(text: str) -> Iterator[Block | str]:
    """Lines of text and blocks, in order."""
    kind, start, lines, fence = "", 0, [""], ""
    for number, line in enumerate(text.splitlines(), 1):
        found = _FENCE.match(line.lstrip())
        if fence:
            if line.rstrip() == fence:
                yield Block(kind, "\n".join(lines), start)
                fence = ""
            else:
                lines.append(line)
        elif found:
            kind = found[2].strip()
            if line.startswith(" ") or kind not in KINDS:
                known = ", ".join(f"{name} ({what})" for name, what in KINDS.items())
                raise NotRun(f"line {number}: {line!r} begins a block that is not run; these are: {known}")
            fence, start, lines = found[1], number, []
        elif re.match(r" {4}|\t| {1,3}\t|.*<pre\b", line):
            raise NotRun(f"line {number}: {line!r} is code without a fence, or indented like it")
        else:
            yield line
    if fence:
        raise NotRun(f"line {start}: the block is not closed")


def shown(block: Block) -> list[Shown]:
    """The commands of a `console` or `sh` block; raises `NotRun` for a console block without one."""
    return list(_console(block) if block.kind == "console" else _script(block))


def _console(block: Block) -> Iterator[Shown]:
    command, output, start = "", [""], 0
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if line.startswith("$ "):
            if command:
                yield Shown(command, "\n".join(output), start)
            command, output, start = line[2:], [], number
        elif not command:
            raise NotRun(f"line {number}: {line!r} is shown before any command")
        elif line.startswith("> ") and not output:
            command += "\n" + line[2:]
        else:
            output.append(line)
    if not command:
        raise NotRun(f"line {block.line}: a console block without a command")
    yield Shown(command, "\n".join(output), start)


def _script(block: Block) -> Iterator[Shown]:
    command, start = "", 0
    for number, line in enumerate(block.text.splitlines(), block.line + 1):
        if not command:
            start = number
        command += line
        if command.endswith("\\"):
            command += "\n"
            continue
        without_comment = re.sub(r"(^|\s+)#\s.*$", "", command)
        if without_comment.strip():
            yield Shown(without_comment.strip(), "", start)
        command = ""


def code_in_text(text: str) -> list[str]:
    """Code within the text, outside of blocks."""
    return _CODE.findall(prose(text))


def commands_in_text(text: str) -> list[str]:
    """Code in the text that is a `probe` command."""
    return [code for code in code_in_text(text) if code.startswith("probe ")]


def places_in_text(text: str, document: Path) -> dict[str, Path]:
    """Links, and code that looks like a path of this repository, with the place each means."""
    found = {
        link: (document.parent / link).resolve()
        for link in _LINK.findall(prose(text))
        if "://" not in link
    }
    tops = {path.name for path in ROOT.iterdir()}
    for code in code_in_text(text):
        top = code.removeprefix("./").partition("/")[0]
        if top in tops and re.fullmatch(r"(\./)?[\w.-]+(/[\w.-]+)*/?", code):
            found[code] = ROOT / code
    return found
