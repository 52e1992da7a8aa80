"""Long output on a terminal goes through the pager of the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from terminal_harness import run_on_terminal

from probe.recording.tables import TABLES


@pytest.fixture
def quiet(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in ("PAGER", "COLUMNS", "LINES")}


def test_what_is_longer_than_the_terminal_goes_through_the_pager(
    quiet: dict[str, str], tmp_path: Path
) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\nexec sed 's/^/paged: /'\n")
    pager.chmod(0o700)
    named = {**quiet, "PAGER": str(pager)}
    code, shown = run_on_terminal(["tables"], named, 200, lines=20)
    paged = [line for line in shown.splitlines() if line.startswith("paged: ")]
    assert code == 0 and len(paged) == len(TABLES) + 1
    assert "paged:" not in run_on_terminal(["tables"], named, 200, lines=100)[1]
    assert "paged:" not in run_on_terminal(["tables"], {**named, "PAGER": ""}, 200, lines=20)[1]


def test_a_pager_that_is_not_there_or_ends_early_loses_no_answer(quiet: dict[str, str]) -> None:
    code, shown = run_on_terminal(["tables"], {**quiet, "PAGER": "/nowhere/pager"}, 200, lines=20)
    assert code == 0 and TABLES[-1].full_name in shown
    assert run_on_terminal(["tables"], {**quiet, "PAGER": "true"}, 200, lines=20)[0] == 0
