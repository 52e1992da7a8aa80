"""Measures coordinated actions: time to change all ranks at the same step, and how long each rank is held.

    .venv/bin/python bench/coordinated.py [--ranks 4] [--times 20] [--pace-ms 5 50]

Starts gloo ranks on this machine, repeatedly halves and doubles their learning rate, and checks in
python.steps that every change was at the same step on all ranks. Prints the table of docs/ranks.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from harness import DEPLOYED, Place, answers  # noqa: E402
from probe.base import wire  # noqa: E402
from probe.recording import places  # noqa: E402
from ranks import running_ranks  # noqa: E402


def post(place: Place, path: str, **body: Any) -> dict[str, Any]:
    """The server's answer."""
    socket = places.server_socket(place.directory)
    while not answers(socket):
        time.sleep(0.01)
    answer: dict[str, Any] = wire.call(socket, "POST", path, body, timeout_s=120.0)
    return answer


def rows(place: Place, job: str, sql: str) -> list[list[Any]]:
    """Rows of a query over all ranks."""
    found: list[list[Any]] = post(place, "/v1/query", endpoint=job, sql=sql)["rows"]
    return found


def measure(ranks_count: int, pace_ms: float, times: int) -> str:
    """One line of the table."""
    place = Place()
    try:
        options = ("--way", "reduce", "--forever", "--pace-ms", str(pace_ms))
        with running_ranks(place, ranks_count, "parallel", *options, **DEPLOYED) as ranks:
            code = "optimizer.param_groups[0]['weight_decay'] = 0.0"  # answered as soon as it has run
            took_s: list[float] = []
            for number in range(times):
                begun_s = time.monotonic()
                post(place, "/v1/eval", endpoint=ranks.name, code=code)
                took_s.append(time.monotonic() - begun_s)
                factor = 0.5 if number % 2 == 0 else 2.0
                answer = post(
                    place, "/v1/act", endpoint=ranks.name, action="lr", arguments={"scale": factor}
                )
                steps = {one["answer"]["step"] for one in answer["answers"]}
                changed = rows(
                    place, ranks.name,
                    "SELECT count(DISTINCT rank), count(DISTINCT lr) FROM python.steps"
                    f" WHERE step = {answer['step']}",
                )
                assert steps == {answer["step"]} and changed == [[ranks_count, 1]], answer
            every = rows(place, ranks.name, "SELECT held_s FROM python.steps WHERE held_s IS NOT NULL")
            usual = rows(place, ranks.name, "SELECT median(wall_s) FROM python.steps")[0][0]
        held_ms = [one[0] * 1e3 for one in every]
        assert len(held_ms) == 2 * times * ranks_count
        return (
            f"| {ranks_count} | {usual * 1e3:.0f} ms | {statistics.median(took_s):.2f} s |"
            f" {max(took_s):.2f} s |"
            f" {statistics.median(held_ms):.1f} ms | {max(held_ms):.0f} ms |"
        )
    finally:
        place.close()
        place.remove()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--pace-ms", type=float, nargs="*", default=[5.0, 50.0])
    arguments = parser.parse_args()
    print("| ranks | usual step | total, median | worst | held, median | worst |")
    print("| --- | --- | --- | --- | --- | --- |")
    for pace_ms in arguments.pace_ms:
        print(measure(arguments.ranks, pace_ms, arguments.times), flush=True)


if __name__ == "__main__":
    main()
