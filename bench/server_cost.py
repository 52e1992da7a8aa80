"""Measures the idle cost of one host's server: processor time by thread, and memory, without requests.

    python bench/server_cost.py [--seconds S] [--only NAME …] [--quick]

The recordings are made by `bench/fleet.py` with probe's own writers; their processes wait (only an agent's
memory sample every second) or train ten steps a second each. `ranks of one job` are ranks of one job, `jobs`
are jobs of one rank; `ended` are additional recordings of killed processes whose rows are sealed. The server
is real, in its own PROBE_DIR. After it has settled, the processor time (user and system) of its process and
of each of its threads is read from /proc before and after S seconds. The idle query worker is a separate
process and listed separately. The server's memory is measured after the S seconds, with its peak. Prints a
Markdown table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from latency import machine
from overhead import HERE, stop_server

from probe.base.settings import BY_NAME, Settings
from probe.boot import launch
from probe.recording import places

SETTLE_S, SEAL_WAIT_S = 12.0, 900.0
STEPS, ENDED_STEPS = 100, 20
TRAINS_PER_S = 10
USUAL = BY_NAME["rings_bytes"].default
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Case(NamedTuple):
    """The recordings present while the server is measured."""

    name: str
    jobs: int
    ranks: int
    """Ranks per job."""
    ended: int = 0
    trains: bool = False
    rings_bytes: str = ""
    """Ring size per rank; without it the small one of `bench/fleet.py`."""


CASES = (
    Case("nothing", 0, 0),
    Case("1 waits", 1, 1),
    Case("8 ranks of one job wait", 1, 8),
    Case("8 jobs wait", 8, 1),
    Case("64 ranks of one job wait", 1, 64),
    Case("64 jobs wait", 64, 1),
    Case("8 ranks of one job train", 1, 8, trains=True),
    Case("1 trains", 1, 1, trains=True, rings_bytes=USUAL),
    Case("64 ranks of one job train", 1, 64, trains=True, rings_bytes=USUAL),
    Case("64 ranks of one job with rings of 2 MB train", 1, 64, trains=True),
    Case("64 ranks of one job wait, 960 ended", 1, 64, ended=960),
    Case("64 ranks of one job train, 960 ended", 1, 64, ended=960, trains=True),
)
QUICK = (Case("2 ranks of one job wait, 2 ended", 1, 2, ended=2),)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each case is measured")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cases alone")
    parser.add_argument("--quick", action="store_true", help="two ranks for a second, as a smoke test")
    arguments = parser.parse_args()
    cases = QUICK if arguments.quick else CASES
    seconds = 1.0 if arguments.quick else arguments.seconds
    print(machine())
    print("\n| recordings | of a core | by thread | resident | private dirty | peak | worker |")
    print("|---|---|---|---|---|---|---|")
    for case in cases:
        if arguments.only is None or case.name in arguments.only:
            with host(case) as (directory, going):
                print(measured(case, directory, going, seconds), flush=True)
    print(f"\nLoad average at the end: {os.getloadavg()[0]:.2f}.")


# The host ---------------------------------------------------------------------


@contextlib.contextmanager
def host(case: Case) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    """Create a host with the recordings of a case, and a server that has sealed all ended ones."""
    work = Path(tempfile.mkdtemp(prefix="bench-server-", dir="/dev/shm"))
    directory = work / "probe"
    (work / "rings").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PROBE")}
    environment = {**kept, "PROBE_DIR": str(directory), "PROBE_RINGS_DIR": str(work / "rings")}
    if case.rings_bytes:
        environment["PROBE_RINGS_BYTES"] = case.rings_bytes
    jobs = [
        {"job": f"job{number}", "run": f"run{number}", "ranks": list(range(case.ranks)),
         "world_size": case.ranks, "steps": STEPS}
        for number in range(case.jobs)
    ]
    if case.ended:
        jobs.append({"job": "old", "run": "old", "ranks": list(range(case.ended)), "world_size": case.ended,
                     "steps": ENDED_STEPS, "ended": True})
    generator = subprocess.Popen(
        [sys.executable, str(HERE / "fleet.py"), json.dumps(jobs)], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )
    try:
        assert generator.stdout is not None
        if not generator.stdout.readline().startswith("READY"):
            raise SystemExit("a simulated host could not be made")
        launch.ensure_server(directory, Settings(environment), wait_s=60.0)
        wait_until_sealed(directory, case.ended)
        yield directory, generator
    finally:
        with contextlib.suppress(BrokenPipeError):
            generator.communicate(timeout=600)
        stop_server(directory)
        shutil.rmtree(work, ignore_errors=True)


def wait_until_sealed(directory: Path, ended: int) -> None:
    """Wait until the server has sealed the rows of all ended processes and removed their rings."""
    deadline_s = time.monotonic() + SEAL_WAIT_S
    while time.monotonic() < deadline_s:
        records = [folder / "end.json" for folder in places.process_folders(directory)]
        said = [one.read_bytes().replace(b" ", b"") for one in records if one.exists()]
        if sum(b'"sealed":true' in one for one in said) >= ended:
            return
        time.sleep(1.0)
    raise SystemExit("the server did not seal the ended recordings")


# Measuring --------------------------------------------------------------------


def measured(case: Case, directory: Path, generator: subprocess.Popen[str], seconds: float) -> str:
    """One row of the table."""
    if case.trains:
        tell(generator, f"go {TRAINS_PER_S}")
    pid = int(json.loads((directory / "server.json").read_text())["pid"])
    time.sleep(min(SETTLE_S, seconds))
    workers = children(pid)
    began_s, before, of_workers = time.monotonic(), threads_s(pid), sum(map(total_s, workers))
    time.sleep(seconds)
    lasted_s, after = time.monotonic() - began_s, threads_s(pid)
    worker_ratio = (sum(map(total_s, workers)) - of_workers) / lasted_s
    spent = Counter({name: took_s - before.get(name, 0.0) for name, took_s in after.items()})
    if case.trains:
        tell(generator, "halt")
    memory = memory_bytes(pid)
    named = ", ".join(f"{name} {took_s / lasted_s:.2%}" for name, took_s in spent.most_common(6) if took_s)
    cells = [
        case.name, f"{sum(spent.values()) / lasted_s:.2%}", named, *(
            f"{memory[name] / 1e6:.0f} MB" for name in ("Rss", "Private_Dirty", "VmHWM")
        ), f"{worker_ratio:.2%}, {sum(memory_bytes(worker)['Rss'] for worker in workers) / 1e6:.0f} MB",
    ]
    return f"| {' | '.join(cells)} |"


def tell(generator: subprocess.Popen[str], command: str) -> None:
    """Make the simulated ranks start or stop training."""
    assert generator.stdin is not None and generator.stdout is not None
    print(command, file=generator.stdin, flush=True)
    generator.stdout.readline()


def threads_s(pid: int) -> Mapping[str, float]:
    """Processor time of a process by the name of its threads; threads that have ended count as `ended`."""
    found: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            name = (task / "comm").read_text().strip()
            name = "main" if task.name == str(pid) else name.partition("_")[0]
            found[name] += used_s(task / "stat")
    found["ended"] = total_s(pid) - sum(found.values())
    return found


def total_s(pid: int) -> float:
    """Processor time of a whole process so far; 0 if it is gone."""
    try:
        return used_s(Path(f"/proc/{pid}/stat"))
    except OSError:
        return 0.0


def used_s(stat: Path) -> float:
    """Sum of utime and stime in a stat file of /proc."""
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def children(pid: int) -> list[int]:
    """The query workers of a server."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def memory_bytes(pid: int) -> Counter[str]:
    """Rss and Private_Dirty, and the highest Rss so far (VmHWM)."""
    found: Counter[str] = Counter()
    for file in ("smaps_rollup", "status"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in ("Rss", "Private_Dirty", "VmHWM"):
                    found[name] = int(value.split()[0]) * 1024
    return found


if __name__ == "__main__":
    main()
