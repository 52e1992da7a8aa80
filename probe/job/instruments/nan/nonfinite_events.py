"""Nonfinite events: a detected NaN or infinity, from its trace to its rows.

Created on the training thread, finished on the agent's (`over`). Writes python.nonfinite and python.inputs.
Standard library only; torch inside the functions called.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from probe.base import accelerator
from probe.base.clock import wall_ns
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.batch_history import Batch, Batches, as_list
from probe.job.instruments.nan import nan_origin, nan_trace
from probe.job.instruments.nan.forked_probe import ForkedProbe
from probe.recording.journal import Journal
from probe.recording.layout import NULL_DOUBLE, NULL_INTEGER

MOST_CHARACTERS = 4000
_INPUT_COLUMNS = {
    "mean": "mean",
    "std": "std",
    "min": "min",
    "max": "max",
    "nan_count": "nan",
    "inf_count": "inf",
}


@dataclass
class NonfiniteEvent:
    """An event; `child` or `held` traces it, `row` is set once it is finished."""

    recorder: Recorder
    batches: Batches
    scene: nan_trace.Scene
    seen: nan_origin.Seen
    seen_step: int
    child: ForkedProbe | None = None
    held: dict[str, Any] | None = None
    """The findings of a held trace; None without one."""
    took_s: float = 0.0
    event_id: str = ""
    row: dict[str, Any] = field(default_factory=dict)
    t_ns: int = field(default_factory=wall_ns)
    begun_s: float = field(default_factory=time.monotonic)

    def over(self, journal: Journal) -> bool:
        """Whether the trace is over; if so, writes its rows. On the agent's thread."""
        if self.child is not None and not self.child.collect():
            return False
        self.finish(journal, "")
        return True

    def finish(self, journal: Journal, why: str) -> None:
        """Write the rows. `why`: the reason if the trace was ended early."""
        found: dict[str, Any] = {}
        if self.child is not None:
            self.child.end()
            found = self.child.found
            if not found.get("whole"):
                after_s = time.monotonic() - self.begun_s
                found["cut short"] = why or f"the trace was stopped after {after_s:.0f} s, unfinished"
        else:
            on_a_device = accelerator.current() is not None or self.held is not None
            nan_trace.trace_without_fork(self.scene, found.__setitem__, on_a_device=on_a_device)
            found.update(self.held or {})
        self.took_s = time.monotonic() - self.begun_s
        self.event_id = uuid.uuid4().hex[:12]
        self.row = self._row(found)
        journal.append({"table": "python.nonfinite", "rows": [self.row]})
        summary, batch = found.get("batch"), self.scene.batch
        if summary and "tensors" in summary and batch is not None:
            rows = inputs_rows(summary, batch, self.t_ns, "event")
            journal.append({"table": "python.inputs", "rows": rows})
        self.scene = self.scene._replace(root=None, call=None, batch=None, roots=[], optimizers=[])

    def _row(self, found: dict[str, Any]) -> dict[str, Any]:
        lr = self._lr()
        origin = nan_origin.find_origin(self.seen._replace(lr=lr), found)
        scale = self.recorder.loss_scale
        return {
            "event_id": self.event_id,
            "step": _known(origin.step),
            "micro_step": origin.micro_step,
            "t_ns": self.t_ns,
            "direction": origin.direction,
            "kind": origin.kind,
            "module": origin.module,
            "param": origin.param,
            "op": origin.op,
            "cause": origin.cause,
            "evidence": "\n".join(origin.evidence)[:MOST_CHARACTERS],
            "seen_by": self.seen.seen_by,
            "seen_step": _known(self.seen_step),
            "inputs": nan_origin.as_json(origin.inputs),
            **self._of_batch(origin, found),
            "lr": lr,
            "loss_scale": None if scale == NULL_DOUBLE else scale,
        }

    def _of_batch(self, origin: nan_origin.Origin, found: dict[str, Any]) -> dict[str, Any]:
        """loader, indices, bad_samples and content_hash of the micro step, or of an earlier step."""
        batch, summary = self.scene.batch, found.get("batch") or {}
        if origin.step != self.seen.step:
            return self._of_earlier(self.batches.of_step(origin.step))
        indices = as_list(batch.indices) if batch is not None else None
        positions = summary.get("bad_positions") or []
        known = indices is not None and all(place < len(indices) for place in positions)
        bad = [indices[place] for place in positions] if known and indices is not None else positions
        return {
            "loader": batch.loader if batch is not None else None,
            "indices": as_text(indices),
            "bad_samples": as_text(bad) if bad and known else None,
            "content_hash": summary.get("hash"),
        }

    def _of_earlier(self, batches: list[Batch]) -> dict[str, Any]:
        all_known = [as_list(batch.indices) for batch in batches]
        known = [indices for indices in all_known if indices is not None]
        return {
            "loader": batches[0].loader if batches else None,
            "indices": as_text([one for indices in known for one in indices]) if known else None,
            "bad_samples": None,
            "content_hash": None,
        }

    def _lr(self) -> float | None:
        for optimizer in self.scene.optimizers[:1]:
            rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
            return float(rate) if isinstance(rate, (int, float)) else None
        return None


class KeptBatch(NamedTuple):
    """A batch that can be saved, and its event; `event` is None for the newest batch without an event."""

    event: NonfiniteEvent | None
    batch: Batch


def inputs_rows(summary: dict[str, Any], batch: Batch, t_ns: int, reason: str) -> list[dict[str, Any]]:
    """Rows of python.inputs from a `tensor_summaries.batch_summary`."""
    indices = as_text(as_list(batch.indices))
    return [
        {
            "step": _known(batch.step),
            "micro_step": batch.micro_step,
            "t_ns": t_ns,
            "loader": batch.loader,
            "name": one["name"],
            "shape": one["shape"],
            "dtype": one["dtype"],
            **{column: one.get(name) for column, name in _INPUT_COLUMNS.items()},
            "zero_ratio": one["zeros"] / one["elements"] if one.get("elements") else None,
            "indices": indices,
            "content_hash": summary["hash"],
            "reason": reason,
        }
        for one in summary["tensors"]
    ]


def as_text(indices: list[Any] | None) -> str | None:
    """Indices as text such as `[3, 17]`, truncated to `MOST_CHARACTERS`."""
    if indices is None:
        return None
    text = str(indices)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _known(step: int) -> int | None:
    return None if step == NULL_INTEGER else step
