"""The tests that take longer than a commit may wait: repetitions and combinations of what is tested daily.

They are those with `@pytest.mark.campaign`. What needs an installation of its own, such as the frameworks or
a Prometheus, is skipped where that is not.
"""

from __future__ import annotations

import argparse

from suite import Phase, files_with, run_all


def main() -> int:
    """Run them; pytest's worst exit status."""
    options = argparse.ArgumentParser(prog="tests/run --campaign tests", description=__doc__)
    options.add_argument("--workers", type=int, default=4, help="how many run at once")
    given = options.parse_args()
    files = files_with("campaign")
    beside = Phase("campaign and not alone", given.workers, files)
    return run_all([beside, Phase("campaign and alone", 0, files)])
