"""Measures the cost of the job's own rows, spans and events, recorded and not.

    python bench/own_rows.py

Reports the best of many groups of calls, because other load only adds time. No training: only a ring in
memory.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import probe
from probe.base.isolation import Isolation
from probe.job.instruments.own_tables import HERE, Live
from probe.recording.ring import Ring
from probe.recording.tables import Table

GROUPS, CALLS = 3000, 100


@probe.table
@dataclass
class Numbers:
    """row of three numbers"""

    loss: float
    tokens: int
    accepted: bool


@probe.table
@dataclass
class Words:
    """row of a text and a number"""

    judge: str
    score: float


def best_ns(call: Callable[[], object]) -> float:
    found = float("inf")
    for _ in range(GROUPS):
        began = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        found = min(found, (time.perf_counter_ns() - began) / CALLS)
    return found


def timed() -> None:
    with probe.span("rollout"):
        pass


def main() -> None:
    numbers, words = Numbers(0.5, 17, True), Words("length", 0.5)
    calls: dict[str, Callable[[], object]] = {
        "an empty function": lambda: None,
        "making an object": lambda: Numbers(0.5, 17, True),
        "a row of three numbers": lambda: probe.record(numbers),
        "a row with a text": lambda: probe.record(words),
        "a span": timed,
        "an event": lambda: probe.event("saved"),
    }
    off = {name: best_ns(call) for name, call in calls.items()}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        rings: dict[str, Ring] = {}

        def add(table: Table) -> Ring:
            ring = rings[table.full_name] = Ring(Path(folder, f"{table.full_name}.ring"), table, table.rows)
            return ring

        recording: Any = SimpleNamespace(rings=rings, add=add)
        recorder: Any = SimpleNamespace(step=0, thread=threading.get_ident())
        HERE.attach(Live(recording, recorder, Isolation()))
        print("| call | recorded | not recorded |\n| --- | --- | --- |")
        for name, call in calls.items():
            print(f"| {name} | {best_ns(call):,.0f} ns | {off[name]:,.0f} ns |", flush=True)
        HERE.detach()


if __name__ == "__main__":
    main()
