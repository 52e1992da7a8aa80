"""Hooks of mkdocs (`mkdocs.yml`): the pages above docs/ come into the site, and every decision into its navigation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ABOVE = {name: name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")} | {"README.md": "index.md"}
_UP = re.compile(rf"\]\((?:\.\./)?({'|'.join(ABOVE)})(?=[)#])")


def on_config(config: Any) -> Any:
    """Add the decisions to the navigation, in their order."""
    titles = {path: path.read_text(encoding="utf-8").partition("\n")[0] for path in decisions()}
    pages = [{title.lstrip("# "): path.relative_to(config.docs_dir).as_posix()} for path, title in titles.items()]
    config.nav = [*config.nav, {"Decisions": pages}]
    return config


def decisions() -> list[Path]:
    """Their pages, the oldest first."""
    return sorted((ROOT / "docs" / "decisions").glob("*.md"))


def on_files(files: Any, config: Any) -> Any:
    """Add the pages above docs/."""
    from mkdocs.structure.files import File

    for name, page in ABOVE.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](").replace('="docs/', '="')
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_page: Any) -> str:
    """Links to the pages above docs/ lead to where they are in the site."""
    return _UP.sub(lambda found: f"]({ABOVE[found[1]]}", markdown)
