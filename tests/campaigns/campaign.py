"""Shared by all campaigns: a seed, reproducible rounds, findings, a control, figures.

A campaign is a module of this package with `main() -> int`; the first line of its docstring describes it:

    campaign = Campaign("damage", __doc__, rounds=2000)
    for round in campaign:              # numbers; `campaign.dice(round)` is that round's randomness
        ...
        campaign.count("files flipped")
        if wrong:
            campaign.found(round, "what went wrong")
    return campaign.end()

With `--control` the campaign plants a fault (the module decides which, if `campaign.control`) and succeeds
only if it finds it: a campaign that cannot fail proves nothing.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator

FEW = 20
"""Number of rounds of a control, and number of findings after which a campaign stops."""


class Campaign:
    """One run of a campaign: its options, randomness, findings and measurements."""

    def __init__(self, name: str, about: str | None, *, rounds: int) -> None:
        options = argparse.ArgumentParser(prog=f"tests/run --campaign {name}", description=about)
        options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
        options.add_argument("--rounds", type=int, help=f"number of rounds (default {rounds})")
        options.add_argument("--only", type=int, metavar="ROUND", help="repeat only this round")
        options.add_argument("--control", action="store_true", help="plant a fault; succeed if it is found")
        options.add_argument("--part", help="run only this part, if the campaign has parts")
        given = options.parse_args()
        self.name = name
        self.seed: int = given.seed
        self.control: bool = given.control
        self.part: str | None = given.part
        self.rounds: int = given.rounds or (min(rounds, FEW) if given.control else rounds)
        self._only: int | None = given.only
        self.findings: list[str] = []
        self._counts: Counter[str] = Counter()
        self._measured: dict[str, list[float]] = defaultdict(list)
        self._began = time.monotonic()
        print(f"campaign {name}: seed {self.seed}, {self.rounds} rounds", flush=True)

    def __iter__(self) -> Iterator[int]:
        """The numbers of the rounds, until all are done or there are too many findings."""
        for number in [self._only] if self._only is not None else range(self.rounds):
            if len(self.findings) >= FEW:
                print(f"stopped before round {number}: {FEW} findings are enough", flush=True)
                return
            self._counts["rounds"] += 1
            yield number

    def dice(self, number: int) -> random.Random:
        """The randomness of one round, identical whenever the round is repeated."""
        return random.Random(f"{self.seed}/{number}")

    def count(self, what: str, times: int = 1) -> None:
        """Count an event for the figures."""
        self._counts[what] += times

    def measure(self, what: str, value: float) -> None:
        """Add a reading, unit in `what`; the figures show count, median, 99th percentile and maximum."""
        self._measured[what].append(value)

    def found(self, number: int, what: str) -> None:
        """Report a finding in a round."""
        self.findings.append(what)
        part = f" --part {self.part}" if self.part else ""
        print(f"FOUND in round {number}: {what}\n  again: tests/run --campaign {self.name} "
              f"--seed {self.seed} --only {number}{part}", flush=True)

    def end(self) -> int:
        """Print the figures as rows of docs/reliability.md; returns the exit status."""
        print(f"\n{self.name}: seed {self.seed}, {time.monotonic() - self._began:.0f} s")
        for what, times in self._counts.items():
            print(f"| {what} | {times} |")
        for what, values in self._measured.items():
            ordered = sorted(values)
            high = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
            print(f"| {what}: readings, median, p99, largest | {len(values)}, "
                  f"{statistics.median(values):.3g}, {high:.3g}, {ordered[-1]:.3g} |")
        print(f"| findings | {len(self.findings)} |")
        if self.control:
            print("control: found, as it must be" if self.findings else "control: NOT FOUND", file=sys.stderr)
        return int(bool(self.findings) != self.control)
