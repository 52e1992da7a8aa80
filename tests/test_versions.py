"""Supported versions are defined in one place; documents, metadata and messages must agree with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from agent.test_pythons import interpreter
from campaigns import matrix
from harness import PATIENCE_S, Place
from probe.base import versions
from probe.base.errors import AttachRefused
from probe.boot import torch_probe_boot
from probe.outside.processes.target import check_attach, read_target
from probe_cli.commands import doctor

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = [versions.plain(pair.python) for pair in versions.PAIRS]
OLDEST, NEWEST = versions.plain(versions.OLDEST_TORCH), versions.plain(versions.NEWEST_TORCH)


def test_the_hook_the_metadata_and_the_documents_say_the_same_versions() -> None:
    assert torch_probe_boot.OLDEST == versions.OLDEST_PYTHON == min(pair.python for pair in versions.PAIRS)
    assert {versions.number(pair.oldest_torch) for pair in versions.PAIRS} == {versions.OLDEST_TORCH}
    told = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={PYTHONS[0]}"' in told
    assert re.findall(r'"Programming Language :: Python :: ([\d.]+)"', told) == PYTHONS
    assert re.findall(r'"torch>=([\d.]+)"', told) == [OLDEST]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}, torch {OLDEST} to {NEWEST}" in readme
    limits = (ROOT / "docs" / "limits.md").read_text(encoding="utf-8")
    assert f"Python {PYTHONS[0]} or newer with torch {OLDEST} or newer" in limits
    assert f"torch before {OLDEST}" in (ROOT / "docs" / "attach.md").read_text(encoding="utf-8")


def test_the_page_of_versions_has_a_row_for_every_pair_and_no_row_that_failed() -> None:
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| 3.")]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    assert sorted(row[:2] for row in rows) == sorted(matrix.pairs())
    assert {row[5] for row in rows} <= {"none", ""} and all(row[3] for row in rows if row[2] != "not run")
    assert matrix.table(page, {}) == page


def test_a_table_takes_a_new_row_and_keeps_the_others() -> None:
    python, torch = matrix.pairs()[0]
    row = matrix.row(python, torch, "today", matrix.outcome(
        "<testsuites><testsuite><testcase name='a'/><testcase name='b[x]'><failure/></testcase>"
        "<testcase name='c'><skipped message='no gdb'/></testcase></testsuite></testsuites>"
    ))
    assert row == f"| {python} | {torch} | today | 1 | 1: no gdb | 1: b |"
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    new = matrix.table(page, {(python, torch): row})
    assert row in new.splitlines()
    assert len(set(new.splitlines()) - set(page.splitlines())) <= 1


def test_the_tests_of_every_pair_exist() -> None:
    for place in (place for places in matrix.TESTS.values() for place in places):
        file, _, name = place.partition("::")
        assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8"), place


def test_a_pair_with_which_nothing_ran_has_failed() -> None:
    nothing = matrix.run(Path(sys.executable), [str(ROOT / "tests" / "test_versions.py::no_such_test")])
    assert nothing.failed == ["the tests could not be run at all"]


def test_what_failed_runs_once_more_by_name_and_alone(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    once = f"with open({str(seen)!r}, 'a') as seen:\n        assert seen.tell() or not seen.write('1')"
    for name, body in (("one", once), ("two", "pass")):
        (tmp_path / f"test_{name}.py").write_text(f"def test_{name}():\n    {body}\n", encoding="utf-8")
    tests = [f"{tmp_path}/test_{name}.py::test_{name}" for name in ("one", "two")]
    found = matrix.run(Path(sys.executable), tests)
    assert (found.passed, found.failed, seen.read_text(encoding="utf-8")) == (2, [], "1")
    (tmp_path / "test_one.py").write_text("def test_one():\n    assert 0\n", encoding="utf-8")
    found = matrix.run(Path(sys.executable), tests)
    assert (found.passed, found.failed) == (1, ["test_one"])


def test_the_page_of_versions_says_what_each_lacks() -> None:
    page = (ROOT / "docs" / "versions.md").read_text(encoding="utf-8")
    assert f"CPython {PYTHONS[0]} to {PYTHONS[-1]}, torch {OLDEST} to {NEWEST}" in page
    names = {"torch": "torch", "python": "Python"}
    told = []
    for one in versions.LACKS:
        of = names[one.of]
        last = f" (not before {of} {versions.plain(one.first)})" if one.first else ""
        told.append(f"- Before {of} {versions.plain(one.since)}{last}: {one.what}.")
    assert told == [line for line in page.splitlines() if line.startswith("- Before")]


@pytest.mark.parametrize(
    ("torch", "allowed"),
    [
        ("2.5.1+cu124", False), ("1.13.1", False), ("2.6.0", True), ("2.10.0a0+git", True), (None, True),
        ("", True),
    ],
)
def test_a_torch_is_refused_by_its_number_alone(torch: str | None, allowed: bool) -> None:
    assert (versions.refusal(torch) == "") is allowed
    assert versions.refusal(torch, (3, 9)).startswith("needs Python 3.10 or newer, this is 3.9")


def test_doctor_says_what_a_version_is_too_old_for_lacks_or_is_too_new_for() -> None:
    assert doctor.check_torch("2.1.2+cu121").level == "fail"
    oldest = doctor.check_torch(f"{OLDEST}.0")
    assert oldest.level == "ok" and "not available" in oldest.text
    newest = doctor.check_torch(f"{NEWEST}.0")
    assert (newest.level, newest.text) == ("ok", f"{NEWEST}.0")
    assert (doctor.check_torch("99.0").level, doctor.check_torch("built here").level) == ("warn", "ok")
    levels = {version: doctor.check_python(version).level for version in ((3, 9, 1), (3, 13, 0), (3, 99, 0))}
    assert levels == {(3, 9, 1): "fail", (3, 13, 0): "ok", (3, 99, 0): "warn"}
    assert "not available" in doctor.check_python((3, 10, 13)).text
    by_name = [version for version in ((3, 10, 13), (3, 11, 7), (3, 12, 1), (3, 12, 5), (3, 13, 0))
               if "by name" in doctor.check_python(version).text]
    assert by_name == [(3, 10, 13), (3, 12, 1)]


def test_what_a_version_lacks_is_what_is_not_there() -> None:
    """Compares the documented list of missing features with the installed torch."""
    import torch
    from torch._C import _distributed_c10d

    has = [
        hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
        hasattr(_distributed_c10d, "_dump_fr_trace"),
    ]
    number = versions.number(torch.__version__)
    assert number is not None
    missing = [lack.since for lack in versions.LACKS if lack.of == "torch" and number < lack.since]
    assert has.count(False) == len(missing), (has, torch.__version__, missing)


def test_probe_start_beside_a_torch_that_is_too_old_is_one_line(place: Place, tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.1.2'")
    code = (
        "import torch\nimport probe\n"
        "assert probe.start() is None\nprobe.log('a', 1.0); probe.step(); probe.stop()\nprint('trained')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=place.environ(PYTHONPATH=f"{tmp_path}:{ROOT}"), capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )
    assert (done.returncode, done.stdout) == (0, "trained\n")
    assert done.stderr == "probe: needs torch 2.6 or newer, this is 2.1.2; the job runs without it\n"
    assert not (place.directory / "recordings").exists()


@pytest.mark.parametrize("minor", [8, 9])
def test_in_a_python_that_is_too_old_the_public_functions_do_nothing(minor: int) -> None:
    code = (
        "import probe\nassert probe.start('x') is None\nprobe.log('a', 1.0); probe.step(); probe.stop()\n"
        "import sys; print('probe.job' in sys.modules)"
    )
    done = subprocess.run(
        [interpreter(minor), "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )
    said = f"probe: needs Python 3.10 or newer, this is 3.{minor}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", said)


def test_attaching_to_a_python_that_is_too_old_names_both_versions() -> None:
    old = read_target(os.getpid())._replace(version=(3, 9))
    with pytest.raises(AttachRefused, match=re.escape("runs Python 3.9, and the agent needs 3.10 or newer")):
        check_attach(old)
