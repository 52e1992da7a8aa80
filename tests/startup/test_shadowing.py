"""A job that has its own `probe` runs as if we were not there, and is told so once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from startup.pythons import Answer, Python, copy_probe

JOB = "import torch\nimport probe\nprint(probe.OWN)"
OWN = "OWN = 'own'"


def assert_stays_out(answer: Answer, named: Path) -> None:
    assert (answer.code, answer.out) == (0, ["torch imported", "own"])
    assert len(answer.err) == 1
    assert str(named) in answer.err[0]
    assert "runs without us" in answer.err[0]


@pytest.mark.parametrize("file", ["probe.py", "probe/__init__.py"])
def test_in_the_scripts_folder(hooked: Python, file: str) -> None:
    own = hooked.home / "job" / file
    own.parent.mkdir(parents=True)
    own.write_text(OWN)
    assert_stays_out(hooked.script(JOB, PROBE="1"), own)


def test_imported_before_torch(hooked: Python) -> None:
    own = hooked.home / "job" / "probe.py"
    own.parent.mkdir()
    own.write_text(OWN)
    assert_stays_out(hooked.script("import probe\n" + JOB, PROBE="1"), own)


def test_in_the_folder_that_code_or_a_module_is_run_from(hooked: Python) -> None:
    own = hooked.home / "probe.py"
    own.write_text(OWN)
    (hooked.home / "train.py").write_text(JOB)
    assert_stays_out(hooked.code(JOB, PROBE="1"), own)
    assert_stays_out(hooked.run("-m", "train", PROBE="1"), own)


def test_on_pythonpath(hooked: Python) -> None:
    own = hooked.home / "library" / "probe.py"
    own.parent.mkdir()
    own.write_text(OWN)
    assert_stays_out(hooked.code(JOB, PROBE="1", PYTHONPATH=str(own.parent)), own)


def test_on_a_path_that_the_script_adds(hooked: Python) -> None:
    own = hooked.home / "library" / "probe.py"
    own.parent.mkdir()
    own.write_text(OWN)
    added = f"import sys\nsys.path.insert(0, {str(own.parent)!r})\n"
    assert_stays_out(hooked.script(added + JOB, PROBE="1"), own)


def test_a_folder_of_code_without_init(hooked: Python) -> None:
    own = hooked.home / "job" / "probe"
    own.mkdir(parents=True)
    (own / "linear.py").write_text("")
    answer = hooked.script("import torch\nprint('trained')", PROBE="1")
    assert answer.out == ["torch imported", "trained"]
    assert len(answer.err) == 1
    assert str(own) in answer.err[0]


def test_the_script_itself_may_be_called_probe(hooked: Python) -> None:
    answer = hooked.script("import torch\nprint('own')", name="probe.py", PROBE="1")
    assert_stays_out(answer, hooked.home / "job" / "probe.py")


def test_a_module_made_at_run_time(hooked: Python) -> None:
    text = "import sys, types\nsys.modules['probe'] = types.SimpleNamespace(OWN='own')\n"
    answer = hooked.code(text + JOB, PROBE="1")
    assert (answer.code, answer.out) == (0, ["torch imported", "own"])
    assert len(answer.err) == 1


def test_a_spawned_child_stays_out_too(hooked: Python) -> None:
    own = hooked.home / "job" / "probe.py"
    own.parent.mkdir()
    own.write_text(OWN)
    answer = hooked.script(
        """
import multiprocessing
import torch

def child():
    import probe
    print(probe.OWN, flush=True)

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    print(process.exitcode)
""",
        PROBE="1", PYTHONUNBUFFERED="1",
    )
    assert answer.out == ["torch imported", "torch imported", "own", "0"]
    assert all("runs without us" in line for line in answer.err)


def test_what_is_not_a_shadow(hooked: Python) -> None:
    started = ["torch imported", "agent deferred=False torch=torch"]
    data = hooked.home / "probe"
    data.mkdir()
    (data / "results.csv").write_text("1,2")
    assert hooked.code("import torch", PROBE="1") == (0, started, [])
    shutil.rmtree(data)
    copy_probe(hooked.home)  # as if run from a checkout
    assert hooked.code("import torch", PROBE="1") == (0, started, [])
