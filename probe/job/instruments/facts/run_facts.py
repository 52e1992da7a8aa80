"""Run facts: collects facts that only the process itself knows, such as hyperparameters, seeds, environment
and devices.

Writes probe.facts, and an event with the folders that Python imports from (the server lists their packages).
Runs on the agent's thread, in slices, after the first steps and then every `AGAIN_S`; only new and changed
facts are written. Calls no code of the job; its frames are read without side effects
(`introspection.python_frames`). Text that looks like a secret is redacted before it is written.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from probe.base import accelerator, clock
from probe.job.instruments.core.object_access import attributes, entries
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.core.thread_tools import Tools
from probe.job.instruments.facts import data_contents, data_cuts, process_settings, transitions
from probe.job.instruments.facts.hyperparameters import Value, from_frames, plain
from probe.job.instruments.facts.model_facts import FIRST_STEPS, fact
from probe.job.instruments.facts.resumption import Resumption
from probe.job.instruments.facts.unread_settings import UnreadSettings
from probe.job.instruments.loop.data import Data
from probe.job.instruments.loop.forward import Forward
from probe.job.instruments.loop.optimizers import Optimizers
from probe.job.introspection.snippet_names import place_in_job
from probe.recording.journal import Journal

FIRST_BACKWARDS = 50
"""Backwards in the first step after which facts are collected too: the step may never end."""
AGAIN_S, SOON_S, SOON_ROUNDS = 30.0, 8.0, 4
"""Seconds between two rounds, and between the first ones, to catch errors of a short run; their number."""
SLICE_S, REST_S = 0.0005, 0.0005
MOST_TIMES = 20
"""Maximum number of times that a fact is written: a value that keeps changing is not a fact."""
_GROUP = (
    "initial_lr", "lr", "weight_decay", "betas", "momentum", "dampening", "alpha", "rho", "eps", "nesterov",
    "amsgrad", "maximize",
)
_MOST_GROUPS, _MOST_LOADERS = 8, 4
_VOLATILE = frozenset({
    "last_epoch", "num_bad_epochs", "best", "cooldown_counter", "optimizer", "mode_worse", "verbose",
})
"""Attributes of a scheduler that change while it runs."""
_LOADER = ("batch_size", "num_workers", "drop_last", "pin_memory", "prefetch_factor", "persistent_workers")
UNREAD = ".unread."
"""Part of the names of unread settings (`unread_settings`)."""
_SEEDS = frozenset({"seed", "random_seed", "manual_seed", "rng_seed"})


class RunFacts:
    """Collects the facts; `step` is called once per round of the agent's thread."""

    def __init__(
        self, recorder: Recorder, optimizers: Optimizers, forward: Forward, data: Data | None,
        resumption: Resumption, journal: Journal,
    ) -> None:
        self._resumption = resumption
        self._recorder = recorder
        self._optimizers = optimizers
        self._forward = forward
        self._data = data
        self._journal = journal
        self._unread = UnreadSettings()
        self.tools: Callable[[], Tools | None] = lambda: None
        """Set by the installation: returns the training thread's profiler and tracer in the last sample."""
        self._next_s = 0.0
        self._rounds = 0
        self._known: dict[tuple[str, str], tuple[str, int]] = {}
        self._written_paths: list[str] = []
        self._cuts = data_cuts.Variables()
        self._sums: dict[int, int | None] = {}
        """Sums over all samples of a data set, by the checksum of some samples in order."""

    def step(self) -> None:
        """Collect the facts, if due."""
        begun = self._recorder.step >= FIRST_STEPS or self._recorder.micro_step >= FIRST_BACKWARDS
        if not begun or time.monotonic() < self._next_s:
            return
        self._rounds += 1
        self._next_s = time.monotonic() + (SOON_S if self._rounds <= SOON_ROUNDS else AGAIN_S)
        from probe.base.redaction import redact, shown  # compiling its patterns takes milliseconds

        rows: list[dict[str, Any]] = []
        until = time.perf_counter() + SLICE_S
        for kind, name, value in self._all():
            text = shown(name.rpartition(".")[2], value) if isinstance(value, str) else str(value)
            key = (kind, name)
            before, times = self._known.get(key, ("", 0))
            if (text != before or not times) and times < MOST_TIMES:
                self._known[key] = (text, times + 1 if _may_change(name) else MOST_TIMES)
                rows.append({**fact(kind, name, value), "value": text})
            if time.perf_counter() > until:
                time.sleep(REST_S)
                until = time.perf_counter() + SLICE_S
        if rows:
            self._journal.append({"table": "probe.facts", "rows": rows})
        paths = [redact(path) for path in sys.path if isinstance(path, str)][:64]
        if paths != self._written_paths:
            self._written_paths = paths
            self._journal.append({"event": "import paths", "paths": paths, "t_ns": clock.wall_ns()})

    def _all(self) -> Iterator[tuple[str, str, Value]]:
        """Kind, name and value of every fact."""
        yield from self._environment()
        yield from self._device()
        for name, value in self._training():
            yield "hyperparameter", name, value
        for name, value in self._resumption.facts():
            yield "resumption", name, value
        if self._data is not None and self._data.batches is not None:
            for label, index in self._data.batches.highest().items():
                yield "data", f"{label}.highest_index", index
        for name, value in self._kept_data():
            yield "data", name, value
        for name, value in from_frames(self._recorder.thread):
            seed = name.rpartition(".")[2] in _SEEDS
            yield ("seed" if seed else "hyperparameter"), name, value

    def _kept_data(self) -> list[tuple[str, Value]]:
        """Facts about data that the program holds and reads without a loader. Returned as a list, because no
        object of the frames may be held between two slices."""
        thread = self._recorder.thread
        return [
            *self._resumption.reads.facts(), *transitions.facts(thread), *self._cuts.facts(thread),
        ]

    def _environment(self) -> Iterator[tuple[str, str, Value]]:
        torch = sys.modules["torch"]
        yield "seed", "torch", int(torch.initial_seed())
        yield "seed", "PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED", "random")
        for name, value in process_settings.environment():
            yield "environment", name, value
        for name, value in process_settings.watching(self.tools()):
            yield "environment", name, value

    def _device(self) -> Iterator[tuple[str, str, Value]]:
        """The device in use."""
        version = sys.modules["torch"].version
        for name in ("cuda", "hip", "xpu"):
            built_for = getattr(version, name, None)
            if built_for is not None:
                yield "package", f"{name} (torch)", str(built_for)
        device = accelerator.current()
        if device is None:
            return
        own = self._optimizers.device_index()
        number = device.index() if own is None else own
        yield "hardware", "device_type", device.kind
        yield "hardware", "device_number", number
        if (called := device.name(number)) is not None:
            yield "hardware", "device", called
        if (total := device.total_bytes(number)) is not None:
            yield "hardware", "device_memory_bytes", total

    def _training(self) -> Iterator[tuple[str, Value]]:
        """Settings of precision and of the known optimizers, schedulers and loaders."""
        world_size = place_in_job(0, None)["world_size"]
        yield "world_size", world_size
        yield "amp.autocast", self._forward.autocast or "off"
        yield "autograd.anomaly_mode", bool(sys.modules["torch"].is_anomaly_enabled())
        scaler = self._optimizers.scaler()
        if scaler is not None:
            yield "amp.scaler", bool(attributes(scaler).get("_enabled", True))
        newest = attributes(self._optimizers.newest_scaler())
        if newest.get("_enabled") is True and newest.get("_scale") is not None:  # set when it first scales
            yield "amp.scaler_stepped", scaler is not None
        for number, optimizer in enumerate(self._optimizers.alive()[:4], 1):
            prefix = "optimizer" if number == 1 else f"optimizer{number}"
            yield from _optimizer(prefix, optimizer)
            for meant, place, written, value in self._unread.of(optimizer):
                yield f"{prefix}{UNREAD}{meant}.{place}.{written}", value
            for scheduler in self._optimizers.schedulers_of(optimizer)[:1]:
                name = prefix.replace("optimizer", "scheduler")
                yield from _scheduler(name, scheduler)
                count = attributes(scheduler).get("_step_count")
                if type(count) is int:  # the constructor counts one
                    yield f"{name}.stepped", count > 1
                    if count <= 1:
                        yield f"{name}.not_stepped_until", self._recorder.step
        for name, value in self._optimizers.remade.items():
            yield f"optimizer.remade.{name}", value
        for name, value in self._optimizers.clips_of_nothing.copy().items():
            yield f"clip.nothing.{name}", value
        models = [reference() for reference in list(self._forward.roots.values())]
        yield from process_settings.replicated(models)
        loaders = self._data.loaders if self._data is not None else []
        alive = [loader for reference in loaders if (loader := reference()) is not None]
        for number, loader in enumerate(alive[:_MOST_LOADERS], 1):
            yield from _loader("loader" if number == 1 else f"loader{number}", loader, self._unordered)

    def _unordered(self, dataset: Any, content: int) -> int | None:
        """`data_contents.unordered`, computed once per content."""
        if content not in self._sums:
            self._sums[content] = data_contents.unordered(dataset, lambda: time.sleep(REST_S))
        return self._sums[content]


def _may_change(name: str) -> bool:
    """Whether to write changes of a fact. Not of learning rates, whose changes are in python.steps, except
    those of unread ones."""
    return UNREAD in name or name.rpartition(".")[2] not in ("lr", "learning_rate")


def _optimizer(prefix: str, optimizer: Any) -> Iterator[tuple[str, Value]]:
    yield prefix, type(optimizer).__name__
    groups = attributes(optimizer).get("param_groups")
    groups = groups if isinstance(groups, list) else []
    yield f"{prefix}.groups", len(groups)
    default = plain(dict(entries(attributes(optimizer).get("defaults"))).get("lr"))
    if default is not None and len(groups) > 1:
        yield f"{prefix}.default_lr", default
    for number, group in enumerate(groups[:_MOST_GROUPS]):
        found = dict(entries(group))
        if "initial_lr" in found:
            found["lr"] = found.pop("initial_lr")
        place = prefix if number == 0 else f"{prefix}.group{number}"
        for name in _GROUP:
            if name in found and (value := plain(found[name])) is not None:
                yield f"{place}.{name}", value


def _scheduler(prefix: str, scheduler: Any, depth: int = 0) -> Iterator[tuple[str, Value]]:
    yield prefix, type(scheduler).__name__
    found = attributes(scheduler)
    for name, value in entries(found):
        if name not in _VOLATILE and not name.startswith("_") and (text := plain(value)) is not None:
            yield f"{prefix}.{name}", text
    inner = found.get("_schedulers")
    if isinstance(inner, (list, tuple)) and depth < 2:
        for number, one in enumerate(inner[:4]):
            yield from _scheduler(f"{prefix}.{number}", one, depth + 1)


def _loader(
    prefix: str, loader: Any, unordered: Callable[[Any, int], int | None]
) -> Iterator[tuple[str, Value]]:
    found = attributes(loader)
    for name in _LOADER:
        if (value := plain(found.get(name))) is not None:
            yield f"{prefix}.{name}", value
    sampler = found.get("sampler")
    shuffles = {"RandomSampler": True, "SequentialSampler": False}.get(type(sampler).__name__)
    if shuffles is None:
        shuffles = attributes(sampler).get("shuffle")
    if isinstance(shuffles, bool):
        yield f"{prefix}.shuffle", shuffles
    if type(sampler).__name__ == "DistributedSampler":
        own = attributes(sampler)
        for name, attribute in (("sampler_seed", "seed"), ("sampler_replicas", "num_replicas")):
            if (value := plain(own.get(attribute))) is not None:
                yield f"{prefix}.{name}", value
    if type(sampler).__name__ == "WeightedRandomSampler":
        own = attributes(sampler)
        weights: Any = own.get("weights")
        if type(weights) is sys.modules["torch"].Tensor and weights.dim() == 1:
            yield f"{prefix}.sampler_weights", int(weights.shape[0])
            if type(own.get("num_samples")) is int:
                yield f"{prefix}.sampler_draws", own["num_samples"]
    dataset = found.get("dataset")
    yield f"{prefix}.dataset", type(dataset).__name__
    length = data_cuts.dataset_length(dataset)
    if length is not None:
        yield f"{prefix}.dataset_length", length
    shares = data_contents.byte_shares(dataset)
    if shares is not None:
        yield f"{prefix}.bytes_at_255", round(shares[0], 3)
        yield f"{prefix}.bytes_from_128", round(shares[1], 3)
    cut = data_cuts.of_dataset(dataset)
    if cut is not None:
        yield f"{prefix}.dataset_rows", cut.rows
        yield f"{prefix}.dataset_whole", cut.whole
        yield f"{prefix}.dataset_source", cut.source
    if type(sampler).__name__ == "DistributedSampler":
        content = data_contents.checksum(dataset)
        if content is not None:
            yield f"{prefix}.dataset_content", content
            total = unordered(dataset, content)
            if total is not None:
                yield f"{prefix}.dataset_entries", str(total)
