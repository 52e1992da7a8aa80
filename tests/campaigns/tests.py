"""Runs the tests that are too slow for every commit: repetitions and combinations of the daily tests.

They carry `@pytest.mark.campaign`. Tests that need an extra installation, such as a framework or Prometheus,
are skipped if it is missing.
"""

from __future__ import annotations

import argparse

from suite import Phase, files_with, run_all


def main() -> int:
    """Run them and return pytest's worst exit status."""
    options = argparse.ArgumentParser(prog="tests/run --campaign tests", description=__doc__)
    options.add_argument("--workers", type=int, default=4, help="how many run at once")
    given = options.parse_args()
    files = files_with("campaign")
    beside = Phase("campaign and not alone", given.workers, files)
    return run_all([beside, Phase("campaign and alone", 0, files)])
