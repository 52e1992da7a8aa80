"""The docs site has every page, and is built without a dead link."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import site_hooks
from docs.documents import ROOT


def test_every_page_is_in_the_navigation_once() -> None:
    listed = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/*.md")}
    assert sorted([*listed]) == sorted({*pages, *site_hooks.ABOVE.values()})


@pytest.mark.campaign
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    if find_spec("mkdocs") is None:
        pytest.skip("needs the extra `docs`")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )
    assert done.returncode == 0, done.stderr
    built = {path.parent.name for path in tmp_path.rglob("index.html")}
    assert {path.stem for path in (*ROOT.glob("docs/*.md"), *site_hooks.decisions())} <= built
    assert "index.md" not in (tmp_path / "index.html").read_text()  # its links lead to pages of the site
