"""Nonfinite events: one that was noticed, from the look at it to its rows.

Made on the training thread, carried on by the agent's (`over`). Writes python.nonfinite and
python.inputs. Standard library only; torch inside what is called.
"""

from __future__ import annotations

import sys
import time
import uuid
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from probe.base.clock import wall_ns
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.batch_history import Batch, Batches, as_list
from probe.job.instruments.nan import nan_origin, nan_trace
from probe.job.instruments.nan.forked_probe import Frozen
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
    """What was known when it was noticed; `row` once it is judged."""

    recorder: Recorder
    batches: Batches
    scene: nan_trace.Scene
    seen_by: str
    kind: str
    step: int
    micro_step: int
    seen_step: int
    losses: list[float]
    looked_before: bool
    norm_before: float | None
    several_ranks: bool = field(default_factory=lambda: _several_ranks())
    refused: str = ""
    look: Frozen | None = None
    took_s: float = 0.0
    event_id: str = ""
    row: dict[str, Any] = field(default_factory=dict)
    t_ns: int = field(default_factory=wall_ns)
    begun_s: float = field(default_factory=time.monotonic)

    def over(self, journal: Journal) -> bool:
        """Whether the look is over; its rows are written then. On the agent's thread."""
        if self.look is not None and not self.look.collect():
            return False
        self.finish(journal, "")
        return True

    def finish(self, journal: Journal, why: str) -> None:
        """Judge what was found, and write it. `why`: what ended the look before its end."""
        found: dict[str, Any] = {}
        if self.look is not None:
            self.look.end()
            found = self.look.found
            if not found.get("whole"):
                found["look"] = (
                    why or f"the look ended after {time.monotonic() - self.begun_s:.0f} s, before it was done"
                )
        else:
            nan_trace.look_without_fork(self.scene, found.__setitem__, on_a_device=self._on_a_device())
        self.took_s = time.monotonic() - self.begun_s
        self.event_id = uuid.uuid4().hex[:12]
        self.row = self._row(found)
        journal.append({"table": "python.nonfinite", "rows": [self.row]})
        inputs = self._inputs(found)
        if inputs:
            journal.append({"table": "python.inputs", "rows": inputs})
        self.scene = self.scene._replace(root=None, call=None, batch=None, roots=[], optimizers=[])

    def _on_a_device(self) -> bool:
        """Whether looking at parameters would wait for a device."""
        torch: Any = sys.modules["torch"]
        return bool(torch.cuda.is_initialized())

    def _row(self, found: dict[str, Any]) -> dict[str, Any]:
        lr = self._lr()
        judged = nan_origin.judge(
            nan_origin.Event(
                self.step,
                self.micro_step,
                self.seen_by,
                self.kind,
                lr,
                self.losses,
                self.looked_before,
                self.norm_before,
                self.several_ranks,
                self.refused,
            ),
            found,
        )
        scale = self.recorder.loss_scale
        return {
            "event_id": self.event_id,
            "step": _known(judged.step),
            "micro_step": judged.micro_step,
            "t_ns": self.t_ns,
            "direction": judged.direction,
            "kind": judged.kind,
            "module": judged.module,
            "param": judged.param,
            "op": judged.op,
            "cause": judged.cause,
            "evidence": "\n".join(judged.evidence)[:MOST_CHARACTERS],
            "seen_by": self.seen_by,
            "seen_step": _known(self.seen_step),
            "inputs": nan_origin.as_json(judged.inputs),
            **self._of_batch(judged, found),
            "lr": lr,
            "loss_scale": None if scale == NULL_DOUBLE else scale,
        }

    def _of_batch(self, judged: nan_origin.Origin, found: dict[str, Any]) -> dict[str, Any]:
        """loader, indices, bad_samples, content_hash: of the micro step, or of an earlier step."""
        batch, looked = self.scene.batch, found.get("batch") or {}
        if judged.step != self.step:
            return self._of_earlier(self.batches.of_step(judged.step))
        indices = as_list(batch.indices) if batch is not None else None
        positions = looked.get("bad_positions") or []
        known = indices is not None and all(place < len(indices) for place in positions)
        bad = [indices[place] for place in positions] if known and indices is not None else positions
        return {
            "loader": batch.loader if batch is not None else None,
            "indices": as_text(indices),
            "bad_samples": as_text(bad) if bad and known else None,
            "content_hash": looked.get("hash"),
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

    def _inputs(self, found: dict[str, Any]) -> list[dict[str, Any]]:
        looked = found.get("batch")
        batch = self.scene.batch
        if not looked or "tensors" not in looked or batch is None:
            return []
        return inputs_rows(looked, batch, self.t_ns, "event")

    def _lr(self) -> float | None:
        for optimizer in self.scene.optimizers[:1]:
            rate = optimizer.param_groups[0].get("lr") if optimizer.param_groups else None
            return float(rate) if isinstance(rate, (int, float)) else None
        return None


class KeptBatch(NamedTuple):
    """A batch for who wants to save it, and the event it is of; None when it is just the last."""

    event: NonfiniteEvent | None
    batch: Batch


def inputs_rows(looked: dict[str, Any], batch: Batch, t_ns: int, reason: str) -> list[dict[str, Any]]:
    """Rows of python.inputs from what `tensor_looks.batch_look` found."""
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
            "content_hash": looked["hash"],
            "reason": reason,
        }
        for one in looked["tensors"]
    ]


def as_text(indices: list[Any] | None) -> str | None:
    """`[3, 17]`, cut where it would be longer than a line of a table."""
    if indices is None:
        return None
    text = str(indices)
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _known(step: int) -> int | None:
    return None if step == NULL_INTEGER else step


def _several_ranks() -> bool:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return int(distributed.get_world_size()) > 1
