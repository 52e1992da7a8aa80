"""Simulates a host of jobs: recordings of many ranks, written by probe's own writers, and agents that answer.

    python bench/fleet.py '{"job": "fleet", "run": "r1", "ranks": [0, 1], "world_size": 2, "steps": 1000}'

The argument may also be a list of these, for several jobs; a job with `"ended": true` was killed at the end
of its steps.

PROBE_DIR and PROBE_RINGS_DIR give the locations. Each rank has an idle process that provides its PID; this
process writes all their rows: `steps` rows of python.steps, batches and losses, and two collectives per step,
as in data-parallel training with one slow rank. The server's own sealer seals all but the last tenth into
Parquet segments, in `portions` files per table; the rest stays in the rings (of 2 MB, so that a thousand
ranks fit into memory, or of PROBE_RINGS_BYTES). This process answers on every rank's control socket like an
agent: stacks of 24 frames, with all ranks in an all_reduce except every 64th.

Prints `READY` and its folder. Each rank then writes a memory sample every second, like an agent. `go N` on
stdin writes N steps a second for each rank until `halt`; end of file on stdin ends the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from probe.base import clock, wire
from probe.base.settings import SETTINGS, Settings
from probe.recording import layout, places
from probe.recording.process import current_boot_id, life
from probe.recording.recording import VERSION, Meta, Recording, rings_folders
from probe.recording.tables import BY_NAME
from probe.server.recordings.registry import Registry
from probe.server.recordings.sealer import Sealer

RINGS_BYTES = 2 << 20
STEP_S = 0.1
SAMPLE_S = 1.0
FRAMES = 24
LINGERS_EVERY = 64
"""One of this many ranks is not in the collective."""
SLOW_RANK = 5
LIBRARY = "/env/lib/python3.11/site-packages"


class Rank:
    """One simulated rank: its recording, and a process that provides its PID."""

    def __init__(self, wanted: dict[str, Any], rank: int, settings: Settings) -> None:
        self.holder = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        pid = self.holder.pid
        directory = places.home(settings)
        process = (
            places.recordings(directory) / f"run={wanted['run']}" / "attempt=0" / f"process={rank}-{pid}"
        )
        places.make_private(process)
        found = life(pid)
        assert found is not None
        rings = next(rings_folders(settings, process, f"{wanted['run']}.0.{rank}.{pid}", []))
        self.rank = rank
        self.meta = Meta(
            version=VERSION, run=wanted["run"], attempt=0, job=wanted["job"], rank=rank,
            world_size=wanted["world_size"], local_rank=wanted["ranks"].index(rank),
            host=wanted.get("host", socket.gethostname()), pid=pid, start_ticks=found.start_ticks,
            boot_id=current_boot_id(), uid=os.getuid(), argv=["train.py"], cwd="/job",
            executable=sys.executable, python="3.11", torch="2", started_ns=clock.wall_ns(),
            rings=str(rings), socket=str(places.agent_socket(directory, pid)),
            settings={**{setting.name: setting.default for setting in SETTINGS}, "stall_s": "86400"},
        )
        self.recording = Recording(process, self.meta, settings)
        self.steps = 0
        self._random = random.Random(rank)
        self._slow = rank == SLOW_RANK
        self._rows = {name: self._template(name, values) for name, values in self._usual().items()}

    def _usual(self) -> dict[str, dict[str, Any]]:
        """The columns that are the same in all rows, by table."""
        intern = self.recording.strings.intern
        return {
            "python.batches": {
                "micro_step": 0, "loader": intern("Text/0"), "fetch_s": 0.001, "samples": 8, "tokens": 512,
                "shapes": intern("(8, 64)"), "dtypes": intern("int64"), "state": intern("done"),
            },
            "python.pulse": {"micro_step": 0, "phase": intern("forward")},
            "python.losses": {"micro_step": 0, "finite": 1},
            "python.collectives": {
                "micro_step": 0, "pg": intern("0"), "ranks": intern(f"0-{(self.meta.world_size or 1) - 1}"),
                "op": intern("all_reduce"), "dtype": intern("float32"), "shapes": intern("(1048576,)"),
                "elements": 1 << 20, "bytes": 4 << 20, "call_site": intern("train.py:31 average"),
                "asynchronous": 0, "state": intern("done"), "source": intern("call"),
            },
            "python.steps": {
                "boundary": intern("optimizer"), "micro_steps": 1, "wall_s": STEP_S, "data_s": 0.001,
                "backward_s": 0.04, "optimizer_s": 0.005, "held_s": 0.0, "other_s": 0.004, "lr": 0.001,
                "skipped": 0, "samples": 8, "tokens": 512, "rss_bytes": 1 << 30, "sampled": 0, "shadow": 0,
                "probe_ns": 9000,
            },
            "process.memory": {"rss_bytes": 1 << 30, "rss_peak_bytes": 1 << 30, "threads": 9},
        }

    @staticmethod
    def _template(table: str, values: dict[str, Any]) -> tuple[list[Any], dict[str, int]]:
        """A row of a table, and the indices of its columns."""
        columns = BY_NAME[table].columns
        row = [values.get(column.name, layout.NULLS[column.type]) for column in columns]
        return row, {column.name: place for place, column in enumerate(columns)}

    def _put(self, table: str, **values: float) -> None:
        row, places_of = self._rows[table]
        for name, value in values.items():
            row[places_of[name]] = value
        self.recording.rings[table].append(*row)

    def write(self, ended_ns: int) -> None:
        """Write one step that ended at this time."""
        chance, step = self._random, self.steps
        forward_s = chance.gauss(0.03, 0.001) + (0.01 if self._slow else 0.0)
        comm_s = max(0.001, STEP_S * 0.9 - 0.04 - forward_s)
        began_ns = ended_ns - int(STEP_S * 1e9)
        self._put("python.batches", step=step, t_ns=began_ns)
        self._put("python.pulse", step=step, t_ns=began_ns)
        self._put("python.losses", step=step, t_ns=began_ns + int(forward_s * 1e9), loss=chance.random())
        for number in (1, 2):
            called_ns = began_ns + int((forward_s + 0.02 * number) * 1e9)
            self._put("python.collectives", step=step, t_ns=called_ns, seq=2 * step + number,
                      duration_s=comm_s / 2, wait_s=comm_s / 2)
        self._put("python.steps", step=step, t_ns=ended_ns, forward_s=forward_s, comm_s=comm_s,
                  loss=chance.random())
        self.steps += 1

    def sample(self, t_ns: int) -> None:
        """Write a memory sample."""
        self._put("process.memory", step=self.steps, t_ns=t_ns)

    def close(self) -> None:
        """End the rank like a killed process: the recording stays as it is."""
        self.holder.kill()
        self.holder.wait()


def stack(rank: int) -> list[dict[str, Any]]:
    """The stack of a simulated rank, innermost frame first."""
    frames = [("<module>", "/job/train.py", 90, True), ("main", "/job/train.py", 80, True)]
    frames += [(f"call_{depth}", f"{LIBRARY}/trainer/loop{depth}.py", depth, False) for depth in range(19)]
    if rank % LINGERS_EVERY == LINGERS_EVERY - 1:
        frames += [("fetch", "/job/data.py", 40, True), ("read", "/job/data.py", 88, True)]
    else:
        frames += [("average", "/job/train.py", 31, True)]
        frames += [("wrapper", f"{LIBRARY}/torch/distributed/c10d_logger.py", 83, False)]
        frames += [("all_reduce", f"{LIBRARY}/torch/distributed/distributed_c10d.py", 3252, False)]
    return [
        {"depth": depth, "func": func, "file": file, "lineno": line, "frame_type": "Python",
         "module": None, "is_user": user}
        for depth, (func, file, line, user) in enumerate(reversed(frames[:FRAMES]))
    ]


def answer(rank: Rank, listener: socket.socket) -> None:
    """Answer at a control socket like an agent."""
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection, contextlib.suppress(OSError):
            wire.read_request(connection, 5)
            thread = {"process_id": rank.meta.pid, "thread_id": rank.meta.pid, "thread_name": "MainThread",
                      "training": True, "frames": stack(rank.rank)}
            wire.write_response(connection, 200, {
                "capture_id": f"c{rank.rank}", "t_ns": clock.wall_ns(), "step": rank.steps,
                "phase": "backward", "threads": [thread],
            })


def seal(settings: Settings) -> None:
    """Seal the rows that the server would have sealed by now."""
    quick = Settings({**os.environ, "PROBE_SEAL_INTERVAL_S": "0.000001"})
    sealer = Sealer(Registry(places.home(settings)), quick)
    sealer.round()
    sealer.round()  # rows are seen first, and sealed when they are old


def train(ranks: list[Rank], per_s: float, going: threading.Event) -> None:
    """Write steps of all ranks until told to stop."""
    while going.is_set():
        for rank in ranks:
            rank.write(clock.wall_ns())
        time.sleep(1 / per_s)


def sample(ranks: list[Rank]) -> None:
    """Write a memory sample of each rank every second."""
    while True:
        for rank in ranks:
            rank.sample(clock.wall_ns())
        time.sleep(SAMPLE_S)


def made(wanted: dict[str, Any], settings: Settings) -> list[Rank]:
    """Create the ranks of one job with all their steps; the ranks of an ended job are killed."""
    ranks = [Rank(wanted, rank, settings) for rank in wanted["ranks"]]
    steps, portions = wanted["steps"], wanted.get("portions", 1)
    sealed = steps * 9 // 10
    first_ns = clock.wall_ns() - int(steps * STEP_S * 1e9)
    for portion in range(portions):
        for step in range(sealed * portion // portions, sealed * (portion + 1) // portions):
            for rank in ranks:
                rank.write(first_ns + int(step * STEP_S * 1e9))
        if not wanted.get("ended"):
            seal(settings)
    for step in range(sealed, steps):
        for rank in ranks:
            rank.write(first_ns + int(step * STEP_S * 1e9))
    if wanted.get("ended"):
        for rank in ranks:
            rank.close()
        seal(settings)
        return []
    return ranks


def main() -> None:
    wanted = json.loads(sys.argv[1])
    settings = Settings({"PROBE_RINGS_BYTES": str(RINGS_BYTES), **os.environ})
    places.make_private(places.home(settings))
    places.make_private(places.home(settings) / "agents")
    jobs = wanted if isinstance(wanted, list) else [wanted]
    ranks = [rank for job in jobs for rank in made(job, settings)]
    for rank in ranks:
        listener = wire.listen_unix(Path(rank.meta.socket))
        threading.Thread(target=answer, args=(rank, listener), daemon=True).start()
    print("READY", places.home(settings), flush=True)
    threading.Thread(target=sample, args=(ranks,), daemon=True).start()
    going = threading.Event()
    for line in sys.stdin:
        if line.startswith("go"):
            going.set()
            threading.Thread(target=train, args=(ranks, float(line.split()[1]), going), daemon=True).start()
        else:
            going.clear()
        print("OK", flush=True)
    for rank in ranks:
        rank.close()
    os._exit(0)


if __name__ == "__main__":
    main()
