"""Reading the source of one program: which files belong to it, and the remarks of all rules as rows.

`__main__` prints them as JSON: the server runs it as a child, so that a file that Python's parser cannot
survive harms nothing. Nothing of the program is run or imported. Standard library only.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from probe.base.isolation import Isolation
from probe.base.redaction import redact
from probe.diagnose.code.all_rules import RULES
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import distinct
from probe.diagnose.code.source import Source

MOST_FILES, MOST_BYTES, MOST_REMARKS, LONGEST_SENTENCE = 200, 2 << 20, 50, 400
READ, CHANGED, NOT_READ = "read", "changed after the start", "not read"
_INSTALLED = re.compile(r"/(site-packages|dist-packages|lib(32|64)?/python3(\.\d+t?)?)(/|$)")
_OWN = Path(__file__).parents[2]
"""The package `probe`, which a program may import and is no part of."""


class File(NamedTuple):
    """One file of a program: what was parsed of it, or why it is not read (`state` and `reason`)."""

    path: Path
    source: Source | None
    state: str = READ
    reason: str | None = None


def folders_of(script: Path, folder: Path, paths: Sequence[str]) -> list[Path]:
    """Where Python looks for the modules of a program, in its order: the import paths `paths` of the process
    that come before those of its environment, or lie beneath the script's folder or the working directory
    `folder` (where the process did not say any: these two); then a folder `src` there."""
    own = [script.parent, folder]
    found: list[Path] = []
    before = True
    for path in paths:
        whole = folder / path
        of_environment = installed(whole)
        before = before and not of_environment
        if not of_environment and (before or any(whole.is_relative_to(one) for one in own)):
            found.append(whole)
    return list(dict.fromkeys([*(found or own), *(one / "src" for one in own)]))


def files_of(script: Path, started_ns: int, folders: Sequence[Path]) -> Iterator[File]:
    """The script, and the modules in `folders` that it imports, and theirs, each once; no installed packages.
    `started_ns`: see `rows_of`."""
    found = {_identity(script)}
    waiting = [script]
    left = MOST_BYTES
    while waiting:
        path = waiting.pop(0)
        file = _file(path, started_ns, left)
        yield file
        if file.source is None:
            continue
        left -= len(file.source.text)
        for name, level in dict.fromkeys(_imported(file.source.tree)):
            places = list(path.parents)[level - 1 : level] if level else folders
            module = _module(name, places)
            identity = None if module is None else _identity(module)
            if module is not None and identity not in found and len(found) < MOST_FILES:
                found.add(identity)
                waiting.append(module)


def _module(name: str, folders: Sequence[Path]) -> Path | None:
    """The file of a module, in the first folder that has it; None of one that is installed, or is no file."""
    for folder in folders:
        stem = os.path.join(folder, *name.split("."))
        for path in (os.path.join(stem, "__init__.py"), f"{stem}.py"):
            if os.path.isfile(path):
                return None if installed(path) else Path(path)
    return None


def installed(path: str | Path) -> bool:
    """Whether a file or folder belongs to an environment and not to the program."""
    path = os.path.normpath(path)
    beside_python = os.path.exists(os.path.join(os.path.dirname(path), "python3"))  # as torchrun lies
    return beside_python or _INSTALLED.search(path) is not None or Path(path).is_relative_to(_OWN)


def _identity(path: Path) -> object:
    try:
        known = path.stat()
    except OSError:
        return str(path)
    return known.st_dev, known.st_ino


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of modules that may be meant, and from which folder they count (0: the import path)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                words = alias.name.split(".")
                yield from ((".".join(words[:number]), 0) for number in range(1, len(words) + 1))
        elif isinstance(node, ast.ImportFrom):
            words = node.module.split(".") if node.module else []
            yield from ((".".join(words[:number]), node.level) for number in range(1, len(words) + 1))
            for alias in node.names:
                yield ".".join([*words, alias.name]), node.level


def _file(path: Path, started_ns: int, left: int) -> File:
    """One file, if it has not changed since, is a file, and no longer than `left` bytes."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(number, "rb") as opened:
            known = os.fstat(number)
            if not stat.S_ISREG(known.st_mode):
                return File(path, None, NOT_READ, "it is no file")
            if max(known.st_mtime_ns, known.st_ctime_ns) > started_ns:
                return File(path, None, CHANGED)
            if known.st_size > left:
                return File(path, None, NOT_READ, "the program has too much source")
            return File(path, Source(str(path), importlib.util.decode_source(opened.read(left))))
    except (OSError, ValueError, SyntaxError, LookupError) as error:
        return File(path, None, NOT_READ, type(error).__name__)


def rows_of(script: Path, started_ns: int, folder: Path, paths: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of python.code: one for each file (`rule` is NULL), and one for each remark. A file that has
    changed since `started_ns` is only named. For `folder` and `paths` see `folders_of`."""
    if installed(script):
        return [_row(str(script), state=NOT_READ, said="the script is an installed command")]
    files = list(files_of(script, started_ns, folders_of(script, folder, paths)))
    rows = [_row(str(file.path), state=file.state, said=file.reason) for file in files if file.source is None]
    program = Program({str(file.path): file.source for file in files if file.source is not None})
    rows += [_row(path, state=NOT_READ, said=reason) for path, reason in program.failed.items()]
    rows += [_row(source.path, state=READ) for source in program.sources]
    return rows + remarks_of(program)


def remarks_of(program: Program) -> list[dict[str, Any]]:
    """One row for each remark, in order of file and line. A rule that fails costs its own remarks
    alone; a row of the script says so."""
    rows: list[dict[str, Any]] = []
    isolation = Isolation()
    for rule in RULES if program.sources else ():
        found = [isolation.guard(rule.name, lambda find: list(find(program)))(find) for find in rule.finds]
        if None in found:
            script = program.sources[0].path
            rows.append(_row(script, state=NOT_READ, said=f"the rule {rule.name} failed"))
        rows += [
            _row(
                program.source_of[remark.node].path, state=READ, rule=rule.name, area=rule.area,
                line=getattr(remark.node, "lineno", None), said=remark.said, why=rule.why,
                remedy=rule.remedy, function=program.function_name(remark.node),
            )
            for remark in distinct(program, [one or () for one in found])
        ]
    return sorted(rows, key=lambda row: (row["file"], row["line"] or 0, row["rule"] or ""))[:MOST_REMARKS]


def _row(
    file: str, *, state: str, rule: str | None = None, area: str | None = None, line: int | None = None,
    function: str | None = None, said: str | None = None, why: str | None = None, remedy: str | None = None,
) -> dict[str, Any]:
    if said is not None:
        said = redact(said[:LONGEST_SENTENCE])
    return {
        "file": file, "state": state, "rule": rule, "area": area, "line": line,
        "function": None if function is None else function[:LONGEST_SENTENCE],
        "said": said, "why": why, "remedy": remedy,
    }
