"""Creates a recording with many rows, with the writer and sealer that every job uses; waits until stdin ends.

    python bench/million_rows.py ROWS

Writes python.torch_trace like a GPT of six blocks with every step sampled, with durations and memory that
vary like measured ones (so that they do not compress away), in portions that fit into the ring, with one pass
of the sealer after each. Prints `READY FOLDER` and stays alive, so that the recording looks like a running
job's: most rows in segments, the last ones in the ring.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "server"))

from writer import D, Writer  # type: ignore[import-not-found]

from probe.base import clock
from probe.base.settings import Settings
from probe.server.recordings.registry import Registry
from probe.server.recordings.sealer import Sealer

LEAVES = (
    "attention_norm", "attention", "attention.qkv", "attention.out", "mlp_norm", "mlp", "mlp.0", "mlp.2",
)
MODULES = ("GPT", "token", "position", "norm", "head",
           *(f"blocks.{block}.{leaf}" for block in range(6) for leaf in LEAVES))
PORTION_STEPS = 100


def main() -> None:
    rows = int(sys.argv[1])
    random.seed(1)
    writer = Writer({"job": "million"})
    sealer = Sealer(Registry(writer.directory), Settings())
    step = 0
    written = 0
    while written < rows:
        for _ in range(PORTION_STEPS):
            written += write_step(writer, step, written, rows)
            step += 1
        sealer.round()
    print(f"READY {writer.recording.process}", flush=True)
    sys.stdin.read()
    writer.recording.close()


def write_step(writer: Writer, step: int, written: int, rows: int) -> int:
    """Write one step's forward and backward rows and its step row; at most as many as `rows` still needs."""
    rings, intern = writer.recording.rings, writer.recording.strings.intern
    append = rings["python.torch_trace"].append
    start_ns = clock.wall_ns()
    offset_s = 0.0
    count = 0
    for stage, modules in (("forward", MODULES), ("backward", MODULES[::-1])):
        for module in modules:
            if written + count >= rows:
                break
            count += 1
            duration_s = random.lognormvariate(-7.5, 0.8)
            offset_s += duration_s
            append(
                step, 0, written + count, intern(module), intern(stage), random.uniform(600.0, 700.0), 700.0,
                D, D, offset_s, duration_s, 0, start_ns + int(offset_s * 1e9),
            )
    rings["python.steps"].append(*writer.step_row(step, start_ns + int(offset_s * 1e9)))
    return count


if __name__ == "__main__":
    main()
