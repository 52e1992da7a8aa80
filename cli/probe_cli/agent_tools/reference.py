"""Reference texts for agents: tables with their columns, recipes, documentation pages.

They describe this version of probe and need no job. Names are looked up in lists and never used as paths.
Runs in worker threads of the MCP server; imports the standard library, and pydantic through the recipes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from probe.base import package
from probe.base.errors import UsageError
from probe.base.settings import Settings


def tables() -> str:
    """All tables, each with the meaning of a row."""
    from probe.recording.tables import TABLES

    lines = [f"{table.full_name}: one row per {table.doc}" for table in TABLES]
    return "\n".join(["NULL means not measured.", "", *lines])


def table(name: str) -> str:
    """One table with its columns, types, units and meaning."""
    from probe.recording.tables import BY_NAME, columns_of

    found = BY_NAME.get(name.lower())
    if found is None:
        raise UsageError(f"no such table: {name[:100]!r}", hint="probe://tables lists them.")
    lines = [f"{found.full_name}: one row per {found.doc}", ""]
    for column in columns_of(found):
        unit = f" [{column.unit}]" if column.unit else ""
        lines.append(f"{column.name} {column.type}{unit}: {column.doc}")
    return "\n".join([*lines, "", f"Example: {found.example}"])


def recipes(settings: Settings) -> str:
    """All recipes with severity and title."""
    from probe.diagnose.recipes.library import installed

    return "\n".join(
        f"{one.name} ({one.severity}): {one.title}" for one in installed(settings.recipes).values()
    )


def recipe(name: str, settings: Settings) -> str:
    """One recipe in full."""
    from probe.diagnose.recipes.library import installed

    found = installed(settings.recipes).get(name)
    if found is None:
        raise UsageError(f"no such recipe: {name[:100]!r}", hint="probe://recipes lists them.")
    return json.dumps(found.as_dict(), ensure_ascii=False, indent=1)


def pages() -> dict[str, Path]:
    """The documentation pages by name: from the package, or from `docs/` in a checkout."""
    folder = Path(package.FOLDER)
    packaged = folder / "docs"
    docs = packaged if packaged.is_dir() else folder.parent / "docs"
    return {path.stem: path for path in sorted(docs.glob("*.md"))}


def contents() -> str:
    """The names and titles of the pages."""
    return "\n".join(_titles())


def _titles() -> Iterator[str]:
    for name, path in pages().items():
        lines = path.read_text(encoding="utf-8").splitlines()
        yield f"{name}: {next((line[2:] for line in lines if line.startswith('# ')), name)}"


def page(name: str) -> str:
    """One page."""
    found = pages().get(name.removesuffix(".md"))
    if found is None:
        raise UsageError(f"no such page: {name[:100]!r}", hint="probe://docs lists them.")
    return found.read_text(encoding="utf-8")
