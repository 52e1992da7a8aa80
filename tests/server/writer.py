"""A recorded process without torch: writes rows, answers as an agent would, obeys lines on stdin.

    python writer.py '{"job": "gpt", "rank": 0, …}'

Prints `ready` and its folder, then answers each command with a line:
`write N` (N steps and everything around them), `run N_PER_S [N]` and `halt` (a thread
that writes on), `fetch` (a pending batch), `got` (completes it), `strange`
(non-finite and extreme values), `log NAME VALUE`, `own TABLE COLUMN TYPE VALUE` (a
row of a table of its own), `deaf`/`busy`/`hear` (the agent
answers nothing, only that it lives, everything), `asked` (how often it was),
`exit` (closes the recording and ends). End of stdin ends it too.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from probe.base import clock, wire
from probe.base.errors import ProbeError
from probe.base.settings import SETTINGS, Settings
from probe.recording import declared, layout, places
from probe.recording.process import current_boot_id, life
from probe.recording.recording import VERSION, Meta, Recording, rings_folders
from probe.recording.tables import BY_NAME, Column

N = layout.NULL_INTEGER
D = layout.NULL_DOUBLE
B = layout.NULL_BOOLEAN


class Writer:
    def __init__(self, wanted: dict[str, Any]) -> None:
        settings = Settings()
        self.directory = places.make_private(places.home(settings))
        places.make_private(self.directory / "agents")
        pid = os.getpid()
        rank, run = wanted.get("rank", 0), wanted.get("run", f"run-{pid}")
        attempt = wanted.get("attempt", 0)
        folder = places.recordings(self.directory) / f"run={run}" / f"attempt={attempt}"
        process = folder / f"process={rank}-{pid}"
        places.make_private(process)
        found = life(pid)
        assert found is not None
        meta = Meta(
            version=VERSION, run=run, attempt=attempt, job=wanted.get("job", "gpt"), rank=rank,
            world_size=wanted.get("world_size", 1), local_rank=rank, host="here", pid=pid,
            start_ticks=found.start_ticks, boot_id=current_boot_id(), uid=os.getuid(), argv=["train.py"],
            cwd=wanted.get("cwd", "/"), executable=sys.executable, python="3", torch="2",
            started_ns=clock.wall_ns(),
            rings=str(next(rings_folders(settings, process, f"{run}.{attempt}.{rank}.{pid}", []))),
            socket=str(places.agent_socket(self.directory, pid)),
            settings={one.name: os.environ.get(one.env, one.default) for one in SETTINGS},
        )
        self.recording = Recording(process, meta, settings)
        self.steps = self.last = 0
        self.fetch = 0
        self.running = threading.Event()
        self.hearing, self.busy = True, False
        self.asked = 0

    def write(self, count: int) -> None:
        """Steps as a training would write them: a batch, a loss, a few module calls, the step."""
        rings, intern = self.recording.rings, self.recording.strings.intern
        for _ in range(count):
            step, now = self.steps, clock.wall_ns()
            rings["python.pulse"].append(step, 0, now, intern("data"))
            rings["python.batches"].append(
                step, 0, now, intern("Text/0"), 0.001, 8, 512, intern("(8, 64)"), intern("int64"),
                intern("done"), 0, step, N, B, B,
            )
            rings["python.losses"].append(step, 0, now, 1.0 / (step + 1), 1, D)
            self.modules(step, now)
            rings["python.steps"].append(*self.step_row(step, now))
            self.steps += 1

    def modules(self, step: int, now: int) -> None:
        ring, intern = self.recording.rings["python.torch_trace"], self.recording.strings.intern
        for place in range(4):
            name = intern(f"transformer.h.{place}")
            ring.append(
                step, 0, step * 4 + place, name, intern("forward"), 100.0, 200.0, D, D,
                0.001 * place, 0.002, 0, now,
            )

    def step_row(self, step: int, now: int, loss: float | None = None) -> list[Any]:
        values: dict[str, Any] = {
            "step": step, "boundary": self.recording.strings.intern("optimizer"), "micro_steps": 1,
            "t_ns": now,
            "wall_s": 0.01, "data_s": 0.001, "forward_s": 0.003, "backward_s": 0.004, "optimizer_s": 0.001,
            "other_s": 0.001, "loss": 1.0 / (step + 1) if loss is None else loss, "lr": 0.001, "skipped": 0,
            "samples": 8, "tokens": 512, "rss_bytes": 100 << 20, "sampled": 1, "shadow": 0, "probe_ns": 1000,
        }
        table = BY_NAME["python.steps"]
        return [values.get(column.name, layout.NULLS[column.type]) for column in table.columns]

    def strange(self) -> None:
        """Four steps whose losses JSON has no words for, and a NULL."""
        for loss in (float("nan"), float("inf"), float("-inf"), D):
            row = self.step_row(self.steps, clock.wall_ns(), loss)
            self.recording.rings["python.steps"].append(*row)
            self.steps += 1

    def pending(self, done: bool) -> None:
        rings, intern = self.recording.rings, self.recording.strings.intern
        row = (
            self.steps, 0, clock.wall_ns(), intern("Text/0"), 1.5 if done else D, 8 if done else N,
            N, 0, 0, intern("done" if done else "pending"), N, N, N, B, B,
        )
        if done:
            rings["python.batches"].put(self.fetch, *row)
        else:
            self.fetch = rings["python.batches"].append(*row)

    def own(self, name: str, column: str, kind: str, value: str) -> None:
        """A row of a table that is declared with the first one."""
        made = declared.user_table(name, "row of a test", [Column(column, kind, "s", "a value")])
        ring = self.recording.rings.get(made.full_name) or self.recording.add(made)
        field = layout.packed_text(value) if kind == "VARCHAR" else float(value)
        ring.append(self.steps, clock.wall_ns(), field)

    def run(self, per_s: float, count: int) -> None:
        """Write so many more steps, in bursts of a hundredth of a second."""
        self.last = self.steps + count
        if self.running.is_set():
            return
        self.running.set()

        def on() -> None:
            while self.running.is_set():
                if self.steps < self.last:
                    self.write(max(1, int(per_s / 100)))
                time.sleep(0.01)

        threading.Thread(target=on, daemon=True).start()

    def serve(self) -> None:
        """Answer as an agent does: stacks, eval, health."""
        listener = wire.listen_unix(Path(self.recording.meta.socket))

        def loop() -> None:
            while True:
                connection, _ = listener.accept()
                # Read here, as agents do: they act in the order in which they accept.
                request = wire.read_request(connection, 5)
                if request.path != "/v1/health":
                    self.asked += 1
                threading.Thread(
                    target=self.converse, args=(connection, request, self.asked), daemon=True
                ).start()

        threading.Thread(target=loop, daemon=True).start()

    def converse(self, connection: Any, request: wire.Request, arrived: int) -> None:
        with connection, contextlib.suppress(OSError, ProbeError):
            while not self.hearing and not (self.busy and request.path == "/v1/health"):
                time.sleep(0.01)
            answer = self.answer(request)
            if request.path == "/v1/act":
                answer["arrived"] = arrived
            wire.write_response(connection, 200, answer)

    def answer(self, request: wire.Request) -> Any:
        if request.path == "/v1/eval":
            return {
                "output": "", "dropped_bytes": 0, "value": request.body["code"].upper(), "error": None,
                "step": self.steps, "elapsed_ms": 1.0,
            }
        if request.path in ("/v1/act", "/v1/undo"):
            return {"id": f"{os.getpid()}-1", "step": self.steps, "what": "said", "asked": request.body}
        if request.path == "/v1/stacks":
            frame = {
                "depth": 0, "func": "main", "file": "train.py", "lineno": 7, "frame_type": "Python",
                "module": None, "is_user": True,
            }
            thread = {"thread_id": os.getpid(), "thread_name": "MainThread", "training": True}
            found = {"capture_id": "c1", "t_ns": clock.wall_ns(), "step": self.steps, "phase": "forward"}
            row = {**found, **frame, **thread, "reason": "request"}
            self.recording.journal.append({"table": "python.stacks", "rows": [row]})
            return {**found, "threads": [{**thread, "frames": [frame]}]}
        return {"pid": os.getpid(), "step": self.steps}

    def close(self) -> None:
        self.running.clear()
        rows = self.recording.end_rows()
        self.recording.journal.append({"event": "exit", "t_ns": clock.wall_ns(), "rows": rows})
        self.recording.close()
        os.unlink(self.recording.meta.socket)


def obey(writer: Writer, words: list[str]) -> str:
    """One command; the answer's line."""
    match words:
        case ["write", count]:
            writer.write(int(count))
        case ["run", per_s, count]:
            writer.run(float(per_s), int(count))
        case ["run", per_s]:
            writer.run(float(per_s), 1 << 60)
        case ["halt"]:
            writer.running.clear()
            time.sleep(0.05)
        case ["fetch"]:
            writer.pending(False)
        case ["got"]:
            writer.pending(True)
        case ["strange"]:
            writer.strange()
        case ["log", name, value]:
            writer.recording.rings["python.scalars"].append(
                writer.steps, clock.wall_ns(), writer.recording.strings.intern(name), float(value), N,
                writer.recording.strings.intern("probe"),
            )
        case ["own", name, column, kind, value]:
            writer.own(name, column, kind, value)
        case ["deaf" | "busy" | "hear" as wanted]:
            writer.hearing, writer.busy = wanted == "hear", wanted == "busy"
        case ["asked"]:
            return f"asked {writer.asked}"
        case _:
            return f"unknown {words}"
    return f"steps {writer.steps}"


def main() -> None:
    writer = Writer(json.loads(sys.argv[1]))
    writer.serve()
    print("ready", writer.recording.process, flush=True)
    for line in sys.stdin:
        words = line.split()
        if words == ["exit"]:
            writer.close()
            print("closed", flush=True)
            break
        print(obey(writer, words), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
