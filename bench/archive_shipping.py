"""Measures the cost of shipping a recording to an archive: processor time of the shipping thread.

    python bench/archive_shipping.py [--rounds N] [--interval S]

A real job trains next to a real server that seals every 5 s. The recording is shipped N times, S seconds
apart, from a thread of this process to an archive in a folder, without limits. The first shipment, which also
ships facts and module sources, is listed separately. Then the job is stopped (SIGSTOP), the remaining rows
are shipped, and N shipments find nothing new. The processor time is the thread's (`time.thread_time`). The
share assumes 100 training ranks, each shipped once per default PROBE_ARCHIVE_INTERVAL_S, with as many rows as
the job wrote in S seconds. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from latency import machine  # noqa: E402

from harness import Place, running  # noqa: E402
from probe.archive.shipping import Shipper  # noqa: E402
from probe.archive.store import FolderStore  # noqa: E402
from probe.archive.throttle import Pace  # noqa: E402
from probe.base.settings import BY_NAME  # noqa: E402
from probe.recording import places  # noqa: E402

SEAL_S, INTERVAL_S, RANKS = 5.0, float(BY_NAME["archive_interval_s"].default), 100
PROGRAM = ("gpt_with_schedule", "--forever")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="shipments of each kind")
    parser.add_argument("--interval", type=float, default=12.0, help="seconds between two with new rows")
    arguments = parser.parse_args()
    place = Place()
    settings = {"PROBE_SEAL_INTERVAL_S": str(SEAL_S), "REST_S": "0"}
    try:
        with running(place, *PROGRAM, **settings) as job, tempfile.TemporaryDirectory() as folder:
            place.start_server(**settings)
            shipper = Shipper(place.directory, FolderStore(Path(folder)), Pace(0, 1.0, threading.Event()))
            [process] = places.process_folders(place.directory)
            time.sleep(arguments.interval)
            first = cost_s(shipper, process)
            new = []
            for _ in range(arguments.rounds):
                time.sleep(arguments.interval)
                new.append(cost_s(shipper, process))
            files = len(list(shipper.store.list()))
            os.kill(job.pid, signal.SIGSTOP)
            time.sleep(2 * SEAL_S + 2)
            cost_s(shipper, process)
            nothing = [cost_s(shipper, process) for _ in range(arguments.rounds)]
            os.kill(job.pid, signal.SIGCONT)
    finally:
        place.remove()
    print(machine())
    share = f"of a core, 100 ranks every {INTERVAL_S:.0f} s"
    print(f"\n| shipment | processor time | {share} |\n| --- | ---: | ---: |")
    for name, found in (("first", [first]), ("new rows", new), ("nothing new", nothing)):
        middle_s = statistics.median(found)
        print(f"| {name} | {middle_s * 1e3:.1f} ms | {middle_s * RANKS / INTERVAL_S:.2%} |")
    each = ", ".join(f"{one * 1e3:.0f}" for one in new)
    print(f"\nNew rows: {each} ms; {files} objects after {1 + arguments.rounds} shipments.")


def cost_s(shipper: Shipper, process: Path) -> float:
    """Processor time of one shipment."""
    began_s = time.thread_time()
    shipper.ship(process)
    return time.thread_time() - began_s


if __name__ == "__main__":
    main()
