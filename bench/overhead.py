"""Measures the overhead of recording on a training job, against the same job without probe and with peers.

    python bench/overhead.py [--rounds N] [--jobs gpt,short,millisecond,modules] [--peers] [--quick]

Every variant is a fresh process; the variants alternate, round after round, and
each is compared with the plain run of its own round. A figure is the median of
the rounds with a 95 % bootstrap interval. Two more figures come from one process
in which probe's instruments are removed and reinstalled every few steps (`paired`):
they resolve costs that are hidden by the differences between two process starts.
`--switch samples|top|page` does the same with the stack sampler, or with a watcher
next to the job, and leaves the instruments alone. A watcher stays open and alternates
between watching and pausing: this measures watching, not its start.

Peers run in separate environments, created under bench/out on first use:
`probing` with PROBING=1 and with PROBING_TORCH_PROFILING=on, `traceml-ai` with
its `run` command and `trace_step` around every step. Prints one Markdown table per job.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from probe.base.settings import INSTRUMENTS

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / "tests" / "programs"
OUT = HERE / "out"
WARM_UP_STEPS = 20
PEERS = {"probing": "probing==0.2.4", "traceml": "traceml-ai==0.5.0"}


class Job(NamedTuple):
    """A program and how long to run it. `block`: steps between removing and reinstalling the instruments for
    `paired`; `settle`: steps of each block that do not count, because new instruments sample nearly every
    step, and once after each reinstallation."""

    name: str
    program: str
    arguments: tuple[str, ...]
    steps: int
    block: int
    settle: int


JOBS = (
    Job("gpt", "gpt_in_main.py", ("--size", "small"), 300, 100, 60),
    Job("short", "gpt_in_main.py", ("--size", "short"), 1200, 150, 100),
    Job("millisecond", "one_millisecond_step.py", (), 4000, 250, 150),
    Job("modules", "two_thousand_modules.py", (), 300, 20, 2),
)


class Variant(NamedTuple):
    """One way to run a job. `python` empty: this interpreter."""

    name: str
    environment: dict[str, str]
    peer: str = ""
    launcher: str = ""


PLAIN = Variant("without", {})
DEFAULT = Variant("probe default", {"PROBE": "1"})
NO_GRADIENTS = Variant(
    "probe default but gradients",
    {"PROBE": "1", "PROBE_INSTRUMENTS": ",".join(name for name in INSTRUMENTS if name != "gradients")},
)
OURS = (
    Variant("probe idle", {"PROBE": "1", "PROBE_INSTRUMENTS": "none"}),
    DEFAULT,
    NO_GRADIENTS,
    Variant("probe everything, modules every 10th step", {"PROBE": "1", "PROBE_MODULES_INTERVAL": "10"}),
)
THEIRS = (
    Variant("probing 0.2.4, PROBING=1", {"PROBING": "1"}, "probing"),
    Variant("probing 0.2.4, profiling on", {"PROBING": "1", "PROBING_TORCH_PROFILING": "on"}, "probing"),
    Variant("traceml-ai 0.5.0, trace_step", {"BENCH_TRACE_STEP": "1"}, "traceml", "traceml"),
)

WATCHERS = ("top", "page")
WATCHED_BLOCK_S, WATCHED_SETTLE_S = 12.0, 4.0
"""How long a watcher watches or pauses, and how much of that does not count: it requests and draws at once
when it starts watching, then every two seconds."""

SWITCHED: dict[str, dict[str, str]] = {
    "samples": {"PROBE_SAMPLE_HZ": "100"}, "top": {}, "page": {},
}
"""Variants of `--switch` with their settings: stacks sampled a hundred times a second, in rounds that the
agent runs in both halves; and the job next to an open `probe top` or page."""


class Figures(NamedTuple):
    """One run: median step, CPU seconds per step, peak memory."""

    step_s: float
    cpu_s: float
    peak_bytes: int
    digest: str


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jobs", default=",".join(job.name for job in JOBS))
    parser.add_argument("--peers", action="store_true", help="run the peers too (installs them)")
    parser.add_argument("--paired", action="store_true", help="only the pairs within one process")
    parser.add_argument(
        "--switch", choices=SWITCHED, help="only pairs within one process, with something else switched"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps, as a smoke test")
    arguments = parser.parse_args()
    variants = [PLAIN, *OURS, *(THEIRS if arguments.peers else ())]
    for peer in PEERS if arguments.peers else ():
        environment_of(peer)
    for job in JOBS:
        if job.name in arguments.jobs.split(","):
            job = job._replace(steps=max(60, job.steps // 10), block=20, settle=2) if arguments.quick else job
            if arguments.switch:
                watched = arguments.switch in WATCHERS and not arguments.quick
                report_switched(in_seconds(job) if watched else job, arguments.switch, arguments.rounds)
            else:
                report(job, [] if arguments.paired else variants, arguments.rounds)


def environment_of(peer: str) -> Path:
    """The interpreter of a peer's own environment, with torch; created on first use."""
    folder = OUT / f"venv-{PEERS[peer].partition('==')[0]}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        torch = os.environ.get("TORCH", "torch==2.13.0")
        for wanted in ([torch, "numpy"], [PEERS[peer]]):
            subprocess.run([str(python), "-m", "pip", "install", "-q", *wanted], check=True)
    return python


def report(job: Job, variants: Sequence[Variant], rounds: int) -> None:
    """Run all rounds of one job and print its table; without variants, only pairs within one process."""
    if variants:
        compare(job, variants, rounds)
    else:
        print(f"\n### {job.name}, {job.steps} steps\n")
        print("| variant | step time | added per step | | | |")
        print("|---|---|---|---|---|---|")
    for variant in (DEFAULT, NO_GRADIENTS):
        pairs = paired(job, variant.environment, max(2, rounds // 2))
        ratio = [on / off - 1 for on, off in pairs]
        added = [on - off for on, off in pairs]
        print(f"| {variant.name}, paired within one process | {percent(ratio)} "
              f"| {median(added) * 1e6:+.1f} µs | | | |")
        sys.stdout.flush()


def report_switched(job: Job, what: str, rounds: int) -> None:
    """The pairs with and without a watcher, or with and without samples of stacks."""
    if what not in WATCHERS:
        job = job._replace(settle=min(job.settle, job.block // 5))  # no instrument restarts
    environment = {**DEFAULT.environment, **SWITCHED[what], "BENCH_TOGGLE_WHAT": what}
    pairs = paired(job, environment, rounds)
    added = [on - off for on, off in pairs]
    low, high = interval(added)
    print(f"{job.name}, {what}: {percent([on / off - 1 for on, off in pairs])} of a step, "
          f"{median(added) * 1e6:+.1f} [{low * 1e6:+.1f}, {high * 1e6:+.1f}] µs, {len(pairs)} pairs; "
          f"a step takes {median(off for _, off in pairs) * 1e3:.2f} ms")
    sys.stdout.flush()


def in_seconds(job: Job) -> Job:
    """The job with blocks of `WATCHED_BLOCK_S`, and as many steps as four of them need."""
    figures = launch(job._replace(steps=max(60, job.steps // 10)), DEFAULT, {})
    step_s = median(figures["step_wall_s"][WARM_UP_STEPS:])
    block = max(20, round(WATCHED_BLOCK_S / step_s))
    return job._replace(steps=5 * block // 2, block=block, settle=round(WATCHED_SETTLE_S / step_s))


def compare(job: Job, variants: Sequence[Variant], rounds: int) -> None:
    """Print the rows that compare processes."""
    found: dict[str, list[Figures]] = {variant.name: [] for variant in variants}
    for turn in range(rounds):
        for variant in variants if turn % 2 == 0 else list(reversed(variants)):
            found[variant.name].append(run(job, variant))
    plain = found[PLAIN.name]
    print(f"\n### {job.name}: {median(one.step_s for one in plain) * 1e3:.3f} ms per step, "
          f"{job.steps} steps, {rounds} rounds\n")
    print("| variant | step time | added per step | CPU time | memory | same result |")
    print("|---|---|---|---|---|---|")
    for variant in variants[1:]:
        ones = found[variant.name]
        ratio = [a.step_s / b.step_s - 1 for a, b in zip(ones, plain, strict=True)]
        added = [a.step_s - b.step_s for a, b in zip(ones, plain, strict=True)]
        cpu = [a.cpu_s / b.cpu_s - 1 for a, b in zip(ones, plain, strict=True)]
        memory = median(a.peak_bytes - b.peak_bytes for a, b in zip(ones, plain, strict=True)) / 2**20
        same = {one.digest for one in ones} == {one.digest for one in plain}
        print(f"| {variant.name} | {percent(ratio)} | {median(added) * 1e6:+.1f} µs | {percent(cpu)} "
              f"| {memory:+.1f} MB | {'yes' if same else 'NO'} |")
    sys.stdout.flush()


def interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    chance = random.Random(1)
    medians = sorted(median(chance.choices(values, k=len(values))) for _ in range(2000))
    return medians[50], medians[1949]


def percent(values: Sequence[float]) -> str:
    """Median and its interval, in percent."""
    low, high = interval(values)
    return f"{median(values):+.2%} [{low:+.2%}, {high:+.2%}]"


def microseconds(values_ns: Sequence[float]) -> str:
    """Median and its interval, in µs."""
    low, high = interval(values_ns)
    return f"{median(values_ns) / 1e3:+.1f} [{low / 1e3:+.1f}, {high / 1e3:+.1f}] µs"


def alternating(
    switch: Callable[[bool], object], work: Callable[[], object], blocks: int, times: int
) -> tuple[list[float], list[float]]:
    """CPU ns per unit of work in each block with the switch off, and the time added by its neighbour."""
    without, added = [], []
    for block in range(blocks):
        taken = {}
        for on in (block % 2 == 0, block % 2 == 1):
            switch(on)
            begun = time.thread_time_ns()
            for _ in range(times):
                work()
            taken[on] = (time.thread_time_ns() - begun) / times
        without.append(taken[False])
        added.append(taken[True] - taken[False])
    return without, added


def free_port() -> int:
    """A free TCP port of this machine."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def met(found: float, limit: float, shown: str) -> str:
    """A table cell with the limit and whether the figure meets it."""
    return f"≤ {shown}: {'met' if found <= limit else '**missed**'}"


def run(job: Job, variant: Variant) -> Figures:
    """Run one process of one variant."""
    figures = launch(job, variant, {})
    steps = figures["step_wall_s"][WARM_UP_STEPS:]
    return Figures(
        median(steps), figures["cpu_s"] / job.steps, figures["peak_bytes"], figures["parameters_sha256"]
    )


def paired(job: Job, environment: dict[str, str], runs: int) -> list[tuple[float, float]]:
    """(median step with, median step without) of neighbouring blocks in one process."""
    pairs: list[tuple[float, float]] = []
    for _ in range(runs):
        figures = launch(
            job._replace(steps=job.steps * 2),
            Variant("paired", environment),
            {"BENCH_TOGGLE": str(job.block)},
        )
        blocks: list[tuple[int, list[float]]] = []
        for on, wall in zip(figures["blocks"], figures["step_wall_s"], strict=False):
            if not blocks or blocks[-1][0] != on:
                blocks.append((on, []))
            blocks[-1][1].append(wall)
        medians = [(on, median(walls[job.settle:])) for on, walls in blocks[1:] if len(walls) == job.block]
        for (first_on, first), (_, second) in pairwise(medians):
            pairs.append((first, second) if first_on else (second, first))
    return pairs


def launch(job: Job, variant: Variant, extra: dict[str, str]) -> dict[str, Any]:
    """Run `bench/job.py` for a variant and return its figures."""
    with places() as (work, environment):
        environment.update(variant.environment)
        environment.update(extra)
        result = work / "figures.json"
        python = str(environment_of(variant.peer)) if variant.peer else sys.executable
        arguments = [str(HERE / "job.py"), str(result), str(PROGRAMS / job.program),
                     *job.arguments, "--steps", str(job.steps)]
        if variant.launcher:
            launcher = str(Path(python).parent / variant.launcher)
            logs = str(work / "logs")
            command = [launcher, "run", "--logs-dir", logs, arguments[0], "--args", *arguments[1:]]
        else:
            command = [python, *arguments]
        done = subprocess.run(command, env=environment, cwd=work, capture_output=True, text=True, check=False)
        if not result.exists():
            raise SystemExit(f"{variant.name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(result.read_text())
        return found


@contextmanager
def places() -> Iterator[tuple[Path, dict[str, str]]]:
    """A work folder and an environment with private probe folders; the server is stopped at the end."""
    work = Path(tempfile.mkdtemp(prefix="bench-"))
    rings = Path(tempfile.mkdtemp(prefix="bench-", dir="/dev/shm"))
    ours = ("PROBE", "PROBING")
    environment = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    environment.update(PROBE_DIR=str(work / "probe"), PROBE_RINGS_DIR=str(rings))
    try:
        yield work, environment
    finally:
        stop_server(work / "probe")
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(rings, ignore_errors=True)


def stop_server(directory: Path) -> None:
    """End the server of a private PROBE_DIR, and wait until it is gone."""
    try:
        pid = int(json.loads((directory / "server.json").read_text())["pid"])
        os.kill(pid, 15)
    except (OSError, ValueError, KeyError):
        return
    subprocess.run(["tail", "--pid", str(pid), "-f", "/dev/null"], timeout=30, check=False)


if __name__ == "__main__":
    main()
