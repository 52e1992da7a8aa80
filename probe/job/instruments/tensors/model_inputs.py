"""Model inputs: statistics of the tensors passed to a model, on some steps.

Writes python.model_inputs. HOT PATH on the steps that `Pace` chooses, on the training thread, when the
outermost module is called: reads a few thousand elements of its first tensors, after everything that the job
did to its batches. Calls without gradients have their own pace: evaluation inputs should look like training
inputs. For tensors on a device, rows are written when the figures arrive. torch inside functions.
"""

from __future__ import annotations

import itertools
import sys
import time
import weakref
from typing import Any

from probe.base.accelerator import capturing
from probe.base.clock import ANCHOR_NS
from probe.base.isolation import Isolation
from probe.job.instruments.core import statistics
from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.core.object_access import contents
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.core.tensor_summaries import tensors_in
from probe.job.instruments.loop.batch_history import Batches
from probe.job.instruments.loop.forward import keywords
from probe.job.instruments.modules.module_names import ModuleNames
from probe.job.instruments.tensors import table_columns
from probe.job.instruments.tensors.activations import transformed
from probe.job.instruments.tensors.known_samples import KnownSamples, Recognised
from probe.job.instruments.tensors.pace import SHORTEST_STEPS, Pace
from probe.job.instruments.tensors.table_columns import TableColumns
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE, NULL_INTEGER, NULL_STRING

_now, _cpu = time.monotonic_ns, time.thread_time_ns
MOST_TENSORS = 3
MOST_IN_BATCH = 16
BATCH = "batch"
SAMPLES = 8
"""Samples read per batch, evenly spaced."""
MOST_ELEMENTS = 4096
MOST_SHAPES = 512
COPY_PARAMETERS, MOST_COPIES = 8, 8
"""Parameters compared per copy of the model, two elements of each; copies remembered."""
IMAGES, SIDE, LEAST_SIDE = 4, 32, 8
"""For the correlation of neighbours: images read (four dimensions or more), side of the square read in each,
and smallest side of an image."""
MOST_PADDED, MOST_PADDED_ELEMENTS, SHORTEST_PADDED = 64, 1 << 16, 16
"""For the padding: maximum samples and tokens read, and minimum sequence length."""
_LOOKED_AT = 7
"""Index of the column `looked_at`."""


class ModelInputs:
    """Samples the arguments of the first module call of a step."""

    def __init__(
        self, recorder: Recorder, isolation: Isolation, names: ModuleNames, delivery: Delivery, pace: Pace,
        gradless_pace: Pace, other_pace: Pace, *, batches: Batches | None,
    ) -> None:
        self._recorder = recorder
        self._names = names
        self._delivery = delivery
        self._append = recorder.rings["python.model_inputs"].append
        self._shapes: dict[tuple[int, ...], int] = {}
        self._batches = batches
        self._batch = recorder.intern(BATCH)
        self.pace, self.gradless_pace, self.other_pace = pace, gradless_pace, other_pace
        self._gradless_shape: Any = None
        """Shape of the first input of the newest first call without gradients."""
        self._sampled_inputs: tuple[int, list[weakref.ref[Any]]] = (-1, [])
        self._labels: list[weakref.ref[Any]] = []
        self._shown: list[weakref.ref[Any]] = []
        self._known = KnownSamples()
        self._columns = TableColumns()
        self._copies: dict[int, tuple[weakref.ref[Any], list[float]]] = {}
        """Copies of the model that were called without gradients: a few weights from when first seen."""
        self.sample = isolation.guard("model inputs", self._sample_inputs)
        """Called, when `pace` is due, with the first module called and its arguments. Samples nothing until
        the module's name is known, which may change when the training begins."""
        self.sample_gradless = isolation.guard("model inputs", self._sample_gradless)
        """The same for the first call without gradients, when `gradless_pace` is due."""
        self.sample_other = isolation.guard("model inputs", self._sample_other)
        """The same for a later call of a model, when `other_pace` is due: an evaluation may give it inputs of
        several kinds, which differ in their shapes."""

    def inputs_of(self, step: int) -> list[Any]:
        """The input tensors of the first module in this step; empty if they were not sampled."""
        known, references = self._sampled_inputs
        return [one for reference in references if (one := reference()) is not None] if known == step else []

    def samples_of(self, step: int) -> list[Any]:
        """The inputs of the first module in this step, and the tensors of the loader's batch, which another
        module may get; empty if they were not sampled."""
        inputs = self.inputs_of(step)
        shown = (reference() for reference in self._shown) if self._sampled_inputs[0] == step else ()
        return inputs + [one for one in shown if one is not None and not any(one is each for each in inputs)]

    def labels_of(self, step: int) -> Any:
        """The tensor of the loader's batch with one value per sample; None unless there is exactly one."""
        return self._labels[0]() if self._sampled_inputs[0] == step and len(self._labels) == 1 else None

    # HOT PATH ---------------------------------------------------------------

    def _indices(self, step: int) -> list[int] | None:
        """Indices of the loader's batch in its data set; None unless they are plain integers."""
        batch = None if self._batches is None else self._batches.last
        found = None if batch is None or batch.step != step else batch.indices
        return found if type(found) is list and all(type(one) is int for one in found) else None

    def _compared(self, tensor: Any) -> Recognised | None:
        """Compare the samples of a training batch with earlier ones."""
        step = self._recorder.step
        return self._known.trained(tensor, self.labels_of(step), self._indices(step))

    def _sample_inputs(self, module: Any, args: Any) -> None:
        recorder = self._recorder
        torch: Any = sys.modules["torch"]
        number = self._names.of(module) if recorder.step or self._names.training else None
        if recorder.micro_step or transformed(torch) or number is None:
            return
        begun, begun_cpu = _now(), _cpu()
        given = list(enumerate(args)) + list((keywords() or {}).items())
        tensors = [(str(name), value) for name, item in given for value in _flat(item, torch.Tensor)]
        self._labels, self._shown = [], []
        self._sampled_inputs = recorder.step, [weakref.ref(one) for _, one in tensors[:MOST_TENSORS]]
        with torch.no_grad(), torch._C.DisableTorchFunction():
            self._sample_batch()
            for place, (name, tensor) in enumerate(tensors[:MOST_TENSORS]):
                known = None if place else self._compared(tensor)
                self._write(number, name, tensor, 0, known)
        self.pace.took(_cpu() - begun_cpu)
        recorder.cost_ns += _now() - begun

    def _sample_other(self, module: Any, args: Any) -> None:
        shape = getattr(args[0], "shape", None) if args else None
        if shape is not None and shape != self._gradless_shape:
            self._sample_gradless(module, args, other=True)

    def _sample_gradless(self, module: Any, args: Any, other: bool = False) -> None:
        pace = self.other_pace if other else self.gradless_pace
        recorder = self._recorder
        torch: Any = sys.modules["torch"]
        number = self._number_gradless(module) if recorder.step and not transformed(torch) else None
        if number is None:
            pace.wait(SHORTEST_STEPS)
            return
        begun, begun_cpu = _now(), _cpu()
        given = list(enumerate(args)) + list((keywords() or {}).items())
        tensors = [(str(name), value) for name, item in given for value in _flat(item, torch.Tensor)]
        with torch.no_grad(), torch._C.DisableTorchFunction():
            moved = self._copy_moved(module)
            for place, (name, tensor) in enumerate(tensors[:MOST_TENSORS]):
                known = None if place else self._known.evaluated(tensor)
                self._write(number, name, tensor, 1, known, moved)
        if not other:
            self._gradless_shape = getattr(args[0], "shape", None) if args else None
        pace.took(_cpu() - begun_cpu)
        recorder.cost_ns += _now() - begun

    def _number_gradless(self, module: Any) -> int | None:
        """String number of the name of a model called without gradients: its own, or the name of a trained
        model of the same class and sizes, of which it may be an average."""
        if self._names.path(module) is not None:
            return self._names.of(module)
        alike = (root for root in self._names.roots() if type(root) is type(module))
        return next((self._names.of(root) for root in alike if _sizes(root) == _sizes(module)), None)

    def _copy_moved(self, module: Any) -> int:
        """Whether sampled weights of a copy of the trained model have changed since it was first seen; NULL
        for the trained model itself, and on a device."""
        if self._names.path(module) is not None:
            return NULL_BOOLEAN
        torch: Any = sys.modules["torch"]
        all_of = [one for one in torch.nn.Module.parameters(module) if one.numel()]
        if not all_of or not all(map(_is_readable, all_of)):
            return NULL_BOOLEAN
        some = all_of[:: -(-len(all_of) // COPY_PARAMETERS)]
        weights = [float(one.detach().flatten()[place]) for one in some for place in (0, one.numel() // 2)]
        before = self._copies.get(id(module))
        if before is None or before[0]() is not module:
            if len(self._copies) < MOST_COPIES:
                self._copies[id(module)] = weakref.ref(module), weights
            return int(False)
        return int(before[1] != weights)

    def _sample_batch(self) -> None:
        """Record the tensors of the loader's batch with one value per sample: usually labels."""
        batch = None if self._batches is None else self._batches.last
        if batch is None or batch.step != self._recorder.step or batch.content is None:
            return
        tensors = list(itertools.islice(tensors_in(batch.content, depth=2), MOST_IN_BATCH))
        samples = next((len(tensor) for _, tensor in tensors if tensor.dim()), 0)
        self._shown = [weakref.ref(tensor) for _, tensor in tensors if tensor.dim() > 1]
        for name, tensor in tensors:
            if tensor.dim() and tensor.is_cpu and tensor.numel() == samples:
                self._labels.append(weakref.ref(tensor))
                self._write(self._batch, name or BATCH, tensor.reshape(-1, 1)[:MOST_ELEMENTS], NULL_BOOLEAN)

    def _write(
        self, module: int, name: str, tensor: Any, gradless: int, known: Recognised | None = None,
        moved: int = NULL_BOOLEAN,
    ) -> None:
        if not tensor.dim() or not tensor.numel():
            return
        some = tensor if module == self._batch else some_of(tensor)
        values = statistics.values_of(some if module == self._batch else thinned(some))
        if values is None:
            return
        torch: Any = sys.modules["torch"]
        recorder, intern = self._recorder, self._recorder.intern
        fields = [
            recorder.step, recorder.micro_step, _now() + ANCHOR_NS, module, intern(name),
            self._shape(tuple(tensor.shape)), intern(str(tensor.dtype).removeprefix("torch.")),
            values.numel, gradless, *_counts(known), moved,
        ]
        moments, near = statistics.moments(values.flat), _neighbours(torch, some)
        more = _repetition(torch, some, values.flat)
        more = torch.cat([more, more.new_full((2,), float("nan")) if near is None else near])
        more = torch.cat([more, _padding(torch, tensor, more)])
        table = tensor if gradless == 0 else None
        more = torch.cat([more, self._columns.figures(torch, (module, fields[4]), table, more)])
        if values.flat.is_cpu:
            self._put(fields, [*moments, *more.tolist()])
        elif not capturing():
            self._delivery.send(torch.cat([moments, more]), lambda row: self._put(fields, row))

    def _shape(self, sizes: tuple[int, ...]) -> int:
        """String number of a shape; NULL beyond `MOST_SHAPES`, so that shapes do not fill the table."""
        if sizes not in self._shapes:
            if len(self._shapes) >= MOST_SHAPES:
                return NULL_STRING
            self._shapes[sizes] = self._recorder.intern(str(list(sizes)))
        return self._shapes[sizes]

    def _put(self, fields: list[Any], row: list[float]) -> None:
        row, columns = row[: -table_columns.FIGURES], row[-table_columns.FIGURES :]
        *moments, alike, middle, share, ends, high, neighbours, channels, unused, padding = row
        rows, still, first, value, ratio, at, column = columns
        found = statistics.figures(moments, fields[_LOOKED_AT])
        known = (
            found.mean, found.std, found.min, found.max, found.zero_ratio, alike, middle, share, neighbours,
            channels, ends, unused, padding, high, ratio, at, value,
        )
        figures = [NULL_DOUBLE if one != one else one for one in known]
        counts = [NULL_INTEGER if one != one else int(one) for one in (column, rows, still, first)]
        self._append(*fields[: _LOOKED_AT + 1], *figures, *counts, *fields[_LOOKED_AT + 1 :])


def _is_readable(parameter: Any) -> bool:
    """Whether it is a plain tensor on the host with its storage allocated: FSDP frees other ranks' parts."""
    plain = statistics.is_common(parameter, statistics.common_kinds()) and parameter.is_cpu
    return plain and bool(parameter.untyped_storage().size())


def _sizes(model: Any) -> list[tuple[int, ...]]:
    torch: Any = sys.modules["torch"]
    return [tuple(one.shape) for one in torch.nn.Module.parameters(model)]


def _counts(known: Recognised | None) -> list[int]:
    """`compared`, `again`, `relabelled` and `elsewhere`."""
    found = (None, None, None, None) if known is None else known
    return [NULL_INTEGER if one is None else one for one in found]


def some_of(tensor: Any) -> Any:
    """Some elements of some samples, without copying the rest."""
    some = tensor[:: max(1, len(tensor) // SAMPLES)][:SAMPLES]
    for dimension in range(2, some.dim()):
        some = some.narrow(dimension, 0, min(some.shape[dimension], 64))
    return some


def thinned(some: Any) -> Any:
    """At most `MOST_ELEMENTS` of its elements, in one dimension."""
    flat = some.reshape(-1)
    return flat[:: -(-flat.numel() // MOST_ELEMENTS) or 1]


def _repetition(torch: Any, some: Any, flat: Any) -> Any:
    """Share of the samples after the first that equal it; median of integers, and the share that equals it
    (that of the commonest value if above a half); share of the elements that equal the smallest or the
    largest one, and of those that equal the largest. float64 on their device, NaN for missing figures."""
    none = torch.full((), float("nan"), dtype=torch.float64, device=flat.device)
    alike = middle = share = ends = high = none
    narrow = some.is_floating_point() and some.element_size() == 1  # 8-bit floats cannot be compared
    plain = type(some) is torch.Tensor and not narrow  # subclasses may define their own arithmetic
    if plain and len(some) > 1 and some[0].numel() > 1:
        rows = some.reshape(len(some), -1)
        alike = (rows[1:] == rows[:1]).all(1).double().mean()
    if flat.dtype in (torch.int64, torch.int32):
        middle = flat.median()
        share = (flat == middle).double().mean()
    if plain and not flat.is_complex():
        largest = flat == flat.amax()
        ends, high = ((flat == flat.amin()) | largest).double().mean(), largest.double().mean()
    return torch.stack([alike, middle.double(), share, ends, high])


def _neighbours(torch: Any, some: Any) -> Any:
    """Two correlations along the last dimension of images: of neighbouring values, near 1 in a picture and 0
    in white noise; and of values as many places apart as there are channels (2 to 4; else NaN), which is the
    higher one if channels that lie beside each other were reshaped into planes. None for other tensors."""
    if type(some) is not torch.Tensor or not some.is_floating_point() or some.element_size() == 1:
        return None  # these may have their own arithmetic, or none
    if some.dim() < 4 or min(some.shape[-2:]) < LEAST_SIDE:
        return None
    square = some[:IMAGES, :1, ..., :SIDE, :SIDE].double()
    channels = some.shape[1] if some.dim() == 4 and 2 <= some.shape[1] <= 4 else 0
    near = _correlation(square, 1)
    return torch.stack([near, _correlation(square, channels) if channels else near * float("nan")])


def _correlation(square: Any, apart: int) -> Any:
    """Correlation of values so many places apart along the last dimension."""
    left, right = square[..., :-apart].reshape(-1), square[..., apart:].reshape(-1)
    left, right = left - left.mean(), right - right.mean()
    return (left * right).mean() / (left.square().mean() * right.square().mean()).sqrt()


def _padding(torch: Any, tensor: Any, like: Any) -> Any:
    """Padding of token ids [N, T]: the share of positions at the end, or at the start, where all samples have
    the same id, and the share of all tokens that are this id at that end of a sample. The former is above 0
    if a batch is longer than its longest sample. NaN for other tensors."""
    none = like.new_full((2,), float("nan"))
    whole = type(tensor) is torch.Tensor and tensor.dtype in (torch.int64, torch.int32)
    if not whole or tensor.dim() != 2:
        return none
    rows, length = tensor.shape
    some = min(MOST_PADDED, MOST_PADDED_ELEMENTS // length)
    if rows < 2 or some < 2 or length < SHORTEST_PADDED:
        return none
    held = tensor[:: max(1, rows // some)][:some]
    ends = []
    for way in (held, held.flip(1)):
        ending = (way == way[:, -1:]).flip(1).cumprod(1).sum(1)
        token = way[:, -1].index_select(0, ending.argmax().reshape(1))  # `way[place]` waits for a device
        same = (way == token).flip(1)
        unused = same.all(0).cumprod(0).sum() / length
        ends.append(torch.stack([unused, same.cumprod(1).sum() / same.numel()]))
    last, first = ends
    return torch.where(last[0] >= first[0], last, first).to(none)


def _flat(value: Any, kind: type) -> list[Any]:
    """The tensors in an argument: the argument itself, or the items of a container."""
    if isinstance(value, kind):
        return [value]
    return [one for one in contents(type(value), value) if isinstance(one, kind)]
