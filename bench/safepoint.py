"""Measures the cost of an idle step boundary, and of a snippet or an action that runs there.

    python bench/safepoint.py [--times N] [--quick]

Idle boundary: CPU time of the training thread's check for pending work: a loop of millions of checks minus
the same loop without them. Then three jobs that train on one thread receive requests over their agent's
socket, N times each, alternating; "answered" is the time from request to answer, "held" is measured by the
agent on the training thread. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

from latency import machine
from overhead import HERE, PROGRAMS, places

from probe.base import wire
from probe.boot.startup import run_environment
from probe.job.instruments.core.recorder import Recorder
from probe.job.snippets.state_restore import Kept
from probe.recording.places import agent_socket

CHECKS = 5_000_000
CHECKS_PER_STEP = 3
"""One check at a step's end, one at its batch, one at its first forward."""
STEPS_OF_BIG = 10**7
READS = "optimizer.param_groups[0]['lr']"
CHANGES = "optimizer.param_groups[0]['lr'] = optimizer.param_groups[0]['lr']"
DRAWS = "import torch\ntorch.rand(3).sum()"


class Request(NamedTuple):
    """One kind of request; `body` is called for each request."""

    name: str
    route: str
    body: Callable[[Path], dict[str, Any]]


def snippet(name: str, code: str, when: str = "auto") -> Request:
    body = {"code": code, "timeout_s": 10, "wait_s": 60, "when": when}
    return Request(name, "/v1/eval", lambda _work: body)


def action(name: str, kind: str, make: Callable[[Path], dict[str, Any]]) -> Request:
    return Request(
        name, "/v1/act", lambda work: {"action": kind, "arguments": make(work), "wait_s": 60}
    )


SNIPPETS = (
    snippet("read-only snippet, run at once", READS),
    snippet("the same snippet between two steps", READS, "step"),
    snippet("snippet that sets a learning rate", CHANGES),
    snippet("snippet that draws random numbers", DRAWS),
)
LR = action("`lr --scale`, verified over the next steps", "lr", lambda _work: {"scale": 0.9999})
SAVE = action(
    "`checkpoint`, written and read back", "checkpoint",
    lambda work: {"path": str(work / "bench.pt"), "overwrite": True},
)


class Program(NamedTuple):
    """A job; `first` is written to its stdin, then it prints the line `awaited`, if any."""

    name: str
    words: tuple[str, ...]
    requests: tuple[Request, ...]
    first: str = ""
    awaited: str = "READY"
    rounds: float = 1.0


JOBS = (
    Program(
        "One-millisecond step, no loader", (str(PROGRAMS / "one_millisecond_step.py"), "--forever"),
        (*SNIPPETS, LR),
    ),
    Program(
        "Small GPT with a loader", (str(PROGRAMS / "gpt_in_main.py"), "--size", "small", "--forever"),
        SNIPPETS,
    ),
    Program(
        "50 MB of parameters, 150 MB with AdamW's averages",
        (str(HERE / "steps_on_request.py"), "--width", "2500"), (SNIPPETS[2], SAVE),
        f"{STEPS_OF_BIG}\n", "", 0.4,
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=50, help="requests of each kind")
    parser.add_argument("--quick", action="store_true", help="three of each, as a smoke test")
    arguments = parser.parse_args()
    times = 3 if arguments.quick else arguments.times
    print(machine() + "\n")
    idle(CHECKS // 100 if arguments.quick else CHECKS)
    for program in JOBS:
        with places() as (work, environment):
            measure(program, work, environment, max(3, int(times * program.rounds)))
    print(f"Load average at the end: {os.getloadavg()[0]:.2f}.")


def idle(checks: int) -> None:
    """Print the tables of a boundary without a request, and of the work around each snippet."""
    recorder = object.__new__(Recorder)
    recorder.end_awaited = False
    found = [check_ns(recorder, checks) for _ in range(7)]
    print("### No pending request\n\n| | |\n|---|---|")
    print(f"| one check | {median(found):.1f} ns |")
    step_ns = median(found) * CHECKS_PER_STEP
    print(f"| the checks of one step, {CHECKS_PER_STEP} at most | {step_ns:.0f} ns |\n")
    costs = [restore_us(max(10, checks // 10_000)) for _ in range(7)]
    print("### Before and after each snippet between two steps\n\n| | |\n|---|---|")
    print(f"| reading and comparing random states, modes and settings | {median(costs):.0f} µs |\n")


def check_ns(recorder: Recorder, checks: int) -> float:
    """CPU time of one check."""
    begun_ns = time.thread_time_ns()
    for _ in range(checks):
        pass
    without_ns = time.thread_time_ns() - begun_ns
    begun_ns = time.thread_time_ns()
    for _ in range(checks):
        if recorder.end_awaited:
            raise AssertionError
    return (time.thread_time_ns() - begun_ns - without_ns) / checks


def restore_us(times: int) -> float:
    """Cost of reading and comparing the kept state around a snippet that changes nothing."""
    import numpy.random
    import torch

    begun_ns = time.thread_time_ns()
    for _ in range(times):
        with Kept(training_thread=True) as kept:
            pass
    assert kept.put_back == [] and numpy and torch
    return (time.thread_time_ns() - begun_ns) / times / 1e3


def measure(program: Program, work: Path, environment: dict[str, str], times: int) -> None:
    """Print the table of one job."""
    with job(program, work, environment) as process:
        socket = agent_socket(work / "probe", process.pid)
        step_ms = pace_ms(socket)
        found: dict[str, list[tuple[float, float | None]]] = {one.name: [] for one in program.requests}
        for turn in range(times + 1):
            for one in program.requests:
                begun_s = time.perf_counter()
                answer = wire.call(socket, "POST", one.route, one.body(work), timeout_s=120.0)
                if answer.get("error"):
                    raise SystemExit(f"{one.name}: {answer['error']}")
                if turn:
                    found[one.name].append(((time.perf_counter() - begun_s) * 1e3, answer["held_ms"]))
    print(f"### {program.name}: {step_ms:.1f} ms per step, {times} requests\n")
    print("| request | answered, median | answered, 95 % within | held, median | held, 95 % within |")
    print("|---|---|---|---|---|")
    for name, answers in found.items():
        held = [one for _, one in answers if one is not None]
        answered = middle([took for took, _ in answers])
        print(f"| {name} | {answered} | {middle(held) if held else 'not held |'} |")
    print()


def middle(values: list[float]) -> str:
    """Two table cells: median and 95th percentile."""
    return f"{median(values):,.1f} ms | {quantiles(values, n=20)[-1]:,.1f} ms"


def pace_ms(socket: Path) -> float:
    """Time of a step of the job, over two seconds without requests."""
    first, begun_s = wire.call(socket, "GET", "/v1/health", timeout_s=30.0)["step"], time.perf_counter()
    time.sleep(2.0)
    steps = wire.call(socket, "GET", "/v1/health", timeout_s=30.0)["step"] - first
    return (time.perf_counter() - begun_s) * 1e3 / max(1, steps)


@contextlib.contextmanager
def job(program: Program, work: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Run the job; yields once it trains."""
    process = subprocess.Popen(
        [sys.executable, *program.words], env=dict(run_environment(environment, sys.executable)), cwd=work,
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(program.first)
        process.stdin.flush()
        if program.awaited and not any(line.startswith(program.awaited) for line in process.stdout):
            raise SystemExit(f"the job ended before it printed {program.awaited}")
        socket, waited = agent_socket(work / "probe", process.pid), 0
        while not socket.exists() or wire.call(socket, "GET", "/v1/health", timeout_s=30.0)["step"] < 3:
            time.sleep(0.1)
            waited += 1
            if waited > 600 or process.poll() is not None:
                raise SystemExit("the job does not train")
        yield process
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
