"""Tests which features work in which training framework, and writes the table of docs/frameworks.md.

Creates an environment with the extra `frameworks` in a temporary folder (`--keep FOLDER` keeps and reuses it;
`--python PATH` uses an existing one), and runs tests/frameworks in it. Each cell of the table is the result
of that feature's test for that framework.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "frameworks.md"
BEGIN, END = "<!-- frameworks: begin -->", "<!-- frameworks: end -->"
FEATURES = {
    "steps counted": "test_every_step_is_counted",
    "module names": "test_modules_have_one_name_and_it_is_that_of_the_model",
    "objects found": "test_objects_are_found_by_their_usual_names",
    "checkpoint complete": "test_a_checkpoint_has_everything_or_says_what_it_lacks",
    "resume equal": "test_a_run_resumed_from_the_checkpoint_has_the_losses_of_the_whole_one",
    "`lr`": "test_the_rate_can_be_scaled_on_its_schedule",
    "logs recorded": "test_what_the_framework_logs_is_recorded_without_a_logger",
    "same losses": "test_losses_are_bit_identical_until_something_is_changed",
    "same stderr": "test_it_says_the_same_on_stderr",
}
"""Columns of the table with the test that decides each."""


def make(folder: Path) -> Path:
    """Create an environment with the frameworks and this checkout; returns its interpreter."""
    there = folder / "bin" / "python"
    if not (folder / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(there), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--editable", f"{ROOT}[test,frameworks]"], check=True)
        (folder / "ready").touch()
    return there


def cells(report: str) -> dict[str, dict[str, str]]:
    """By framework and feature: `yes`, `no`, or `–` if the test was skipped as not applicable."""
    by_test = {test: feature for feature, test in FEATURES.items()}
    found: dict[str, dict[str, str]] = {}
    for case in ElementTree.fromstring(report).iter("testcase"):
        test, _, rest = case.get("name", "").partition("[")
        if test not in by_test or not rest:
            continue
        bad = case.find("failure") is not None or case.find("error") is not None
        said = "no" if bad else "–" if case.find("skipped") is not None else "yes"
        found.setdefault(rest.removesuffix("]"), {})[by_test[test]] = said
    return found


def table(page: str, found: dict[str, dict[str, str]], when: str) -> str:
    """The page with updated rows for these frameworks; rows of others stay."""
    before, _, rest = page.partition(BEGIN)
    old, _, after = rest.partition(END)
    rows = {
        line.strip("| ").partition(" |")[0]: line for line in old.splitlines()
        if line.startswith("|") and not re.match(r"\| framework|\|-", line)
    }
    for name, said in found.items():
        marks = [said.get(feature, "not run") for feature in FEATURES]
        rows[name] = f"| {name} | " + " | ".join([*marks, when]) + " |"
    head = "| framework | " + " | ".join([*FEATURES, "when"]) + " |\n|" + "---|" * (len(FEATURES) + 2)
    return f"{before}{BEGIN}\n{head}\n" + "\n".join(rows.values()) + f"\n{END}{after}"


def main() -> int:
    """Run the tests and write the table; returns pytest's exit status."""
    options = argparse.ArgumentParser(prog="tests/run --campaign frameworks", description=__doc__)
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the environment there, and use it")
    options.add_argument("--python", type=Path, help="an interpreter that has the frameworks")
    options.add_argument("-k", dest="only", help="as pytest's: some of the tests")
    options.add_argument("--no-table", action="store_true", help="leave docs/frameworks.md as it is")
    given = options.parse_args()
    folder = given.keep or Path(tempfile.mkdtemp(prefix="probe-frameworks-"))
    try:
        python = given.python or make(folder)
        with tempfile.TemporaryDirectory(prefix="probe-frameworks-") as out:
            report = Path(out, "report.xml")
            words = ["-k", given.only] if given.only else []
            status = subprocess.run(
                [str(python), "-m", "pytest", "-q", "-m", "campaign or not campaign",
                 "-o", f"cache_dir={out}/cache", f"--junitxml={report}", "tests/frameworks", *words],
                cwd=ROOT, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, check=False,
            ).returncode
            if not given.no_table and report.exists():
                found = cells(report.read_text(encoding="utf-8"))
                today = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
                PAGE.write_text(table(PAGE.read_text(encoding="utf-8"), found, today), encoding="utf-8")
    finally:
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return status
