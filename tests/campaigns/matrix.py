"""Tests every supported pair of Python and torch in its own environment: `tests/run --matrix [PAIR …]`.

A pair is written `3.10+2.6.0`; without one, all pairs of `base/versions.py` are tested in turn. Environments
are created in a temporary folder and removed afterwards, because torch's wheels take gigabytes (`--keep
FOLDER` keeps and reuses them). Each run tests jobs bit for bit, the start-up hook, acting, snippets,
attaching and NaN tracing; a hook that raises fails its test. The table in docs/versions.md is updated row by
row: rows of pairs that were not tested stay.
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
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from control.pythons import found_interpreter
from probe.base import versions

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
HEAD = "| Python | torch | when | passed | skipped | failed |\n|---|---|---|---|---|---|\n"
_JOBS = "tests/jobs/test_tables_match_the_program.py"
_STARTUP = "tests/startup/test_real_jobs.py"
TESTS = {
    "jobs": (
        f"{_JOBS}::test_losses_and_parameters_are_those_of_the_job_without_probe",
        f"{_JOBS}::test_every_step_is_recorded_with_its_micro_steps",
        f"{_JOBS}::test_sampled_steps_show_modules_in_their_stages",
    ),
    "start-up": (
        f"{_STARTUP}::test_a_job_with_its_own_probe_trains_as_without_us",
        f"{_STARTUP}::test_a_spawned_rank_gets_an_agent_at_its_first_step_and_a_data_worker_none",
        "tests/startup/test_hook.py::test_a_torch_that_is_too_old_is_declined_in_one_line_and_an_odd_one_is_not",
    ),
    "acting": ("tests/acting/test_boundaries.py", "tests/acting/test_eval_changing.py"),
    "snippets": (
        "tests/control/test_keeping.py",
        "tests/control/test_watching.py::test_what_a_snippet_cleans_up_is_not_cut_short",
        "tests/control/test_watching.py::test_a_collective_is_not_called_under_any_name",
    ),
    "attaching": ("tests/attach/test_attached_jobs.py",),
    "learning": (
        "tests/agent/test_nonfinite.py::test_a_planted_nan_is_traced_to_its_module_direction_step_and_batch",
        "tests/instruments/test_loss_graph.py",
        "tests/instruments/test_gradients.py",
    ),
    "versions": ("tests/test_versions.py::test_what_a_version_lacks_is_what_is_not_there",),
}
"""The tests run for each pair, by topic. With `--whole`, all tests run."""
LONGEST_S = 3600.0


class Outcome(NamedTuple):
    """The result of one pair."""

    passed: int
    skipped: Counter[str]
    """Number of skipped tests by reason."""
    failed: list[str]


def pairs() -> list[tuple[str, str]]:
    """All supported pairs, the ends of the range first."""
    oldest = [(versions.plain(pair.python), pair.oldest_torch) for pair in versions.PAIRS]
    newest = [(versions.plain(pair.python), pair.newest_torch) for pair in versions.PAIRS]
    return [*oldest, *newest[::-1]]


def make(folder: Path, python: str, torch: str) -> Path:
    """Create an environment with that torch and this checkout; returns its interpreter."""
    there = folder / "bin" / "python"
    if (folder / "ready").exists():
        return there
    interpreter = found_interpreter(int(python.partition(".")[2]))
    if interpreter is None:
        raise SystemExit(f"there is no Python {python} on this machine")
    subprocess.run([interpreter, "-m", "venv", str(folder)], check=True)
    pip = [str(there), "-m", "pip", "install", "--quiet", "--no-cache-dir", "--disable-pip-version-check"]
    subprocess.run([*pip, f"torch=={torch}", "numpy"], check=True)
    subprocess.run([*pip, "--editable", f"{ROOT}[test]", f"torch=={torch}"], check=True)
    (folder / "ready").touch()
    return there


def run(python: Path, tests: list[str]) -> Outcome:
    """Run the tests in that environment. Failed tests run once more, because a busy machine may miss a test's
    deadline; a test that fails twice counts as failed."""
    with tempfile.TemporaryDirectory(prefix="probe-matrix-") as folder:
        first = _once(python, Path(folder), tests)
        if not first.failed:
            return first
        print("once more what failed:", *dict.fromkeys(first.failed), sep="\n  ", flush=True)
        # Pass whole files: `--last-failed` does not find a named test that did not fail.
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        again = _once(
            python, Path(folder), ["--last-failed", "--last-failed-no-failures=none", *files]
        )
        return again._replace(passed=first.passed + again.passed, skipped=first.skipped + again.skipped)


def _once(python: Path, folder: Path, words: list[str]) -> Outcome:
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [str(python), "-m", "pytest", "-q", "-o", f"cache_dir={folder}/cache", f"--junitxml={report}"]
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        subprocess.run([*command, *words], cwd=ROOT, env=environ, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(0, Counter(), [f"the tests had not ended after {LONGEST_S:.0f} s"])
    found = outcome(report.read_text(encoding="utf-8")) if report.exists() else Outcome(0, Counter(), [])
    return found if any(found) else found._replace(failed=["the tests could not be run at all"])


def outcome(report: str) -> Outcome:
    """Parse a JUnit report."""
    passed, skipped, failed = 0, Counter[str](), []
    for case in ElementTree.fromstring(report).iter("testcase"):
        bad = case.find("failure") is not None or case.find("error") is not None
        skip = case.find("skipped")
        if bad:
            failed.append(case.get("name", ""))
        elif skip is not None:
            skipped[skip.get("message", "")] += 1
        else:
            passed += 1
    return Outcome(passed, skipped, failed)


def row(python: str, torch: str, when: str, found: Outcome) -> str:
    """One row of the table."""
    skipped = "; ".join(f"{count}: {why}" for why, count in found.skipped.items()) or "none"
    failed = ", ".join(dict.fromkeys(name.partition("[")[0] for name in found.failed)) or "none"
    if found.failed:
        failed = f"{len(found.failed)}: {failed}"
    cells = (python, torch, when, str(found.passed), skipped, failed)
    return "| " + " | ".join(re.sub(r"[|\n]", " ", cell) for cell in cells) + " |"


def table(page: str, rows: dict[tuple[str, str], str]) -> str:
    """The page with these rows in its table; the rows of other pairs stay."""
    before, _, rest = page.partition(BEGIN)
    old, _, after = rest.partition(END)
    known = dict(rows)
    for line in old.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0][:1].isdigit():
            known.setdefault((cells[0], cells[1]), line)
    lines = [
        known.get(pair, f"| {pair[0]} | {pair[1]} | not run | | | |")
        for pair in sorted(pairs(), key=lambda pair: [int(part) for part in ".".join(pair).split(".")])
    ]
    return f"{before}{BEGIN}\n{HEAD}" + "\n".join(lines) + f"\n{END}{after}"


def main() -> int:
    """Test the requested pairs; returns 1 if any failed."""
    options = argparse.ArgumentParser(prog="tests/run --matrix", description=__doc__)
    options.add_argument("pairs", nargs="*", metavar="PAIR", help="such as 3.10+2.6.0; all without one")
    options.add_argument("--whole", action="store_true", help="run all tests, not only the selected ones")
    options.add_argument("--keep", type=Path, metavar="FOLDER", help="keep environments there and reuse them")
    options.add_argument("--part", choices=TESTS, help="run only this part of the selected tests")
    options.add_argument("--no-table", action="store_true", help="leave docs/versions.md as it is")
    given = options.parse_args()
    wanted = [(pair.partition("+")[0], pair.partition("+")[2]) for pair in given.pairs] or pairs()
    unknown = [pair for pair in wanted if pair not in pairs()]
    if unknown:
        print("not supported, see probe/base/versions.py:", *map("+".join, unknown), file=sys.stderr)
        return 2
    tests = [] if given.whole else [
        test for part, files in TESTS.items() if given.part in (None, part) for test in files
    ]
    bad = 0
    for python, torch in wanted:
        folder = Path(tempfile.mkdtemp(prefix="probe-matrix-")) if given.keep is None else (
            given.keep / f"{python}+{torch}"
        )
        began_s = time.monotonic()
        try:
            interpreter = make(folder, python, torch)
            made_s = time.monotonic()
            found = run(interpreter, tests)
        except subprocess.CalledProcessError as error:
            print(f"{python}+{torch} could not be installed, and is not tested: {error}", flush=True)
            bad += 1
            continue
        finally:
            if given.keep is None:
                shutil.rmtree(folder, ignore_errors=True)
        today = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
        line = row(python, torch, today, found)
        print(line, f"made in {made_s - began_s:.0f} s, tried in {time.monotonic() - made_s:.0f} s", sep="\n")
        sys.stdout.flush()
        bad += bool(found.failed)
        if not (given.no_table or given.part):
            page = table(PAGE.read_text(encoding="utf-8"), {(python, torch): line})
            PAGE.write_text(page, encoding="utf-8")
    return int(bad > 0)
