"""Measures ten queries over a generated archive: time of each, and the ratio to DuckDB alone.

    python bench/archive_questions.py [--runs N] [--ranks N] [--steps N] [--folder FOLDER] [--times N]

The archive is compacted: one file per table of a run. Both variants of a query run alternately; figures are
medians: wall time, then processor time, which a busy machine affects less.

`session` compares one `Fleet` with a DuckDB connection in this process that has as many threads and a view
over the files that the query opens, listed beforehand. `command` compares `probe fleet … query` with a Python
process that imports duckdb and queries all files of the table by a glob; both from start to exit. An existing
folder is used as it is. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "fleet"))

from written_archive import fleet as team  # type: ignore[import-not-found]
from written_archive import write

from probe.archive.store import FolderStore
from probe.fleet.fleet_runs import Fleet, Limits, memory_for_queries

QUESTIONS = (
    "SELECT count(*) FROM python.steps",
    "SELECT run, count(*), max(step) FROM python.steps GROUP BY run",
    "SELECT job, avg(wall_s) FROM python.steps GROUP BY job",
    "SELECT host, avg(forward_s) FROM python.steps GROUP BY host ORDER BY 2 DESC LIMIT 5",
    "SELECT run, median(wall_s) FROM python.steps WHERE step % 100 = 50 GROUP BY run ORDER BY 2 DESC LIMIT 5",
    "SELECT run, arg_max(loss, step) FROM python.steps WHERE rank = 0 GROUP BY run",
    "SELECT max(loss) FROM python.steps WHERE run = 'job01-00001'",
    "SELECT rank, avg(wall_s) FROM python.steps WHERE job = 'job02' GROUP BY rank",
    "SELECT count(*) FROM python.steps WHERE NOT isfinite(loss)",
    "SELECT run, sum(tokens) / sum(wall_s) FROM python.steps WHERE date >= '2026-05-01' GROUP BY run",
)


VIEW = (
    "CREATE SCHEMA python; CREATE VIEW python.steps AS SELECT *, regexp_extract(filename,"
    " 'date=(\\d+-\\d+-\\d+)', 1)::DATE AS date FROM read_parquet({}, hive_partitioning = false)"
)
ALONE = """
import sys, duckdb
engine = duckdb.connect(config={"threads": int(sys.argv[1])})
engine.execute(sys.argv[2])
print(engine.execute(sys.argv[3]).fetchmany(10_000))
"""


class Took(NamedTuple):
    """Wall time and processor time of one query."""

    wall_s: float
    cpu_s: float


def took(ask: Callable[[], object], cpu_s: Callable[[], float]) -> Took:
    """Measure one query."""
    wall, cpu = time.perf_counter(), cpu_s()
    ask()
    return Took(time.perf_counter() - wall, cpu_s() - cpu)


def in_turns(times: int, forms: Sequence[tuple[Callable[[], object], Callable[[], float]]]) -> list[Took]:
    """The medians of the variants, run alternately after one warm-up."""
    found: list[list[Took]] = [[] for _ in forms]
    for number in range(times + 1):
        for (ask, cpu_s), told in zip(forms, found, strict=True):
            one = took(ask, cpu_s)
            if number:
                told.append(one)
    return [Took(*map(statistics.median, zip(*told, strict=True))) for told in found]


def of_children() -> float:
    """Processor seconds of all ended child processes, including their children."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def of_fleet(fleet: Fleet) -> Callable[[], float]:
    """Processor seconds of this process and the fleet's worker."""
    ticks = os.sysconf("SC_CLK_TCK")

    def used() -> float:
        worker = fleet._worker._process
        if worker is None:
            return time.process_time()
        told = Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()
        return time.process_time() + (int(told[11]) + int(told[12])) / ticks

    return used


def shown(ours: Took, alone: Took) -> str:
    """Both, and their ratios, as cells of a table."""
    return (
        f"{ours.wall_s:.2f} s ({ours.cpu_s:.2f}) | {alone.wall_s:.2f} s ({alone.cpu_s:.2f})"
        f" | {ours.wall_s / alone.wall_s:.2f} ({ours.cpu_s / max(alone.cpu_s, 1e-3):.2f})"
    )


def main() -> None:
    """Write the archive if there is none, run the queries, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--no-commands", action="store_true")
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="probe-archive-"))
    if not (folder / "index").is_dir():
        began = time.perf_counter()
        write(folder, team(given.runs, given.ranks), given.steps)
        print(f"written in {time.perf_counter() - began:.0f} s", file=sys.stderr)
    limits = Limits(600.0, memory_for_queries())
    with Fleet(FolderStore(folder), limits=limits) as fleet:
        began = time.perf_counter()
        steps = fleet.listing("python.steps")
        listing_s = time.perf_counter() - began
        bytes_each = sum(one.size_bytes for one in steps) / (len(steps) * given.ranks * given.steps)
        began = time.perf_counter()
        processes = len(fleet.processes())
        print(
            f"{len(steps):,} runs, {bytes_each:.0f} bytes per rank and step, listed in {listing_s:.2f} s; "
            f"{processes:,} processes read in {time.perf_counter() - began:.2f} s. Median of {given.times}, "
            f"{limits.threads} threads, load {os.getloadavg()[0]:.1f}. Wall time (processor time).\n"
        )
        print("| question | files | session | engine | ratio | command | engine | ratio |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        nowhere = subprocess.DEVNULL
        every = f"'{folder}/table=python.steps/**/*.parquet'"
        for sql in QUESTIONS:
            files = [str(one.path) for one in fleet.plan(sql).files["python.steps"]]
            engine = duckdb.connect(config={"threads": limits.threads})
            engine.execute(VIEW.format(files))
            ours, alone = in_turns(given.times, [
                (lambda sql=sql: fleet.query(sql), of_fleet(fleet)),
                (lambda sql=sql, engine=engine: engine.execute(sql).fetchmany(10_000), time.process_time),
            ])
            engine.close()
            cells = shown(ours, alone)
            if not given.no_commands:
                commands = (
                    [sys.executable, "-m", "probe_cli", "fleet", str(folder), "query", sql],
                    [sys.executable, "-c", ALONE, str(limits.threads), VIEW.format(every), sql],
                )
                ours, alone = in_turns(given.times, [
                    (lambda words=words: subprocess.run(words, stdout=nowhere, check=True), of_children)
                    for words in commands
                ])
                cells += f" | {shown(ours, alone)}"
            print(f"| `{sql}` | {len(files):,} | {cells} |", flush=True)
        print(f"\nLoad at the end: {os.getloadavg()[0]:.1f}.")


if __name__ == "__main__":
    main()
