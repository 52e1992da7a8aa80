"""Measures the residual cost in a job's step time after attaching and detaching.

    python bench/detach.py [--rounds N] [--steps N] [--width N]

Two processes of the same job alternate, a block of steps each: one is never touched; the other is attached
with `probe PID attach` and detached with `probe PID detach` during the run. Dividing a block of one by the
neighbouring block of the other cancels other load on the machine. Comparing that ratio before, during and
after shows the cost of being attached and the residual cost. Prints a Markdown table; figures are medians
with a 95 % bootstrap interval.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from overhead import percent, places

HERE = Path(__file__).resolve().parent


class Steps:
    """A process that runs steps on request."""

    def __init__(self, width: int, environ: dict[str, str]) -> None:
        command = [sys.executable, str(HERE / "steps_on_request.py"), "--width", str(width)]
        self.process = subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, steps: int) -> float:
        """Median wall time of a block of steps, in ns."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(steps, file=self.process.stdin, flush=True)
        return median(json.loads(self.process.stdout.readline()))


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--rounds", type=int, default=40, help="blocks of each phase")
    parser.add_argument("--steps", type=int, default=400, help="steps of a block")
    parser.add_argument("--width", type=int, default=64)
    arguments = parser.parse_args()
    with places() as (_, environ):
        never, attached = (Steps(arguments.width, environ) for _ in range(2))
        try:
            report(never, attached, environ, arguments.rounds, arguments.steps)
        finally:
            for one in (never, attached):
                one.process.kill()
                one.process.wait()


def report(never: Steps, attached: Steps, environ: dict[str, str], rounds: int, steps: int) -> None:
    """Run the three phases and print them."""
    for one in (never, attached):
        one.run(steps)
    before = ratios(never, attached, rounds, steps)
    probe(environ, str(attached.process.pid), "attach")
    during = ratios(never, attached, rounds, steps)
    probe(environ, str(attached.process.pid), "detach")
    after = ratios(never, attached, rounds, steps)
    usual_ms = never.run(steps) / 1e6
    print(f"\n### step of {usual_ms:.2f} ms, {rounds} pairs of blocks of {steps} steps in each phase\n")
    print("| phase | step time against the job never attached to | change since before |")
    print("|---|---|---|")
    level = median(before) + 1
    for name, found in (("before", before), ("attached", during), ("after detach", after)):
        change = [(one + 1) / level - 1 for one in found]
        print(f"| {name} | {percent(found)} | {percent(change)} |")


def ratios(never: Steps, attached: Steps, rounds: int, steps: int) -> list[float]:
    """attached / never - 1 for neighbouring blocks, in alternating order."""
    found = []
    for turn in range(rounds):
        if turn % 2:
            other, own = never.run(steps), attached.run(steps)
        else:
            own, other = attached.run(steps), never.run(steps)
        found.append(own / other - 1)
    return found


def probe(environ: dict[str, str], *words: str) -> None:
    """Run the command; exits if it fails."""
    command = [str(Path(sys.executable).parent / "probe"), *words]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main()
