"""Runs one program of `tests/programs` as a job and writes its figures to a file.

    python bench/job.py OUT PROGRAM [ARGUMENTS…]

OUT receives the program's RESULT, with the CPU time and the peak memory of the process. With BENCH_TOGGLE=N,
probe's instruments (probe must be on) are removed and reinstalled every N steps, and OUT lists which steps
had them: pairs from one process, free of differences between two starts. BENCH_TOGGLE_WHAT switches something
else: `samples` (the stack sampler), or a watcher: `top` or `page`. With BENCH_TRACE_STEP=1 every step runs
inside `traceml.trace_step`, as its users write it.
"""

from __future__ import annotations

import gc
import io
import json
import os
import resource
import runpy
import subprocess
import sys
from collections.abc import Callable
from typing import Any


class Tee(io.TextIOBase):
    """A stdout that captures the RESULT line."""

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


def toggle(every: int, what: str, blocks: list[int]) -> None:
    """Toggle `what` every N steps; appends 1 or 0 per step to `blocks`."""
    from ledger import Ledger  # type: ignore[import-not-found]

    original = Ledger.step
    state = {"on": True}
    switch = {"instruments": switch_instruments, "samples": switch_samples}.get(what) or watcher(what)

    def step(ledger: Any, **kwargs: Any) -> None:
        original(ledger, **kwargs)
        blocks.append(int(state["on"]))
        if ledger.steps % every == 0:
            state["on"] = not state["on"]
            switch(state["on"])

    Ledger.step = step


def switch_instruments(on: bool) -> None:
    """Install or remove probe's instruments."""
    from probe.job.agent.lifecycle import agent_here

    agent = agent_here()
    if agent is not None:
        (agent.instruments.install if on else agent.instruments.uninstall)()


def switch_samples(on: bool) -> None:
    """Turn stack sampling in the agent's rounds on or off; the rounds themselves continue."""
    from probe.job.agent.lifecycle import agent_here

    agent = agent_here()
    if agent is not None:
        agent.instruments.stack_sampler.due_ns = 0 if on else 1 << 62


def watcher(what: str) -> Callable[[bool], None]:
    """Start `bench/watcher.py` with `probe top` or the page; returns a function that turns it on and off."""
    words = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "watcher.py"), what]
    environ = {name: value for name, value in os.environ.items() if name != "PROBE"}
    process = subprocess.Popen(
        [*words, str(os.getpid())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
    )

    def switch(on: bool) -> None:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("1\n" if on else "0\n")
        process.stdin.flush()
        if process.stdout.readline().strip() != "done":
            raise SystemExit(f"the watcher {what} has ended")

    return switch


def trace_steps() -> None:
    """Run every step inside TraceML's context, with the largest live module as its model."""
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

        what = os.environ.get("BENCH_TOGGLE_WHAT", "instruments")
        toggle(int(os.environ["BENCH_TOGGLE"]), what, blocks)
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
