"""Dependence audit: checks that a model's outputs depend on the right inputs, and on no others.

Writes python.dependence. On the training thread, right before a backward, on a few steps of a run: forks the
process (`nan.forked_probe`), and the child repeats the model's last call with parts of its arguments replaced
(`questions`) while training continues. The agent's thread collects the rows. A fork freezes the state without
copying the model, and leaves random states, buffers and modes unchanged; it holds the training for as long as
copying the page tables takes. torch inside functions.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from probe.base import descriptors
from probe.base.clock import wall_ns
from probe.base.isolation import Isolation, capture, describe
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.dependence import questions
from probe.job.instruments.loop.batch_history import as_list
from probe.job.instruments.modules.module_names import ModuleNames
from probe.job.instruments.nan import forked_probe
from probe.job.instruments.nan.nan_trace import replay_refusal
from probe.recording.journal import Journal

FIRST_STEP = 32
TIMES_LATER = 10
"""The next audit comes at this many times the current step: models rarely change."""
MOST_AUDITS = 4
WAIT_STEPS = 16
"""Steps until the next attempt, while the run is too young for the cost."""
COST_S, COST_S_PER_BYTE = 0.01, 0.4 / 1e9
"""Upper bound of the cost, by the process's private memory. Measured: a fork takes 10 ms plus 20 ms per GB of
CPU time, and each GB that the training writes while the child lives takes 350 ms more, once."""
DEADLINE_S = 30.0
MOST_CPU_S = 20
ROOM_BYTES = 2 << 30
"""Memory that the child may use beyond the parent's."""
LONGEST_TEXT = 500
_NEVER = 1 << 62
_DISTURBED_BY_FORKS = ("jax", "tensorflow", "ray", "grpc", "mpi4py", "horovod")
"""Libraries that warn about a fork, wait for their own threads in it, or forbid it."""
_COLUMNS = (
    "question", "subject", "samples", "positions", "axis", "known_by", "effect", "leak", "effect_ratio",
    "leak_ratio", "module", "class", "attends", "values", "refused",
)


class DependenceAudit:
    """Audits the model from step `due` on. `call` returns the model's call of this micro step, as kept by the
    NaN detector."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, names: ModuleNames, call: Callable[[], Any],
        journal: Journal, budget_ratio: float,
    ) -> None:
        self.due = FIRST_STEP
        self._recorder, self._names, self._call = recorder, names, call
        self._journal, self._budget_ratio = journal, budget_ratio
        self._pid = os.getpid()
        self.begun_s = time.monotonic()
        """When recording began: an audit's cost is compared with the time since then."""
        self.audits_written = 0
        self._audits = 0
        self._child: forked_probe.ForkedProbe | None = None
        self._context: dict[str, Any] = {}
        self._rows: list[dict[str, Any]] = []
        self._collecting = threading.Lock()
        self.run = isolation.guard("dependence", self._audit)
        """Called right before the first backward of a step, if due, with the node next to its root."""

    def uninstall(self) -> None:
        """End a running audit."""
        self.due = _NEVER
        if os.getpid() == self._pid:
            with self._collecting:
                child, self._child = self._child, None
                if child is not None:
                    child.end()

    # The training thread ------------------------------------------------------

    def _audit(self, first: Any) -> None:
        if self._child is not None or os.getpid() != self._pid or not _is_rank_zero():
            self.due = self._recorder.step + WAIT_STEPS
            return
        try:
            if not self._old_enough():
                self.due = self._recorder.step + WAIT_STEPS
                return
            refused_here = forked_probe.refusal()
        except OSError:  # the job has no descriptor left, or may not open any
            self.due = self._recorder.step + WAIT_STEPS
            return
        self._audits += 1
        step = max(self._recorder.step, 1)
        self.due = step * TIMES_LATER if self._audits < MOST_AUDITS else _NEVER
        call = self._call()
        self._context = {
            "step": self._recorder.step, "t_ns": wall_ns(),
            "model": type(call.module).__name__ if call is not None else None,
        }
        refused = self._refusal(call) or refused_here
        if not refused:
            refused = self._fork(call, first)
        if refused:
            self._rows = [{**self._context, "question": "all", "refused": refused}]

    def _fork(self, call: Any, first: Any) -> str:
        alone = forked_probe.ranks()[1] == 1
        scene = questions.Scene(call, first, _samples(call.batch), alone, self._names.path)

        def examine(send: questions.Send) -> None:
            _limit()
            questions.ask(scene, send)

        child, error = capture(lambda: forked_probe.ForkedProbe(examine, DEADLINE_S))
        if error is not None and not isinstance(error, OSError):
            raise error
        if child is None or error is not None:
            return describe(error) if error is not None else "the fork failed"
        self._context["held_ms"] = child.took_ms
        self._child = child
        return ""

    def _old_enough(self) -> bool:
        """Whether the run has lasted long enough for the cost to stay within the budget."""
        age_s = time.monotonic() - self.begun_s
        return COST_S + forked_probe.own_bytes() * COST_S_PER_BYTE <= self._budget_ratio * age_s

    def _refusal(self, call: Any) -> str:
        for name in _DISTURBED_BY_FORKS:
            if name in sys.modules:
                return f"the process uses {name}, which a fork may disturb"
        on_device = call is not None and any(not one.is_cpu for one in call.module.parameters())
        return (
            replay_refusal(call)
            or ("the model is on a device, where a fork cannot repeat its forward" if on_device else "")
        )

    # The agent's thread -------------------------------------------------------

    def collect(self) -> None:
        """Write the rows found."""
        with self._collecting:
            rows, self._rows = self._rows, []
            child = self._child
            if child is not None and child.collect():
                self._child = None
                rows += self._found(child)
            if rows:
                self._journal.append({"table": "python.dependence", "rows": [self._row(row) for row in rows]})
                self.audits_written += 1

    def _found(self, child: forked_probe.ForkedProbe) -> list[dict[str, Any]]:
        rows = [{**self._context, **row} for row in child.found.values() if isinstance(row, dict)]
        if not child.found.get("whole"):
            why = child.found.get("error") or "it was stopped at its limit of time or memory, or crashed"
            rows.append({**self._context, "question": "all", "refused": f"the audit did not end: {why}"})
        return rows

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        found = {name: row.get(name) for name in ("step", "t_ns", "model", "held_ms", *_COLUMNS)}
        return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    """The value with text truncated, and NULL for a non-finite number."""
    if isinstance(value, str):
        return value[:LONGEST_TEXT]
    return None if isinstance(value, float) and value - value != 0.0 else value


def _samples(batch: Any) -> int | None:
    """Number of samples in the loader's batch; None unless its sampler drew indices."""
    indices = as_list(batch.indices) if batch is not None else None
    return len(indices) if indices else None


def _is_rank_zero() -> bool:
    """Whether this is rank 0, by its launcher and by its process groups: spawned ranks may have no RANK."""
    return os.environ.get("RANK", "0") == "0" and forked_probe.ranks()[0] == 0


def _limit() -> None:
    """In the child: limit CPU time, and memory beyond the parent's."""
    pages = descriptors.read_text("/proc/self/statm").split()
    most = int(pages[0]) * os.sysconf("SC_PAGE_SIZE") + ROOM_BYTES
    capture(lambda: resource.setrlimit(resource.RLIMIT_AS, (most, most)))
    capture(lambda: resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S)))
