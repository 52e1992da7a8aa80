"""Runs one program of `tests/programs` as a job and writes its figures to a file.

    python bench/job.py OUT PROGRAM [ARGUMENTS…]

OUT receives the program's RESULT, with the CPU time and the peak memory of the
process. With BENCH_TOGGLE=N, probe (which must be on) has its instruments removed
and reinstalled every N steps, and OUT says which steps had them: pairs from
one process, free of differences between two starts. With BENCH_TRACE_STEP=1 every
step runs inside `traceml.trace_step`, as its users write it.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import runpy
import sys
from typing import Any


class Tee(io.TextIOBase):
    """stdout that remembers the RESULT line."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.result: dict[str, Any] = {}
        self._line = ""

    def write(self, text: str) -> int:
        self._line += text
        while "\n" in self._line:
            line, self._line = self._line.split("\n", 1)
            if line.startswith("RESULT "):
                self.result = json.loads(line[7:])
            else:
                self.stream.write(line + "\n")
        return len(text)

    def flush(self) -> None:
        self.stream.flush()


def toggle(every: int, blocks: list[int]) -> None:
    """Take probe's instruments out and in at step boundaries; `blocks` gets 1 or 0 per step."""
    from ledger import Ledger  # type: ignore[import-not-found]
    from probe.job.agent.lifecycle import agent_here

    original = Ledger.step
    state = {"on": True}

    def step(ledger: Any, **kwargs: Any) -> None:
        original(ledger, **kwargs)
        blocks.append(int(state["on"]))
        agent = agent_here()
        if agent is not None and ledger.steps % every == 0:
            if state["on"]:
                agent.instruments.uninstall()
            else:
                agent.instruments.install()
            state["on"] = not state["on"]

    Ledger.step = step


def trace_steps() -> None:
    """Put every step into TraceML's context, with the largest module alive as its model."""
    import torch
    from traceml_ai import trace_step  # type: ignore[import-not-found]

    from ledger import Ledger

    original = Ledger.step
    state: dict[str, Any] = {"context": None}

    def step(ledger: Any, **kwargs: Any) -> None:
        original(ledger, **kwargs)
        if state["context"] is not None:
            state["context"].__exit__(None, None, None)
        else:
            modules = [one for one in gc.get_objects() if isinstance(one, torch.nn.Module)]
            state["model"] = max(modules, key=lambda one: sum(1 for _ in one.modules()))
        state["context"] = trace_step(state["model"])
        state["context"].__enter__()

    Ledger.step = step


def main() -> None:
    out, program, *arguments = sys.argv[1:]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    sys.argv = [program, *arguments]
    blocks: list[int] = []
    if os.environ.get("BENCH_TOGGLE"):
        import torch  # noqa: F401  starts probe

        toggle(int(os.environ["BENCH_TOGGLE"]), blocks)
    if os.environ.get("BENCH_TRACE_STEP"):
        trace_steps()
    tee = Tee(sys.stdout)
    sys.stdout = tee  # type: ignore[assignment]
    runpy.run_path(program, run_name="__main__")
    sys.stdout = tee.stream
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "step_wall_s": tee.result["step_wall_s"],
        "parameters_sha256": tee.result["parameters_sha256"],
        "cpu_s": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * 1024,
        "blocks": blocks,
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(figures, file)


if __name__ == "__main__":
    main()
