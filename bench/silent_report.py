"""Reports silent errors: a table of development and held-out kinds, and false alarms per clean hour.

    python bench/faults.py --silent [options of silent.py]            # run silent.py, then the table
    python bench/faults.py --silent --former JSON …                   # the table of earlier runs

The files are written by `silent.py --json`: planted trials, or a clean run. Kinds of kinds_heldout.toml are
held out, all others belong to the development half. Percentages refer to the kinds that can be known from
within; `honest` counts the others, if nothing false was reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import silent

HELD_OUT_FILE = Path(silent.plant.__file__).with_name("kinds_heldout.toml")
WRONG_RATIO, RIGHT_RATIO, FALSE_PER_HOUR = 0.03, 0.8, 0.3
"""The targets of the held-out half."""


def held_out() -> set[str]:
    """Names of the kinds that were planted after the checks had been built."""
    if not HELD_OUT_FILE.exists():
        return set()
    return {kind["name"] for kind in silent.plant.tomllib.loads(HELD_OUT_FILE.read_text())["kind"]}


def line(half: str, trials: list[dict[str, Any]]) -> str:
    """The line of one half in the table."""
    outcomes = [trial["first"]["outcome"] for trial in trials]
    known = [trial for trial in trials if trial["first"]["outcome"] != silent.HONEST]
    right = [trial["first"] for trial in known if trial["first"]["outcome"] == silent.RIGHT]
    times = [trial["verdict_s"] for trial in trials if trial["verdict_s"] is not None]
    share = f" ({len(right) / len(known):.0%})" if known else ""
    cells = [
        half, str(len({trial["kind"] for trial in trials})), str(len(trials)), f"{len(right)}{share}",
        str(sum(answer["place"] for answer in right)), str(outcomes.count(silent.WRONG)),
        str(sum(bool(answer["others"]) for answer in right)), str(outcomes.count(silent.SYMPTOM)),
        str(outcomes.count(silent.SILENT)), str(outcomes.count(silent.HONEST)),
        f"{statistics.median(times):.0f}, {max(times):.0f}" if times else "",
    ]
    return "| " + " | ".join(cells) + " |"


def report(files: list[dict[str, Any]]) -> list[str]:
    """The table from files of `silent.py --json`, and whether the targets of the held-out half are met."""
    names = held_out()
    trials = [trial for one in files for trial in one.get("trials", [])]
    halves = {
        "development": [trial for trial in trials if trial["kind"] not in names],
        "held-out": [trial for trial in trials if trial["kind"] in names],
    }
    titles = [
        "half", "kinds", "trials", "right cause", "right place", "wrong", "wrong beside", "symptom only",
        "silent", "honest", "named s (median, worst)",
    ]
    lines = ["| " + " | ".join(titles) + " |", "|" + " --- |" * len(titles)]
    lines += [line(half, mine) for half, mine in halves.items() if mine]
    mine = [trial for trial in halves["held-out"] if trial["first"]["outcome"] != silent.HONEST]
    if mine:
        wrong, right = (
            sum(trial["first"]["outcome"] == outcome for trial in mine) / len(mine)
            for outcome in (silent.WRONG, silent.RIGHT)
        )
        lines += [
            "", f"held-out, wrong: {wrong:.1%}, at most {WRONG_RATIO:.0%}: {_ok(wrong <= WRONG_RATIO)}",
            f"held-out, right: {right:.1%}, at least {RIGHT_RATIO:.0%}: {_ok(right >= RIGHT_RATIO)}",
        ]
    hours = sum(one.get("hours", 0.0) for one in files)
    if hours:
        count = sum(len(one.get("false_alarms", [])) for one in files)
        met = _ok(count <= FALSE_PER_HOUR * hours)
        lines.append(
            f"false alarms above info: {count} in {hours:.2f} clean hours, {count / hours:.1f} per hour, "
            f"at most {FALSE_PER_HOUR}: {met}"
        )
    return lines


def _ok(holds: bool) -> str:
    return "ok" if holds else "MISSED"


def main() -> int:
    """Run silent.py with the other options, unless earlier runs are given; 1 if a target is missed."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--former", nargs="+", type=Path, default=[])
    parser.add_argument("--json", type=Path)
    mine, others = parser.parse_known_args()
    files = [json.loads(path.read_text()) for path in mine.former]
    if not files:
        with tempfile.TemporaryDirectory() as folder:
            kept = mine.json or Path(folder) / "trials.json"
            sys.argv = ["silent.py", *others, "--json", str(kept)]
            silent.main()
            files = [json.loads(kept.read_text())]
    lines = report(files)
    print("\n".join(["", *lines]))
    return int(any("MISSED" in one for one in lines))
