"""`probe run`: the environment that starts an agent in any Python, and changes nothing else there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from probe.boot.startup import PATH_FOLDER, interpreter_of, run_environment
from startup.pythons import Python, copy_probe

BASE = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
STARTED = "agent deferred=False torch=torch"
SEEN = """
import sys, torch
print(sys.path)
try:
    import sitecustomize
    print(sitecustomize.__file__)
except ImportError as error:
    print(error)
"""


def elsewhere(folder: Path) -> str:
    """A checkout's path folder, with the agent that only says that it was started."""
    copy_probe(folder)
    for file in (PATH_FOLDER.parent).glob("torch_probe_boot.py"):
        (folder / "probe" / "boot" / file.name).write_bytes(file.read_bytes())
    return str(folder / "probe" / "boot" / "path")


def test_a_python_with_the_hook_gets_no_path_of_ours(hooked: Python) -> None:
    found = run_environment({**BASE, "PYTHONPATH": "/theirs"}, str(hooked.executable))
    assert found == {**BASE, "PYTHONPATH": "/theirs", "PROBE": "1", "PROBE_SERVER_PYTHON": sys.executable}


def test_a_python_without_the_hook_gets_ours_in_front_once(bare: Python) -> None:
    found = run_environment({**BASE, "PYTHONPATH": "/theirs"}, str(bare.executable))
    assert found["PYTHONPATH"] == f"{PATH_FOLDER}{os.pathsep}/theirs"
    assert run_environment(found, str(bare.executable)) == found
    assert run_environment(BASE, str(bare.executable))["PYTHONPATH"] == str(PATH_FOLDER)


def test_a_program_that_is_no_python_gets_ours_too() -> None:
    assert run_environment(BASE, "sh")["PYTHONPATH"] == str(PATH_FOLDER)


def test_a_server_python_that_the_user_chose_stays() -> None:
    assert run_environment({**BASE, "PROBE_SERVER_PYTHON": "/x"}, "sh")["PROBE_SERVER_PYTHON"] == "/x"


@pytest.mark.parametrize(
    "first", ["#!{python}", "#!/usr/bin/env {python}", "#!/usr/bin/env -S A=1 {python} -u"]
)
def test_a_script_is_run_by_what_its_first_line_names(hooked: Python, tmp_path: Path, first: str) -> None:
    script = tmp_path / "torchrun"
    script.write_text(first.format(python=hooked.executable) + "\nimport torch")
    script.chmod(0o755)
    assert interpreter_of("torchrun", {"PATH": str(tmp_path)}) == str(hooked.executable)
    assert "PYTHONPATH" not in run_environment({"PATH": str(tmp_path)}, "torchrun")


def test_the_agent_starts_in_a_python_that_has_no_probe(bare: Python, tmp_path: Path) -> None:
    answer = bare.code("import torch\nprint('on')", PROBE="1", PYTHONPATH=elsewhere(tmp_path / "checkout"))
    assert answer == (0, ["torch imported", STARTED, "on"], [])


def test_the_job_sees_the_path_and_the_customisation_it_would_see_without_us(
    bare: Python, tmp_path: Path
) -> None:
    ours = elsewhere(tmp_path / "checkout")
    plain = bare.code(SEEN)
    watched = bare.code(SEEN, PROBE="1", PYTHONPATH=ours)
    assert [line for line in watched.out if line != STARTED] == plain.out
    (bare.site / "sitecustomize.py").write_text("print('customised')")
    plain = bare.code(SEEN)
    watched = bare.code(SEEN, PROBE="1", PYTHONPATH=ours)
    assert "customised" in plain.out
    assert [line for line in watched.out if line != STARTED] == plain.out


def test_a_customisation_that_fails_fails_as_without_us(bare: Python, tmp_path: Path) -> None:
    (bare.site / "sitecustomize.py").write_text("import nothing_of_that_name")
    plain = bare.code("import torch")
    watched = bare.code("import torch", PROBE="1", PYTHONPATH=elsewhere(tmp_path / "checkout"))
    assert plain.err[-1] == watched.err[-1] == "ModuleNotFoundError: No module named 'nothing_of_that_name'"
    assert watched.out == ["torch imported", STARTED]


def test_children_of_the_job_get_their_agent_too(bare: Python, tmp_path: Path) -> None:
    answer = bare.code(
        "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import torch'])",
        PROBE="1", PYTHONPATH=elsewhere(tmp_path / "checkout"),
    )
    assert answer == (0, ["torch imported", STARTED], [])


def test_the_hook_installed_and_on_the_path_starts_one_agent(hooked: Python, tmp_path: Path) -> None:
    answer = hooked.code("import torch", PROBE="1", PYTHONPATH=elsewhere(tmp_path / "checkout"))
    assert answer == (0, ["torch imported", STARTED], [])


def test_a_job_with_its_own_probe_runs_without_us(bare: Python, tmp_path: Path) -> None:
    own = bare.home / "probe.py"
    own.write_text("OWN = 'own'")
    answer = bare.code(
        "import torch, probe\nprint(probe.OWN)", PROBE="1", PYTHONPATH=elsewhere(tmp_path / "checkout")
    )
    assert answer.out == ["torch imported", "own"]
    assert len(answer.err) == 1
