"""Reading the source of one program: which files belong to it, and the remarks of all rules as rows.

`python -m probe.diagnose.code SCRIPT STARTED_NS FOLDER...` prints them as JSON: the server runs it as a
child, so that a file that Python's parser cannot survive harms nothing. Nothing of the program is run or
imported. Standard library only.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from probe.diagnose.code.data_rules import RULES as DATA
from probe.diagnose.code.effect_rules import RULES as EFFECT
from probe.diagnose.code.loop_rules import RULES as LOOP
from probe.diagnose.code.model_rules import RULES as MODEL
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout_rules import RULES as ROLLOUT
from probe.diagnose.code.rule import Rule

RULES: tuple[Rule, ...] = (*EFFECT, *LOOP, *DATA, *MODEL, *ROLLOUT)
MOST_FILES, MOST_BYTES, MOST_REMARKS = 200, 2 << 20, 50
_INSTALLED = ("site-packages", "dist-packages")
READ, CHANGED, NOT_READ = "read", "changed after the start", "not read"


def files_of(script: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """The script, and the modules in `folders` that it imports, and theirs; never installed packages."""
    found = {script: None}
    waiting = [script]
    while waiting and len(found) <= MOST_FILES:
        file = waiting.pop(0)
        yield file
        for name in _imported(file):
            for folder in (file.parent, *folders):
                stem = folder.joinpath(*name.split("."))
                for path in (stem.with_suffix(".py"), stem / "__init__.py"):
                    installed = any(word in path.parts for word in _INSTALLED)
                    if path not in found and not installed and path.is_file():
                        found[path] = None
                        waiting.append(path)


def _imported(file: Path) -> Iterator[str]:
    try:
        if file.stat().st_size > MOST_BYTES:
            return
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if base:
                yield base
            yield from (f"{base}.{alias.name}".strip(".") for alias in node.names if alias.name != "*")


def rows_of(script: Path, started_ns: int, folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Rows of python.code: one for each file (`rule` is NULL), and one for each remark."""
    texts: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    size = 0
    for file in files_of(script, folders):
        try:
            known = file.stat()
            size += known.st_size
            text = file.read_bytes().decode() if size <= MOST_BYTES else None
        except (OSError, ValueError) as error:
            rows.append(_row(str(file), state=NOT_READ, said=type(error).__name__))
            continue
        if text is None:
            rows.append(_row(str(file), state=NOT_READ, said="the program has too much source"))
        elif known.st_mtime_ns > started_ns:
            rows.append(_row(str(file), state=CHANGED))
        else:
            texts[str(file)] = text
    program = Program(texts)
    for path, reason in program.failed.items():
        rows.append(_row(path, state=NOT_READ, said=reason))
    rows += [_row(source.path, state=READ) for source in program.sources]
    return rows + remarks_of(program)


def remarks_of(program: Program) -> list[dict[str, Any]]:
    """One row for each remark, in order of file and line."""
    rows = [
        _row(
            program.source_of[remark.node].path, state=READ, rule=rule.name, area=rule.area,
            line=getattr(remark.node, "lineno", None), said=remark.said, why=rule.why, remedy=rule.remedy,
            function=program.function_name(remark.node),
        )
        for rule in RULES for remark in rule.find(program)
    ]
    return sorted(rows, key=lambda row: (row["file"], row["line"], row["rule"]))[:MOST_REMARKS]


def _row(
    file: str, *, state: str, rule: str | None = None, area: str | None = None, line: int | None = None,
    function: str | None = None, said: str | None = None, why: str | None = None, remedy: str | None = None,
) -> dict[str, Any]:
    return {
        "file": file, "state": state, "rule": rule, "area": area, "line": line, "function": function,
        "said": said, "why": why, "remedy": remedy,
    }
