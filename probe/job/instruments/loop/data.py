"""Data: times the waits for DataLoaders, and describes their batches.

Writes python.batches and data_s of python.steps. HOT PATH: the wrapper around `_BaseDataLoaderIter.__next__`,
on the class, so running iterators are seen too. A row is written before the wait and completed after it, so
that a fetch that never returns is on record. In a loop without an optimizer, the next fetch after a module
call ends a step. Worker processes run none of this.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from types import FrameType
from typing import Any, NamedTuple

from probe.base.clock import ANCHOR_NS
from probe.base.isolation import Isolation
from probe.checkpoint.random_states import TensorState
from probe.job.instruments.core.intervals import Intervals
from probe.job.instruments.core.object_access import attributes
from probe.job.instruments.core.patch import Patches
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.loop.batch_history import Batch, Batches, samples_in_pass
from probe.job.instruments.loop.manual_updates import ManualUpdates
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE, NULL_INTEGER, NULL_STRING

_now = time.monotonic_ns
_ident = threading.get_ident
MOST_SHAPES = 4096
"""Distinct batch shapes described; beyond that, shapes and dtypes are NULL."""
DEEPEST = 4
"""Levels of lists and dictionaries searched for tensors."""
DIGESTED = 32
"""First batches of each pass whose contents are compared, if the data set has no indices."""
MOST_DIGESTED = 1 << 20
"""Maximum number of elements of a digested tensor."""
_UNKNOWN = (NULL_INTEGER, NULL_INTEGER, NULL_INTEGER, NULL_BOOLEAN)
"""`epoch`, `place`, `fingerprint` and `shuffled` of a batch that did not arrive."""


class Start(NamedTuple):
    """An iterator, and the random states that determined its order: torch's and the loader's own."""

    iterator: weakref.ref[Any]
    torch_state: Any
    generator_state: Any
    state_after: TensorState
    """torch's random state once the iterator was made, which may have drawn its order."""
    ahead: int
    """Batches that the iterating code prefetches before it passes one to the loop; 0 at the end."""


class Data:
    """Installs the wrappers; `made_optimizer()`: whether the job ever made an optimizer."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, made_optimizer: Any, intervals: Intervals
    ) -> None:
        self.recorder = recorder
        self.intervals = intervals
        self.loaders: list[weakref.ref[Any]] = []
        self.batches: Batches | None = None
        """Set by the NaN detector: remembers the last batches."""
        self.dropped: Batch | None = None
        """A batch with a forward, with gradients, but no backward. Set when the next batch is fetched, taken
        and set to None by the instrument of dropped batches."""
        self.manual_updates: ManualUpdates | None = None
        """Counts steps while the job has no optimizer."""
        self._made_optimizer = made_optimizer
        ring = recorder.rings["python.batches"]
        self._append, self._put = ring.append, ring.put
        intern = recorder.intern
        self._states = {name: intern(name) for name in ("pending", "done", "failed", "exhausted")}
        self._pending, self._done = self._states["pending"], self._states["done"]
        self._labels: dict[int, tuple[Any, int]] = {}
        self._names: dict[int, str] = {}
        self._described: dict[Any, tuple[int, int, int, int, int]] = {}
        self._iterator: Any = _gone
        """Weak reference to the iterator of the last fetch; `_iterators_label` is its label."""
        self._iterators_label = NULL_STRING
        self._starts: dict[int, Start] = {}
        self._passes: dict[int, tuple[int, int]] = {}
        """By loader: how often it was exhausted, and whether it shuffles."""
        self._lengths: dict[int, int] = {}
        """By loader: number of batches in its last whole pass."""
        self._spent = NULL_STRING
        """Label of a loader that was prefetched from and is exhausted."""
        self._patches = Patches()
        self._isolation = isolation

    def install(self) -> None:
        """Put the wrappers in place; off the hot path."""
        import torch
        from torch.utils.data import dataloader

        self._tensor = torch.Tensor
        self._grad_enabled = torch.is_grad_enabled
        self._default_generator = torch.default_generator
        guard = self._isolation.guard
        begin = guard("data", self._begin, traced=False)
        arrived = guard("data", self._arrived, traced=False)
        broke = guard("data", self._broke, traced=False)
        started = guard("data", self._started, traced=False)
        about_to_start = guard("data", self._about_to_start, traced=False)
        batches = self.batches
        drawn = None if batches is None else guard("batches", batches.indices_drawn, traced=False)
        recorder = self.recorder
        live = self._patches.live

        def wrap_next(original: Any) -> Any:
            def __next__(iterator: Any) -> Any:
                if not live[0] or _ident() != recorder.thread:
                    return original(iterator)
                fetch = begin(iterator)
                outcome = "failed"
                try:
                    batch = original(iterator)
                    outcome = "done"
                except StopIteration:
                    outcome = "exhausted"
                    raise
                finally:
                    if outcome != "done":
                        broke(fetch, iterator, outcome)
                arrived(fetch, iterator, batch)
                return batch

            return __next__

        def wrap_iter(original: Any) -> Any:
            def __iter__(loader: Any) -> Any:
                if not live[0] or recorder.elsewhere():
                    return original(loader)
                start = _now()
                drawn_from = about_to_start(loader, sys._getframe(1))
                iterator = original(loader)
                started(loader, start, iterator, drawn_from)
                return iterator

            return __iter__

        def wrap_next_index(original: Any) -> Any:
            def _next_index(iterator: Any) -> Any:
                indices = original(iterator)
                if live[0] and drawn is not None:
                    drawn(iterator, indices)
                return indices

            return _next_index

        self._patches.wrap(dataloader._BaseDataLoaderIter, "__next__", wrap_next)
        if self.batches is not None:
            self._patches.wrap(dataloader._BaseDataLoaderIter, "_next_index", wrap_next_index)
        self._patches.wrap(dataloader.DataLoader, "__iter__", wrap_iter)

    def uninstall(self) -> None:
        """Put the originals back."""
        self._patches.undo()

    def position(self) -> dict[str, Any] | None:
        """Position of the training loader: `loader`, `batches` taken, the random states from before its
        iterator was created, and whether it is `untouched`: no batch was fetched and no number drawn since.
        None if the last batch came from no known loader."""
        start = self._starts.get(self.recorder.fed_by)
        iterator = start.iterator() if start is not None else None
        if start is None or iterator is None:
            return None
        return {
            "loader": self._names[self.recorder.fed_by],
            "batches": max(0, iterator._num_yielded - start.ahead),
            "torch_state": start.torch_state, "generator_state": start.generator_state,
            "untouched": not iterator._num_yielded
            and start.state_after == TensorState(self._default_generator.get_state()),
        }

    def pass_of(self, loader: Any) -> tuple[int, int | None] | None:
        """Batches that this loader has returned in the current pass, and in its last whole pass if there was
        one; None for a loader that is not being iterated over. On the agent's thread."""
        known = self._labels.get(id(attributes(loader).get("dataset")))
        start = None if known is None else self._starts.get(known[1])
        iterator = None if start is None else start.iterator()
        if known is None or start is None or iterator is None:
            return None
        return max(0, iterator._num_yielded - start.ahead), self._lengths.get(known[1])

    # HOT PATH ---------------------------------------------------------------

    def _about_to_start(self, loader: Any, caller: FrameType) -> tuple[Any, Any, int]:
        """The state that a checkpoint needs to return to the same batch. Once per epoch, 5 kB."""
        generator = getattr(loader, "generator", None)
        own = generator.get_state() if generator is not None and generator.device.type == "cpu" else None
        return self._default_generator.get_state(), own, _fetches_ahead(caller)

    def _started(self, loader: Any, start: int, iterator: Any, drawn_from: Any) -> None:
        """Note a new iterator. Creating it starts the workers: this counts as waiting for data."""
        recorder = self.recorder
        self.intervals.pass_begins(iterator, start)
        recorder.data_begins(start)
        recorder.data_ends(_now(), start)
        if drawn_from is not None and hasattr(iterator, "_num_yielded"):
            label = self._label(iterator)
            self._note_order(label, iterator)
            before, own, ahead = drawn_from
            after = TensorState(self._default_generator.get_state())
            self._starts[label] = Start(weakref.ref(iterator), before, own, after, ahead)
        if not any(reference() is loader for reference in self.loaders):
            self.loaders = [reference for reference in self.loaders if reference() is not None]
            self.loaders.append(weakref.ref(loader))

    def _begin(self, iterator: Any) -> tuple[int, int, int, int, int, int]:
        recorder = self.recorder
        last = None if self.batches is None else self.batches.last
        dropped = NULL_BOOLEAN
        if last is not None and recorder.timing:
            unused = last.step == recorder.step and last.micro_step == recorder.micro_step
            dropped = 1 if unused and recorder.forward_start_ns else 0
            if dropped and self.dropped is None:
                self.dropped = last
        if recorder.begin_awaited and not recorder.saw_forward:
            recorder.listener.step_begins("data", self._label(iterator))
        now = _now()
        if recorder.saw_forward and not (
            recorder.micro_step or recorder.explicit or self._made_optimizer()
        ):
            recorder.end_step(now, "batch", NULL_DOUBLE, NULL_BOOLEAN)
        elif self.manual_updates is not None and recorder.micro_step:
            self.manual_updates.data_begins(now)
        if self._iterator() is iterator:
            label = self._iterators_label
        else:
            label = self._iterators_label = self._label(iterator)
            self._iterator = weakref.ref(iterator)
        if recorder.interval is not None or id(iterator) not in recorder.trained:
            self.intervals.fetch(iterator, label, now)
        recorder.data_begins(now)
        step, micro_step = recorder.step, recorder.micro_step
        number = self._append(
            step, micro_step, now + ANCHOR_NS, label, NULL_DOUBLE,
            NULL_INTEGER, NULL_INTEGER, NULL_STRING, NULL_STRING, self._pending,
            NULL_INTEGER, NULL_INTEGER, NULL_INTEGER, NULL_BOOLEAN, dropped,
        )
        start = _now()
        recorder.cost_ns += start - now
        return number, start, step, micro_step, label, dropped

    def _arrived(self, fetch: tuple[int, int, int, int, int, int] | None, iterator: Any, batch: Any) -> None:
        now = _now()
        if fetch is None:
            return
        number, start, step, micro_step, label, dropped = fetch
        recorder, batches = self.recorder, self.batches
        tensors = _tensors_of(batch, self._tensor)
        key: list[Any] = []
        for tensor in tensors:
            key += (tensor.shape, tensor.dtype)
        described = self._described.get(tuple(key)) or self._describe(tuple(key), tensors)
        samples, tokens, shapes, dtypes, size_bytes = described
        indices = None if batches is None else batches.indices_of(iterator)
        epoch, shuffled = self._passes.get(label) or self._note_order(label, iterator)
        place = getattr(iterator, "_num_yielded", NULL_INTEGER + 1) - 1
        digest = fingerprint(indices)
        if digest == NULL_INTEGER and 0 <= place < DIGESTED and getattr(iterator, "_dataset_kind", 0):
            digest = content_digest(tensors)
        recorder.batch_arrived(now, start, samples, tokens)
        if recorder.loader in (NULL_STRING, self._spent) and (
            self._grad_enabled() or not self._made_optimizer()
        ):  # an evaluation may end before its loader does
            recorder.loader = label
            self._spent = NULL_STRING
        self._put(
            number, step, micro_step, start + ANCHOR_NS, label, (now - start) / 1e9,
            samples, tokens, shapes, dtypes, self._done, epoch, place, digest, shuffled,
            dropped,
        )
        interval = recorder.interval
        if interval is not None:
            if not interval.batches:
                interval.whole = samples_in_pass(iterator)
            self.intervals.batch(samples, tokens)
        if batches is not None:
            batches.arrived(
                indices, batch, tensors, size_bytes, recorder.step, recorder.micro_step, self._names[label]
            )
        recorder.cost_ns += _now() - now

    def _broke(self, fetch: tuple[int, int, int, int, int, int] | None, iterator: Any, outcome: str) -> None:
        """The fetch `failed` or found the loader `exhausted`."""
        if fetch is None:
            return
        now = _now()
        self._finish(fetch, now, outcome)
        if outcome == "exhausted":
            self._lengths[fetch[4]] = getattr(iterator, "_num_yielded", 0)
        if outcome == "exhausted" and self.recorder.interval is not None:
            self.intervals.exhausted(iterator, now)

    def _finish(self, fetch: tuple[int, int, int, int, int, int], now: int, outcome: str) -> None:
        number, start, step, micro_step, label, dropped = fetch
        recorder = self.recorder
        recorder.data_ends(now, start)
        if outcome == "exhausted":
            epoch, shuffled = self._passes.get(label, (0, NULL_BOOLEAN))
            self._passes[label] = (epoch + 1, shuffled)
            begun = self._starts.get(label)
            if begun is not None and begun.ahead:  # the loop has not used the last batch yet
                self._starts[label] = begun._replace(ahead=0)
                self._spent = label
                if recorder.loader == NULL_STRING:  # and its step fetches no other
                    recorder.loader = label
            elif recorder.loader == label:
                recorder.loader = NULL_STRING  # end of an epoch or evaluation: the next one feeds the steps
        self._put(
            number, step, micro_step, start + ANCHOR_NS, label, (now - start) / 1e9,
            NULL_INTEGER, NULL_INTEGER, NULL_STRING, NULL_STRING, self._states[outcome], *_UNKNOWN,
            dropped,
        )

    def _note_order(self, label: int, iterator: Any) -> tuple[int, int]:
        """Note whether the loader shuffles: once per pass, or at the first batch if the start was missed."""
        epoch, _ = self._passes.get(label, (0, NULL_BOOLEAN))
        sampler = getattr(iterator, "_index_sampler", None)
        found = self._passes[label] = (epoch, shuffling(attributes(sampler).get("sampler", sampler)))
        return found

    def _label(self, iterator: Any) -> int:
        """String number of the loader's name: its dataset's class and a count."""
        dataset = getattr(iterator, "_dataset", None)
        known = self._labels.get(id(dataset))
        if known is not None and known[0]() in (dataset, None):
            return known[1]
        name = f"{type(dataset).__name__}#{len(self._labels)}"
        label = self.recorder.intern(name)
        self._names[label] = name
        try:
            reference: Any = weakref.ref(dataset)
        except TypeError:  # a list supports no weak references, and must not be kept alive
            reference = _gone
        self._labels[id(dataset)] = (reference, label)
        return label

    def _describe(self, key: Any, tensors: list[Any]) -> tuple[int, int, int, int, int]:
        """samples, tokens, shapes, dtypes and bytes of a batch; once per shape."""
        size_bytes = sum(int(tensor.numel() * tensor.element_size()) for tensor in tensors)
        if len(self._described) >= MOST_SHAPES:
            return (*_counts(tensors), NULL_STRING, NULL_STRING, size_bytes)
        shapes = ", ".join(str(list(tensor.shape)) for tensor in tensors)
        dtypes = ", ".join(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
        intern = self.recorder.intern
        described = (
            *_counts(tensors),
            intern(shapes) if shapes else NULL_STRING,
            intern(dtypes) if dtypes else NULL_STRING,
            size_bytes,
        )
        self._described[key] = described
        return described


def _fetches_ahead(caller: FrameType) -> int:
    """How many batches the code that iterates over a loader prefetches: one in Accelerate's loaders, which
    check whether another batch follows."""
    accelerates = caller.f_globals.get("__name__") == "accelerate.data_loader"
    return int(accelerates and "next_batch" in caller.f_code.co_varnames)


def fingerprint(indices: Any) -> int:
    """Hash of a batch's sample indices: equal for equal batches, in every process. HOT PATH: hashes only the
    size, the first three, the middle and the last index, enough to tell shuffled batches apart."""
    if type(indices) is not list or not indices:
        return NULL_INTEGER
    size = len(indices)
    chosen = (size, *indices[:3], indices[size // 2], indices[-1])
    if type(chosen[1]) is not int or type(chosen[-1]) is not int:
        return NULL_INTEGER
    return hash(chosen)  # of integers: the same in every process


def content_digest(tensors: list[Any]) -> int:
    """Hash of a batch's contents, for data sets without indices: equal for equal batches, in every process.
    Made of the sum and some elements of its first two tensors. NULL if there are none, or if one is large,
    not contiguous, or on a device."""
    found: list[float] = []
    for tensor in tensors[:2]:
        plain = tensor.is_cpu and str(tensor.layout) == "torch.strided" and not tensor.is_complex()
        if not plain or not 0 < tensor.numel() <= MOST_DIGESTED or not tensor.is_contiguous():
            return NULL_INTEGER
        flat = tensor.detach().view(-1)
        numbers = [len(flat), flat.sum().item(), *flat[:: max(1, len(flat) // 16)][:16].tolist()]
        found += [float(one) if one == one else -1.0 for one in numbers]
    return hash(tuple(found)) if found else NULL_INTEGER


def shuffling(sampler: Any) -> int:
    """1 or 0 for torch's own samplers and those with an attribute `shuffle`; NULL for others."""
    kind = type(sampler).__name__
    if kind in ("RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"):
        return 1
    if kind == "SequentialSampler":
        return 0
    switch = attributes(sampler).get("shuffle")
    return int(switch) if isinstance(switch, bool) else NULL_BOOLEAN


def _gone() -> None:
    return None


def _tensors_of(batch: Any, kind: type) -> list[Any]:
    """The tensors of a batch; most batches are a tensor or a list of them."""
    if type(batch) is kind:
        return [batch]
    if type(batch) is list:
        for item in batch:
            if type(item) is not kind:
                break
        else:
            return batch
    found: list[Any] = []
    _tensors_in(batch, found, DEEPEST)
    return found


def _tensors_in(value: Any, found: list[Any], depth: int) -> None:
    if hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "is_floating_point"):
        found.append(value)
    elif depth and isinstance(value, dict):
        for item in value.values():
            _tensors_in(item, found, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value[:64]:
            _tensors_in(item, found, depth - 1)


def _counts(tensors: list[Any]) -> tuple[int, int]:
    samples = tensors[0].shape[0] if tensors and len(tensors[0].shape) else NULL_INTEGER
    for tensor in tensors:
        if len(tensor.shape) == 2 and not tensor.is_floating_point() and not tensor.is_complex():
            return samples, tensor.shape[0] * tensor.shape[1]
    return samples, NULL_INTEGER
