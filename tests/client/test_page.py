"""docs/python.md: every block runs against a job."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness import SERVER, Job, Place

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
SCRIPTS, CELLS = (
    [block.replace("JOB", "train") for block in re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)]
    for kind in ("python", "ipython")
)


def test_what_the_page_shows_runs(
    place: Place, fork: Callable[..., Job], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PROBE_DIR", str(place.directory))
    place.start_server()
    job = fork("scheduled", "none", "--until-told", PROBE_NAME="train", PATIENT_REST_S="0.05", **SERVER)
    job.wait_for("READY")
    assert len(SCRIPTS) == len(CELLS) == 2
    for script in SCRIPTS:
        exec(compile(script, "docs/python.md", "exec"), {})
    said = capsys.readouterr().out
    assert said.startswith("step  wall_s") and "0.1" in said
    _notebook(CELLS, capsys)


def _notebook(cells: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The cells, in a shell of IPython; skipped without it."""
    if find_spec("IPython") is None:
        return
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    try:
        for cell in cells:
            shell.run_cell(cell).raise_error()
        answer = shell.user_ns["_"]
        assert answer.names == ["step", "loss"] and len(answer) == 10
        assert "next:" not in capsys.readouterr().err
        shell.run_cell("%%probe_sql nothing\nSELECT 1")
        assert "next:" in capsys.readouterr().err
        shell.run_cell("%unload_ext probe")
        assert "probe" not in shell.magics_manager.magics["line"]
    finally:
        InteractiveShell.clear_instance()

