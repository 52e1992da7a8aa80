"""Measures scaling with the number of ranks: merging stacks, SQL over all ranks, commands on all ranks.

    python bench/scale.py [--runs N] [--quick] [--only merge|one|several]

*Merging* measures the function that the server calls, on decoded captures as sent by agents: stacks of 24
frames, half of them user frames. Ranks share the strings of file and function names, like the ranks of one
program. `40 classes`: each rank is in one of 40 places. `all different`: no two stacks are equal (they differ
in the innermost frame).

*Ranks* are simulated by `bench/fleet.py`: real recordings made by probe's own writers and sealer (1,000
steps: 900 in Parquet segments, 100 in the rings; PROBE_DIR in memory), a process for each rank's PID, and
agents that answer. Servers, query workers and commands are real. `one host`: all recordings in one PROBE_DIR.
`several hosts`: a PROBE_DIR, a server and a TCP port each, all on this machine, found through PROBE_PEERS.
Each command is a separate process, timed from start to exit. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from latency import installed, machine
from overhead import HERE, free_port, met, stop_server

from probe.base.settings import Settings
from probe.boot import launch
from probe.server.hosts import merged_stacks

JOB = "many"
FRAMES, CLASSES = 24, 40
MERGES = ((1_024, 1.0), (131_072, 3.0))
ONE_HOST = ((64, 1.0), (1_024, 5.0))
SEVERAL_HOSTS = ((8, 8, 1.0), (16, 64, 5.0))
STEPS = 1_000
QUERY_TIMEOUT_S = "60"
"""Long enough that a late answer is timed and not refused."""
WATCHED_S = 15.0
QUERIES: dict[str, str] = {
    "last step of each rank": "SELECT rank, max(step) FROM python.steps GROUP BY rank ORDER BY rank",
    "each rank beside the next": "SELECT count(*), max(abs(a.forward_s - b.forward_s)) FROM python.steps a "
    "JOIN python.steps b ON a.step = b.step AND b.rank = a.rank + 1",
    "slowest rank of each step": "SELECT rank, count(*) FROM (SELECT rank, row_number() OVER "
    "(PARTITION BY step ORDER BY wall_s - comm_s DESC) AS place FROM python.steps) WHERE place = 1 "
    "GROUP BY rank ORDER BY 2 DESC",
    "arrival spread of collectives": "SELECT seq, max(t_ns) - min(t_ns) AS spread_ns, arg_max(rank, t_ns) "
    "FROM python.collectives WHERE op = 'all_reduce' GROUP BY pg, seq ORDER BY spread_ns DESC LIMIT 10",
    "`cluster.ranks`": "SELECT rank, step, state FROM cluster.ranks",
    "`cluster.stack_classes`": "SELECT ranks, stack FROM cluster.stack_classes ORDER BY rank_count",
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=7, help="runs of each command after the first")
    parser.add_argument("--only", choices=("merge", "one", "several"), help="one part alone")
    parser.add_argument("--quick", action="store_true", help="few ranks and steps, as a smoke test")
    arguments = parser.parse_args()
    runs, steps = (2, 50) if arguments.quick else (arguments.runs, STEPS)
    print(machine())
    if arguments.only in (None, "merge"):
        merging([(64, 1.0)] if arguments.quick else MERGES)
    if not installed("probe"):
        raise SystemExit("no `probe` beside this Python: install probe into this environment")
    if arguments.only in (None, "one"):
        for ranks, bar_s in [(8, 1.0)] if arguments.quick else ONE_HOST:
            with hosts(1, ranks, steps) as made:
                commands(made, ranks, bar_s, runs)
                watched(made[0], ranks, 1.0 if arguments.quick else WATCHED_S)
    if arguments.only in (None, "several"):
        for many, ranks, bar_s in [(2, 4, 1.0)] if arguments.quick else SEVERAL_HOSTS:
            with hosts(many, ranks, steps) as made:
                commands(made, many * ranks, bar_s, runs)
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.2f}.")


# Merging ----------------------------------------------------------------------


def merging(sizes: Sequence[tuple[int, float]]) -> None:
    """Print the table of merging."""
    print("\n### Merging stacks\n\n| ranks | stacks | nodes | classes | time | target |")
    print("|---|---|---|---|---|---|")
    kinds: dict[str, Callable[[int], list[dict[str, Any]]]] = {
        f"{CLASSES} classes": in_classes, "all different": different
    }
    for ranks, bar_s in sizes:
        for name, make in kinds.items():
            captures = {
                rank: {"pid": 1, "step": 5, "phase": "forward", "state": "alive",
                       "threads": [{"training": True, "thread_id": 1, "frames": make(rank)}]}
                for rank in range(ranks)
            }
            times: list[float] = []
            merged = merged_stacks.Merged([], [])
            for _ in range(3):
                started = time.perf_counter()
                merged = merged_stacks.merge(captures)
                times.append(time.perf_counter() - started)
            print(f"| {ranks:,} | {name} | {len(merged.tree):,} | {len(merged.classes):,} | "
                  f"{seconds(median(times))} | {met(median(times), bar_s, f'{bar_s:g} s')} |")
            sys.stdout.flush()


def frame(depth: int, line: int) -> dict[str, Any]:
    """A frame of the program; every second one is a user frame."""
    user = depth % 2 == 0
    file = f"/job/part{depth}.py" if user else f"/env/lib/python3.11/site-packages/library/part{depth}.py"
    return {"depth": depth, "func": f"call_{depth}", "file": file, "lineno": line, "frame_type": "Python",
            "module": None, "is_user": user}


_SHARED = [frame(depth, 1) for depth in range(FRAMES)]
_KINDS = [[frame(depth, kind if depth <= kind % 20 else 1) for depth in range(FRAMES)]
          for kind in range(CLASSES)]
_CHANCE = random.Random(1)


def in_classes(_rank: int) -> list[dict[str, Any]]:
    """A stack from a random class."""
    return _CHANCE.choice(_KINDS)


def different(rank: int) -> list[dict[str, Any]]:
    """A stack that is unique to the rank."""
    return [frame(0, rank), *_SHARED[1:]]


# Simulated hosts --------------------------------------------------------------


class Host(NamedTuple):
    """One simulated host: its environment and the process that owns its recordings."""

    directory: Path
    environment: Mapping[str, str]
    generator: subprocess.Popen[str]


@contextlib.contextmanager
def hosts(many: int, ranks: int, steps: int) -> Iterator[list[Host]]:
    """`many` hosts with `ranks` ranks each. Servers run on all but the first, which the commands start."""
    work = Path(tempfile.mkdtemp(prefix="bench-scale-", dir="/dev/shm"))
    made: list[Host] = []
    try:
        shared = shared_environment(work, many)
        for number in range(many):
            made.append(host(work / f"node{number}", number, ranks, many * ranks, steps, shared))
        for one in made:
            assert one.generator.stdout is not None
            if not one.generator.stdout.readline().startswith("READY"):
                raise SystemExit("a simulated host could not be made")
        for one in made[1:]:
            launch.ensure_server(one.directory, Settings(one.environment), wait_s=60.0)
        yield made
    finally:
        for one in made:
            with contextlib.suppress(BrokenPipeError):
                one.generator.communicate(timeout=600)
            stop_server(one.directory)
        shutil.rmtree(work, ignore_errors=True)


def shared_environment(work: Path, many: int) -> dict[str, str]:
    """Environment shared by all hosts: one token, the list of hosts."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    kept["PROBE_QUERY_TIMEOUT_S"] = QUERY_TIMEOUT_S
    if many > 1:
        (work / "token").touch(0o600)
        (work / "token").write_text(secrets.token_hex(32))
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(many)]
        (work / "peers").write_text("\n".join(addresses))
        kept.update(PROBE_TOKEN_FILE=str(work / "token"), PROBE_PEERS=str(work / "peers"))
    return kept


def host(
    folder: Path, number: int, ranks: int, world_size: int, steps: int, shared: Mapping[str, str]
) -> Host:
    """Start the process that creates one host's recordings."""
    (folder / "rings").mkdir(parents=True)
    environment = {**shared, "PROBE_DIR": str(folder / "probe"), "PROBE_RINGS_DIR": str(folder / "rings")}
    if "PROBE_PEERS" in shared:
        environment["PROBE_LISTEN"] = Path(shared["PROBE_PEERS"]).read_text().splitlines()[number]
    wanted = {
        "job": JOB, "run": "scale", "ranks": list(range(number * ranks, (number + 1) * ranks)),
        "world_size": world_size, "steps": steps, "host": f"node{number}",
    }
    generator = subprocess.Popen(
        [sys.executable, str(HERE / "fleet.py"), json.dumps(wanted)], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )
    return Host(folder / "probe", environment, generator)


# Commands ---------------------------------------------------------------------


def commands(made: Sequence[Host], ranks: int, bar_s: float, runs: int) -> None:
    """Print the table of commands on all ranks, run on the first host."""
    where = "one host" if len(made) == 1 else f"{len(made)} hosts of {ranks // len(made)} ranks"
    print(f"\n### {ranks:,} ranks, {where}: {runs} runs each\n")
    print("| command | first | median | longest | target |")
    print("|---|---|---|---|---|")
    environment = made[0].environment
    cold_s = timed(("ps",), environment)[0]
    print(f"| `probe ps`, which starts the server | {seconds(cold_s)} | | | |")
    for words in (("ps",), (JOB, "ranks"), (JOB, "backtrace")):
        times = [timed(words, environment)[0] for _ in range(runs + 1)]
        row(f"`probe {' '.join(words).replace(JOB, 'JOB')}`", times)
    notes: set[str] = set()
    for name, sql in QUERIES.items():
        times = []
        for _ in range(runs + 1):
            taken_s, said, noted = timed((JOB, "query", sql, "--format", "json"), environment)
            times.append(taken_s)
            notes.update(noted.splitlines())
        answered = len(json.loads(said)["rows"])
        if name == "last step of each rank" and answered != ranks:
            raise SystemExit(f"{answered} of {ranks} ranks answered: {notes}")
        row(f"`probe JOB query`, {name}", times, bar_s)
    for note in sorted(notes):
        print(f"\nNote: {note}")


def timed(words: Sequence[str], environment: Mapping[str, str]) -> tuple[float, str, str]:
    """Seconds that one command takes, its stdout and stderr; exits if it fails."""
    started = time.perf_counter()
    done = subprocess.run(
        [installed("probe"), *words], env=dict(environment), stdin=subprocess.DEVNULL, capture_output=True,
        text=True, check=False,
    )
    taken_s = time.perf_counter() - started
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return taken_s, done.stdout, done.stderr


def row(name: str, times: Sequence[float], bar_s: float | None = None) -> None:
    """Print one row: the first time, and the others."""
    others = times[1:]
    held = "" if bar_s is None else met(median(others), bar_s, f"{bar_s:g} s")
    print(f"| {name} | {seconds(times[0])} | {seconds(median(others))} | {seconds(max(others))} | {held} |")
    sys.stdout.flush()


def watched(one: Host, ranks: int, watched_s: float) -> None:
    """CPU use of one host's server while all its ranks train ten steps a second."""
    assert one.generator.stdin is not None and one.generator.stdout is not None
    print("go 10", file=one.generator.stdin, flush=True)
    one.generator.stdout.readline()
    pid = int(json.loads((one.directory / "server.json").read_text())["pid"])
    began, before_s = time.monotonic(), cpu_s(pid)
    time.sleep(watched_s)
    ratio = (cpu_s(pid) - before_s) / (time.monotonic() - began)
    print(f"\nThe server takes {ratio:.1%} of a core while {ranks:,} ranks train, ten steps a second each.")
    print("halt", file=one.generator.stdin, flush=True)
    one.generator.stdout.readline()


def cpu_s(pid: int) -> float:
    """Processor time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seconds(value: float) -> str:
    """A time as text, in ms if below a second."""
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


if __name__ == "__main__":
    main()
