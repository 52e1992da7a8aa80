"""What every campaign shares: a seed, rounds that can be repeated, findings, a control, figures.

A campaign is a module of this package with `main() -> int`, whose docstring's first line says what it tries:

    campaign = Campaign("damage", __doc__, rounds=2000)
    for round in campaign:              # numbers; `campaign.dice(round)` is that round's randomness
        ...
        campaign.count("files flipped")
        if wrong:
            campaign.found(round, "what went wrong")
    return campaign.end()

With `--control` the campaign plants a fault (which one, it decides by `campaign.control`) and succeeds
only when it finds it: a campaign that cannot fail proves nothing.
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
"""Rounds of a control, and findings after which a campaign stops."""


class Campaign:
    """One run of a campaign: its options, its randomness, what it found and measured."""

    def __init__(self, name: str, about: str | None, *, rounds: int) -> None:
        options = argparse.ArgumentParser(prog=f"tests/run --campaign {name}", description=about)
        options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
        options.add_argument("--rounds", type=int, help=f"how many; {rounds} without it")
        options.add_argument("--only", type=int, metavar="ROUND", help="repeat this round alone")
        options.add_argument("--control", action="store_true", help="plant a fault; succeed when it is found")
        options.add_argument("--part", help="one part alone, where the campaign has parts")
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
        """The numbers of the rounds, until there are enough or too much was found."""
        for number in [self._only] if self._only is not None else range(self.rounds):
            if len(self.findings) >= FEW:
                print(f"stopped before round {number}: {FEW} findings are enough", flush=True)
                return
            self._counts["rounds"] += 1
            yield number

    def dice(self, number: int) -> random.Random:
        """The randomness of one round, the same whenever that round is repeated."""
        return random.Random(f"{self.seed}/{number}")

    def count(self, what: str, times: int = 1) -> None:
        """Something happened that the figures tell."""
        self._counts[what] += times

    def measure(self, what: str, value: float) -> None:
        """One reading, its unit in `what`; the figures tell how many, median, 99th percentile, largest."""
        self._measured[what].append(value)

    def found(self, number: int, what: str) -> None:
        """Something went wrong in a round."""
        self.findings.append(what)
        part = f" --part {self.part}" if self.part else ""
        print(f"FOUND in round {number}: {what}\n  again: tests/run --campaign {self.name} "
              f"--seed {self.seed} --only {number}{part}", flush=True)

    def end(self) -> int:
        """Print the figures as rows of docs/reliability.md; the exit status."""
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
