"""`/metrics`: the latest values of every recorded process, in Prometheus's text format.

Reads the ring rows since the last scrape, and adds up counters. Values that were not measured are left out,
never 0. Labels are job, run, rank and host: nothing whose cardinality grows during a run. Called on the
server's threads, one scrape at a time. May import numpy, and prometheus_client inside functions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probe import __version__
from probe.base import clock
from probe.base.errors import RecordingError
from probe.diagnose.states import ALARM, NOTICE
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE, NULL_INTEGER
from probe.recording.reader import Rows, open_ring
from probe.server.alerts.recipe_monitor import Monitor
from probe.server.recordings.registry import LIVE, Recorded, Registry

RECENT = 64
"""Steps for step durations and the shares of phases, as in the watch."""
UP_FOR_NS = 300 * 10**9
"""How long an ended process is reported as down."""
LABELS = ("job", "run", "rank", "host")
PHASES = ("data", "forward", "backward", "optimizer", "comm", "other")
QUANTILES = (0.5, 0.9)
_OPEN = "application/openmetrics-text"

GAUGES: tuple[tuple[str, str, str], ...] = (
    ("probe_loss", "loss", "Loss of the last step that has one."),
    ("probe_gradient_norm", "grad_norm", "L2 norm of all gradients, of the last step that was measured."),
    ("probe_learning_rate", "lr", "Learning rate of the leading optimizer's first group."),
    ("probe_loss_scale", "loss_scale", "Loss scale of the GradScaler."),
)
"""Name, column of python.steps, meaning."""
COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("probe_tokens", "tokens", "Tokens in the batches fetched, since the server first read the process."),
    ("probe_samples", "samples", "Samples in the batches fetched, since the server first read the process."),
    ("probe_skipped_steps", "skipped", "Steps whose update the GradScaler skipped."),
)
MEMORY: tuple[tuple[str, str, str], ...] = (
    ("probe_resident_memory_bytes", "rss_bytes", "Resident memory of the process."),
    ("probe_host_memory_available_bytes", "available_bytes", "Host memory still available to the process."),
    ("probe_device_memory_allocated_bytes", "allocated_bytes", "Device memory held by tensors."),
    ("probe_device_memory_reserved_bytes", "reserved_bytes", "Device memory held by the allocator."),
    ("probe_device_memory_total_bytes", "device_total_bytes", "Total memory of the device."),
)
"""Name, column of process.memory, meaning."""


@dataclass
class _Known:
    """The state of one process: how far its rings were read, and the sums of counters."""

    highest: dict[str, int] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    recent: Rows | None = None
    memory: Rows | None = None
    wall_s: float = 0.0
    timed: int = 0


class Metrics:
    """The metrics of one server."""

    def __init__(self, registry: Registry, monitor: Monitor) -> None:
        self._registry = registry
        self._monitor = monitor
        self._known: dict[Path, _Known] = {}
        self._lock = threading.Lock()

    def text(self, accept: str) -> tuple[bytes, str]:
        """The answer to a scrape and its content type; OpenMetrics if `accept` names it. Blocks."""
        from prometheus_client import exposition
        from prometheus_client.openmetrics import exposition as openmetrics

        kind: Any = openmetrics if _OPEN in accept else exposition
        with self._lock:
            content: bytes = kind.generate_latest(self)
        return content, str(kind.CONTENT_TYPE_LATEST)

    def collect(self) -> Iterator[Any]:
        """The metric families, called by prometheus_client."""
        from prometheus_client import core

        processes = self._processes()
        what = "1 while the process is alive, 0 after it has ended."
        up = core.GaugeMetricFamily("probe_up", what, labels=LABELS)
        for labels, (_, lives) in processes.items():
            up.add_metric(labels, float(lives))
        yield up
        living = {labels: recorded for labels, (recorded, lives) in processes.items() if lives}
        self._known = {one.folder: self._known.get(one.folder, _Known()) for one in living.values()}
        read = {labels: self._read(recorded) for labels, recorded in living.items()}
        yield from _of_steps(core, read)
        yield from _newest(core, MEMORY, {labels: known.memory for labels, known in read.items()})
        yield from self._of_the_server(core, living)

    def _processes(self) -> dict[tuple[str, ...], tuple[Recorded, bool]]:
        """Processes by their labels; of several processes of one rank the living one, else the newest."""
        found: dict[tuple[str, ...], tuple[Recorded, bool]] = {}
        for recorded in self._registry.processes():
            status, meta = self._registry.status(recorded), recorded.meta
            lives = status.state in LIVE
            if lives or clock.wall_ns() - (status.ended_ns or 0) < UP_FOR_NS:
                labels = (meta.job, meta.run, str(meta.rank), meta.host)
                if lives or not found.get(labels, (recorded, False))[1]:
                    found[labels] = (recorded, lives)
        return found

    def _read(self, recorded: Recorded) -> _Known:
        """Read the rows since the last scrape."""
        known, meta = self._known[recorded.folder], recorded.meta
        try:
            with open_ring(meta, "python.steps") as ring:
                before = known.highest.get("python.steps", 0)
                known.highest["python.steps"] = highest = ring.highest(before)
                if highest > before or known.recent is None:
                    _add_up(known, ring.read(before, highest))
                    known.recent = ring.read(max(0, highest - RECENT), highest)
            with open_ring(meta, "process.memory") as ring:
                before = known.highest.get("process.memory", 0)
                known.highest["process.memory"], rows = ring.last(before)
                known.memory = rows[-1:] if len(rows) else known.memory
        except (OSError, RecordingError):  # it has just ended
            pass
        return known

    def _of_the_server(self, core: Any, living: dict[tuple[str, ...], Recorded]) -> Iterator[Any]:
        counted = {(meta.job, meta.run, severity): 0 for meta in (one.meta for one in living.values())
                   for severity in (NOTICE, ALARM)}
        for one in self._monitor.listed():
            key = (one["job"], one["run"], one["severity"])
            if key in counted:
                counted[key] += 1
        incidents = core.GaugeMetricFamily(
            "probe_incidents_open", "Open incidents.", labels=("job", "run", "severity")
        )
        for key, count in counted.items():
            incidents.add_metric(key, count)
        yield incidents
        alerts = core.CounterMetricFamily(
            "probe_alerts", "Alert messages by outcome, since the server started.", labels=("outcome",)
        )
        for outcome in ("delivered", "failed", "dropped"):
            alerts.add_metric((outcome,), self._monitor.alerts.outcomes[outcome])
        yield alerts
        yield core.InfoMetricFamily("probe_build", "The version of probe.", {"version": __version__})


def _add_up(known: _Known, rows: Rows) -> None:
    for name, column, _ in COUNTERS:
        values = _known_values(rows, column)
        if len(values):
            known.sums[name] = known.sums.get(name, 0.0) + float(values.sum())
    walls_s = _known_values(rows, "wall_s")
    known.wall_s += float(walls_s.sum())
    known.timed += len(walls_s)


def _known_values(rows: Rows | None, column: str) -> Any:
    """The values of a column that are not NULL, as doubles; none if the ring has no such column."""
    if rows is None or column not in (rows.dtype.names or ()):
        return np.empty(0)
    values = rows[column]
    null = {"f": NULL_DOUBLE, "i": NULL_INTEGER}[values.dtype.kind]
    null = NULL_BOOLEAN if values.dtype.itemsize == 1 else null
    return values[values != null].astype(np.float64)


def _of_steps(core: Any, read: dict[tuple[str, ...], _Known]) -> Iterator[Any]:
    steps = core.CounterMetricFamily("probe_training_steps", "Optimizer steps since recording began.",
                                     labels=LABELS)
    for labels, known in read.items():
        steps.add_metric(labels, known.highest.get("python.steps", 0))
    yield steps
    yield _durations(core, read)
    recent = {labels: known.recent for labels, known in read.items()}
    yield from _newest(core, GAUGES, recent)
    for name, _, doc in COUNTERS:
        family = core.CounterMetricFamily(name, doc, labels=LABELS)
        for labels, known in read.items():
            if name in known.sums:
                family.add_metric(labels, known.sums[name])
        yield family
    yield from _shares(core, read)


def _durations(core: Any, read: dict[tuple[str, ...], _Known]) -> Any:
    family = core.SummaryMetricFamily(
        "probe_step_duration_seconds", f"Duration of a step; quantiles of the last {RECENT}.", labels=LABELS
    )
    for labels, known in read.items():
        walls_s = _known_values(known.recent, "wall_s")
        if not len(walls_s):
            continue
        own = dict(zip(LABELS, labels, strict=True))
        for quantile in QUANTILES:
            value = float(np.quantile(walls_s, quantile))
            family.add_sample(family.name, {**own, "quantile": str(quantile)}, value)
        family.add_metric(labels, known.timed, known.wall_s)
    return family


def _shares(core: Any, read: dict[tuple[str, ...], _Known]) -> Iterator[Any]:
    """Shares of step time: each phase, and probe itself."""
    phases = core.GaugeMetricFamily(
        "probe_step_phase_ratio", f"Share of step time, over the last {RECENT} timed steps.",
        labels=(*LABELS, "phase"),
    )
    own = core.GaugeMetricFamily(
        "probe_overhead_ratio", "Share of step time in probe's own code, by its own clock.", labels=LABELS
    )
    last = core.GaugeMetricFamily(
        "probe_last_step_timestamp_seconds", "When the last step ended, seconds since 1970.", labels=LABELS
    )
    for labels, known in read.items():
        rows = known.recent
        if rows is None or not len(rows):
            continue
        last.add_metric(labels, int(rows[-1]["t_ns"]) / 1e9)
        for phase in PHASES:
            ratio = _ratio(rows, f"{phase}_s", 1.0)
            if ratio is not None:
                phases.add_metric((*labels, phase), ratio)
        ratio = _ratio(rows, "probe_ns", 1e-9)
        if ratio is not None:
            own.add_metric(labels, ratio)
    yield from (phases, own, last)


def _ratio(rows: Rows, column: str, unit_s: float) -> float | None:
    """Sum of a column over the steps that have it, as a share of their duration."""
    if column not in (rows.dtype.names or ()):
        return None
    null = NULL_DOUBLE if rows[column].dtype.kind == "f" else NULL_INTEGER
    has = (rows[column] != null) & (rows["wall_s"] != NULL_DOUBLE)
    wall_s = float(rows["wall_s"][has].sum())
    return float(rows[column][has].sum()) * unit_s / wall_s if wall_s > 0 else None


def _newest(
    core: Any, declared: tuple[tuple[str, str, str], ...], rows: dict[tuple[str, ...], Rows | None]
) -> Iterator[Any]:
    """A gauge for each column: its newest value that is not NULL."""
    for name, column, doc in declared:
        family = core.GaugeMetricFamily(name, doc, labels=LABELS)
        for labels, own in rows.items():
            values = _known_values(own, column)
            if len(values):
                family.add_metric(labels, float(values[-1]))
        yield family
