"""Measures how long a user waits for an answer: commands, and SQL over a million rows.

    python bench/latency.py [--runs N] [--peers] [--quick]

Every run of a command is a fresh process, timed from start to exit, with its output read to the end. The
commands alternate, round after round, forwards and backwards, so that other load on the machine affects all
of them equally, including `python -c pass`, the baseline of any Python command. Measured once while the GPT
of `tests/programs` trains on all cores, and once after it has trained and is waiting. With --peers another
job runs under `probing` in its own environment (created under bench/out on first use); while one tool is
measured, the other's job is stopped. `py-spy dump` is measured if it is installed. Next to each time is
processor time, which other load affects little: of the command, and of the server with its query workers and,
while it waits, of the job (probing answers inside it). A job of eight small ranks is diagnosed while it runs
ten steps a second, and while one rank is stopped and the others wait for it.

The million rows are written by the same ring and sealer that every job uses; their query times are reported
by the query worker (`elapsed_ms`). Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import NamedTuple

from overhead import HERE, PROGRAMS, environment_of, met, places, stop_server

from probe.base import wire
from probe.boot.startup import run_environment
from probe.recording.places import server_socket

BY_MODULE = (
    "SELECT module, stage, COUNT(*), AVG(duration), SUM(duration) AS total FROM python.torch_trace "
    "WHERE step > (SELECT MAX(step) - 5 FROM python.torch_trace) GROUP BY ALL ORDER BY total DESC LIMIT 10"
)
BACKTRACE = "SELECT depth, func, file, lineno FROM python.backtrace ORDER BY depth LIMIT 10"
LEARNING_RATE = "print(optimizer.param_groups[0]['lr'])"
BASELINE = "`python -c pass`"
OUTSIDE = "`py-spy dump`"
SPECIAL_BAR_MS = 60.0
"""Target for `--version` and `--help`."""
BAR_MS = 100.0
HEALTH_BAR_MS = 300.0
DIAGNOSE_BAR_MS = 500.0
HUNG_BAR_MS = 2000.0
RANKS = 8
RANKS_BAR_MS = 1000.0
STALLED_S = 8.0
"""Time for the server to notice that a job stalls."""
MILLION = 1_000_000
MILLION_BAR_MS = 50.0
OVER_MILLION = {
    "count": "SELECT COUNT(*) FROM python.torch_trace",
    "last five steps by module and stage": BY_MODULE,
    "all steps by module and stage": "SELECT module, stage, COUNT(*), AVG(duration), SUM(duration) AS total "
    "FROM python.torch_trace GROUP BY ALL ORDER BY total DESC LIMIT 10",
}
RESTED_S = 2.5
"""Pause after the job was continued, so that it runs normally again."""
SETTLE_S = 0.1
"""Pause between two commands: the worker prepares its next database, which is a cost of the query before."""
GAP_S = 0.3
"""Pause between two queries over the million rows: the worker prepares its next database, as it does while a
user reads."""
STATES = {"trains": ("--forever",), "waits": ("--steps", "50", "--hold")}


class Command(NamedTuple):
    """One command; `name` is Markdown, `job` the tool whose job it queries, `bar_ms` its target."""

    name: str
    words: tuple[str, ...]
    job: str = ""
    bar_ms: float | None = None


class Taken(NamedTuple):
    """Wall time and processor times of one run of a command."""

    wall_s: float
    own_cpu_s: float
    served_cpu_s: float = 0.0


class Job(NamedTuple):
    """A running GPT under one tool."""

    process: subprocess.Popen[str]
    environment: Mapping[str, str]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=30, help="runs of each command in each state")
    parser.add_argument("--peers", action="store_true", help="run probing too (installs it)")
    parser.add_argument("--quick", action="store_true", help="three runs, fewer rows, as a smoke test")
    arguments = parser.parse_args()
    runs = 3 if arguments.quick else arguments.runs
    if not installed("probe"):
        raise SystemExit("no `probe` beside this Python: install probe into this environment")
    print(machine())
    for state in STATES:
        with places() as (work, environment), jobs(state, work, environment, arguments.peers) as running:
            report(state, measure(commands(running), running, runs), runs)
            if state == "waits":
                cold_start(work, environment, running["probe"], max(3, runs // 8))
    with places() as (work, environment):
        held_gil(work, environment, max(3, runs // 2))
    with places() as (work, environment):
        several_ranks(work, environment, max(3, runs // 2))
    with places() as (work, environment):
        million(work, environment, MILLION // 20 if arguments.quick else MILLION, runs)
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.2f}.")


def machine() -> str:
    """One line about the machine."""
    return (
        f"{os.cpu_count()} cores, Linux {platform.release().partition('-')[0]}, "
        f"Python {platform.python_version()}, torch {version('torch')}, duckdb {version('duckdb')}. "
        f"Load average at the start: {os.getloadavg()[0]:.2f}."
    )


def installed(name: str) -> str:
    """Path of a command next to this Python or on PATH; empty if there is none."""
    folders = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return shutil.which(name, path=folders) or ""


@contextlib.contextmanager
def jobs(
    state: str, work: Path, environment: Mapping[str, str], peers: bool
) -> Iterator[dict[str, Job]]:
    """The jobs by the tool that watches them; they have already trained."""
    pythons = {"probe": (sys.executable, run_environment(environment, sys.executable))}
    if peers:
        pythons["probing"] = (
            str(environment_of("probing")), {**environment, "PROBING": "1", "PROBING_TORCH_PROFILING": "on"}
        )
    awaited = "READY" if state == "trains" else "RESULT"
    running: dict[str, Job] = {}
    try:
        for tool, (python, its_environment) in pythons.items():
            process = subprocess.Popen(
                [python, str(PROGRAMS / "gpt_in_main.py"), "--size", "medium",
                 "--threads", str(os.cpu_count()), *STATES[state]],
                env=dict(its_environment), cwd=work, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )
            running[tool] = Job(process, its_environment)
            assert process.stdout is not None
            if not any(line.startswith(awaited) for line in process.stdout):
                raise SystemExit(f"the job under {tool} ended before it printed {awaited}")
            if state == "trains":
                time.sleep(5)  # so that there are steps with recorded modules to ask about
                process.send_signal(signal.SIGSTOP)
        yield running
    finally:
        for job in running.values():
            job.process.kill()
            job.process.wait()


def commands(running: Mapping[str, Job]) -> list[Command]:
    """The installed commands to measure."""
    found = [Command(BASELINE, (sys.executable, "-c", "pass"))]
    pid = str(running["probe"].process.pid)
    if installed("py-spy"):
        found.append(Command(OUTSIDE, (installed("py-spy"), "dump", "--pid", pid), "probe"))
    ours = installed("probe")
    found += [
        Command("`probe --version`", (ours, "--version"), "probe", SPECIAL_BAR_MS),
        Command("`probe --help`", (ours, "--help"), "probe", SPECIAL_BAR_MS),
        Command("`probe ps`", (ours, "ps"), "probe", BAR_MS),
        Command("`probe PID query`, by module", (ours, pid, "query", BY_MODULE), "probe", BAR_MS),
        Command("`probe PID query`, `python.backtrace`", (ours, pid, "query", BACKTRACE), "probe", BAR_MS),
        Command("`probe PID backtrace`", (ours, pid, "backtrace"), "probe", BAR_MS),
        Command("`probe PID eval`", (ours, pid, "eval", LEARNING_RATE), "probe", BAR_MS),
        Command("`probe PID tables`", (ours, pid, "tables"), "probe"),
        Command("`probe PID health`", (ours, pid, "health"), "probe", HEALTH_BAR_MS),
        Command("`probe PID diagnose`", (ours, pid, "diagnose"), "probe", DIAGNOSE_BAR_MS),
    ]
    if "probing" in running:
        theirs = str(environment_of("probing").parent / "probing")
        pid = str(running["probing"].process.pid)
        found += [
            Command("`probing --version`", (theirs, "--version"), "probing"),
            Command("`probing --help`", (theirs, "--help"), "probing"),
            Command("`probing list`", (theirs, "list"), "probing"),
            Command("`probing query`, by module", (theirs, "-t", pid, "query", BY_MODULE), "probing"),
            Command(
                "`probing query`, `python.backtrace`", (theirs, "-t", pid, "query", BACKTRACE), "probing"
            ),
            Command("`probing backtrace`", (theirs, "-t", pid, "backtrace"), "probing"),
            Command("`probing eval`", (theirs, "-t", pid, "eval", LEARNING_RATE), "probing"),
        ]
    return found


def measure(
    wanted: Sequence[Command], running: Mapping[str, Job], runs: int
) -> dict[Command, list[Taken]]:
    """Measure each run of each command; the first round warms caches and is not counted."""
    found: dict[Command, list[Taken]] = {command: [] for command in wanted}
    for turn in range(runs + 1):
        for tool, job in running.items():
            job.process.send_signal(signal.SIGCONT)
            time.sleep(RESTED_S if len(running) > 1 else 0.0)
            for command in wanted if turn % 2 == 0 else reversed(wanted):
                if command.job in (tool, "") and (command.job or tool == "probe"):
                    before = served_cpu_s(job)
                    taken = timed(command.words, job.environment)
                    time.sleep(SETTLE_S)
                    if turn:
                        served_s = sum(now - before.get(pid, 0.0) for pid, now in served_cpu_s(job).items())
                        found[command].append(taken._replace(served_cpu_s=served_s))
            if len(running) > 1:
                job.process.send_signal(signal.SIGSTOP)
    return found


def served_cpu_s(job: Job) -> dict[int, float]:
    """Processor time so far of the server, its query workers and the job, by PID."""
    found = {job.process.pid: cpu_s(job.process.pid)}
    with contextlib.suppress(OSError, KeyError, ValueError):
        server = int(json.loads((Path(job.environment["PROBE_DIR"]) / "server.json").read_bytes())["pid"])
        for one in (server, *children_of(server)):
            found[one] = cpu_s(one)
    return found


def cpu_s(pid: int) -> float:
    """Processor time of a process, by its clock (clock_getcpuclockid(3)); 0 once it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def children_of(pid: int) -> list[int]:
    """The children of all threads of a process."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for found in lists for child in found.read_text().split()]


def timed(words: Sequence[str], environment: Mapping[str, str]) -> Taken:
    """Measure one command; exits if it fails."""
    # Installed packages have bytecode: compiling ours at each start would double a short command's time.
    unwanted = ("PROBE", "PROBING", "PYTHONDONTWRITEBYTECODE")
    quiet = {name: value for name, value in environment.items() if name not in unwanted}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    done = subprocess.run(
        words, env=quiet, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    taken_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    own_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Taken(taken_s, own_s)


def report(state: str, found: Mapping[Command, Sequence[Taken]], runs: int) -> None:
    """Print one table of the commands."""
    medians = {command.name: median(one.wall_s for one in taken) for command, taken in found.items()}
    relative = [name for name in (BASELINE, OUTSIDE) if name in medians]
    print(f"\n### Commands while the job {state}: {runs} runs each\n")
    ratios = "".join(f"× {name} | " for name in relative)
    print(f"| command | median | 95th percentile | CPU | CPU, other processes | {ratios}target |")
    print("|---|---|---|---|---|" + "---|" * len(relative) + "---|")
    for command, taken in found.items():
        ratios = "".join(f"{medians[command.name] / medians[name]:.2f} | " for name in relative)
        alone = state != "trains" and command.job  # else it would include the job's own work
        served = in_whole_ms(one.served_cpu_s for one in taken) if alone else ""
        print(f"| {command.name} | {in_whole_ms(one.wall_s for one in taken)} | "
              f"{percentile([one.wall_s for one in taken], 0.95) * 1e3:.0f} ms | "
              f"{in_whole_ms(one.own_cpu_s for one in taken)} | {served} | "
              f"{ratios}{in_ms(medians[command.name] * 1e3, command.bar_ms)} |")
    sys.stdout.flush()


def in_whole_ms(values_s: Iterable[float]) -> str:
    """The cell of a median."""
    return f"{median(values_s) * 1e3:.0f} ms"


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the values do not exceed."""
    return sorted(values)[math.ceil(len(values) * share) - 1]


def in_ms(median_ms: float, bar_ms: float | None) -> str:
    """The cell of the limit; empty without one."""
    return "" if bar_ms is None else met(median_ms, bar_ms, f"{bar_ms:.0f} ms")


def cold_start(work: Path, environment: Mapping[str, str], job: Job, runs: int) -> None:
    """Measure the first query without a server: it starts one and waits for it."""
    found: list[float] = []
    words = (installed("probe"), str(job.process.pid), "query", BY_MODULE)
    for _ in range(runs):
        stop_server(work / "probe")
        found.append(timed(words, environment).wall_s)
    print(f"\nThe first query when no server runs starts one: median {median(found) * 1e3:.0f} ms, "
          f"longest {max(found) * 1e3:.0f} ms of {runs} runs.")


def held_gil(work: Path, environment: Mapping[str, str], runs: int) -> None:
    """Print the table for a job in which C code holds the GIL, so that its agent cannot answer."""
    job = subprocess.Popen(
        [sys.executable, str(PROGRAMS / "stall_hangs.py"), "--way", "gil"],
        env=run_environment(environment, sys.executable), cwd=work, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )
    try:
        assert job.stdin is not None and job.stdout is not None
        print(file=job.stdin, flush=True)
        if not any(line.startswith("HANGING") for line in job.stdout):
            raise SystemExit("the job ended before it hung")
        running = {"probe": Job(job, environment)}
        pid, ours = str(job.pid), installed("probe")
        wanted = [
            Command(BASELINE, (sys.executable, "-c", "pass")),
            Command("`probe PID backtrace`", (ours, pid, "backtrace"), "probe", HUNG_BAR_MS),
            Command("`probe PID backtrace --native --all-threads`",
                    (ours, pid, "backtrace", "--native", "--all-threads"), "probe"),
            Command("`probe PID diagnose`", (ours, pid, "diagnose"), "probe"),
        ]
        report("hangs with the GIL held in C", measure(wanted, running, runs), runs)
    finally:
        job.kill()
        job.wait()


def several_ranks(work: Path, environment: Mapping[str, str], runs: int) -> None:
    """Print the tables for a multi-rank job: while it trains, and while it waits for a stopped rank."""
    shared = {
        "WORLD_SIZE": str(RANKS), "TORCHELASTIC_RUN_ID": "bench", "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": "1", "PROBE_NAME": "eight",
    }
    words = ("--forever", "--pace-ms", "100", "--meeting", str(work / "meeting"))
    found: list[subprocess.Popen[str]] = []
    try:
        for rank in range(RANKS):
            own = {**environment, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            found.append(subprocess.Popen(
                [sys.executable, str(PROGRAMS / "ranks_that_reduce.py"), *words],
                env=run_environment(own, sys.executable), cwd=work, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            ))
        for rank in found:
            assert rank.stdout is not None
            if not any(line.startswith("READY") for line in rank.stdout):
                raise SystemExit("a rank ended before it trained")
        running = {"probe": Job(found[0], environment)}
        wanted = [
            Command(BASELINE, (sys.executable, "-c", "pass")),
            Command(f"`probe JOB diagnose`, {RANKS} ranks", (installed("probe"), "eight", "diagnose"),
                    "probe", RANKS_BAR_MS),
        ]
        report(f"has {RANKS} ranks that train", measure(wanted, running, runs), runs)
        found[-1].send_signal(signal.SIGSTOP)
        time.sleep(STALLED_S)
        report(f"has {RANKS} ranks, one of which is stopped", measure(wanted, running, runs), runs)
    finally:
        for rank in found:
            rank.kill()
            rank.wait()


def million(work: Path, environment: Mapping[str, str], rows: int, runs: int) -> None:
    """Print the table of queries over many rows."""
    writer = subprocess.Popen(
        [sys.executable, str(HERE / "million_rows.py"), str(rows)],
        env=dict(environment), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )
    try:
        assert writer.stdout is not None
        if not writer.stdout.readline().startswith("READY"):
            raise SystemExit("the recording with many rows could not be made")
        timed((installed("probe"), "ps"), environment)  # starts the server
        print(f"\n### Queries over {rows:,} rows of python.torch_trace: {runs} runs each\n")
        print("| query | in the worker, median | 95th percentile | target |")
        print("|---|---|---|---|")
        for name, sql in OVER_MILLION.items():
            elapsed_ms = [ask(work / "probe", sql) for _ in range(runs)]
            print(f"| {name} | {median(elapsed_ms):.1f} ms | {percentile(elapsed_ms, 0.95):.1f} ms | "
                  f"{in_ms(median(elapsed_ms), MILLION_BAR_MS)} |")
    finally:
        writer.kill()
        writer.wait()


def ask(directory: Path, sql: str) -> float:
    """Run a query and return the worker's time in milliseconds."""
    time.sleep(GAP_S)
    answer = wire.call(server_socket(directory), "POST", "/v1/query", {"sql": sql}, timeout_s=30.0)
    assert answer["rows"] and not answer["notes"], json.dumps(answer)[:2000]
    return float(answer["elapsed_ms"])


if __name__ == "__main__":
    main()
