"""Loss functions: identifies the loss functions in the autograd graph of the loss, on some steps.

Writes python.loss_functions. HOT PATH on the steps that `Pace` chooses, on the training thread, right before
backward: a walk over the nodes between the loss and the last layers. It shows which functions were called,
over which dimension and with which shapes, however the job imported or wrote them; nothing is wrapped.
Figures of targets and outputs are computed from a part of the tensors that the graph saved, and only from
those without hooks of the job: unpacking others would run its code. For tensors on a device, rows are written
when the figures arrive. torch inside functions.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from probe.base.accelerator import capturing
from probe.base.clock import ANCHOR_NS
from probe.base.isolation import Isolation
from probe.job.instruments.core.delivery import Delivery
from probe.job.instruments.core.recorder import Recorder
from probe.job.instruments.tensors import ctc_targets, in_batch_negatives, input_targets, loss_figures
from probe.job.instruments.tensors.activations import transformed
from probe.job.instruments.tensors.output_bounds import bounds_of
from probe.job.instruments.tensors.pace import Pace
from probe.recording.layout import NULL_BOOLEAN, NULL_DOUBLE, NULL_INTEGER, NULL_STRING

_now, _cpu = time.monotonic_ns, time.thread_time_ns
MOST_NODES = 64
"""Maximum number of nodes visited: the loss functions are next to the root."""
MOST_FUNCTIONS = 4
MOST_SHAPES = 512
MOST_TRIED = 4
"""Backwards looked at, one after the other, until one has a loss function."""

_FUNCTIONS = {
    "NllLoss": "nll_loss", "NllLoss2D": "nll_loss", "NllLossNd": "nll_loss", "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss", "L1Loss": "l1_loss",
    "BinaryCrossEntropy": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogits": "binary_cross_entropy_with_logits", "SoftMarginLoss": "soft_margin_loss",
    "CtcLoss": "ctc_loss",
}
_LAYERS = frozenset({
    "Addmm", "Mm", "Bmm", "Baddbmm", "Mv", "Dot", "Linear", "Convolution", "ConvolutionOverrideable",
    "Embedding", "EmbeddingBag", "NativeLayerNorm", "NativeBatchNorm", "CudnnBatchNorm", "NativeGroupNorm",
    "FusedRmsNorm", "CudnnRnn", "MkldnnRnnLayer", "MkldnnLinear", "MkldnnConvolution", "CompiledFunction",
    "ScaledDotProductFlashAttention", "ScaledDotProductFlashAttentionForCpu",
    "ScaledDotProductEfficientAttention", "torch::autograd::AccumulateGrad",
})
"""Operations at which the walk ends: behind them is the model."""
_SHAPING = frozenset({
    "View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "T", "Squeeze", "Unsqueeze", "Expand",
    "Slice", "Select", "Index", "Clone", "ToCopy", "Gather", "IndexSelect", "AsStrided", "Alias", "Narrow",
    "Unbind", "Split", "Stack", "Cat",
})
"""Operations that pass on their input in another shape."""
_MOVING = ("Transpose", "Permute", "T", "AsStrided")
_VIEWS = ("View", "UnsafeView", "ReshapeAlias")
_JOINING = ("Stack", "Cat")
"""Operations that join tensors; only the first input is followed."""
_SOFTMAX = ("Softmax", "LogSoftmax")
_DROPPING = ("NativeDropout", "FusedDropout")
FIGURES = loss_figures.FIGURES + ctc_targets.FIGURES + in_batch_negatives.FIGURES + input_targets.FIGURES
MASK_ELEMENTS = 128
"""Elements read of a factor to decide whether it is a dropout mask."""


class Found(NamedTuple):
    """A loss function in the graph."""

    function: str
    node: Any
    reduction: str
    """As in python.loss_functions."""
    smoothing: float
    """Label smoothing; NULL_DOUBLE if unknown."""
    weighted: tuple[int, ...] | None = None
    """As in python.loss_functions."""


class Behind(NamedTuple):
    """The operations that computed the prediction of a loss function."""

    operations: list[str]
    """Nearest first, without changes of shape."""
    softmax: Any
    """The one nearest to the loss; None without."""
    layer: str
    """The layer's name, or ''."""
    rows: int
    """Length of the first dimension before it was sliced; NULL if it was not."""
    rows_used: int
    """Its length after slicing."""
    mixed: tuple[int, ...] | None
    """Shape that a view turned into the input of `softmax` so that the classes no longer lie on one axis."""


class Audit(Protocol):
    """Examines a model from step `due` on; see `dependence_audit`."""

    due: int
    run: Callable[[Any], object]


class LossFunctions:
    """Inspects the root of the first backward of a step. If that has no loss function, also those of the next
    ones: an actor's loss has none, nor has that of a temperature, and a critic's may follow."""

    def __init__(self, recorder: Recorder, isolation: Isolation, delivery: Delivery, pace: Pace) -> None:
        self._recorder = recorder
        self._delivery = delivery
        self._append = recorder.rings["python.loss_functions"].append
        self._shapes: dict[tuple[int, ...], int] = {}
        self._tried, self._spent = 0, 0
        self.pace = pace
        self.inputs_of: Callable[[int], list[Any]] = _nothing
        """The input tensors of the first module in a step, if they were sampled."""
        self.samples_of: Callable[[int], list[Any]] = _nothing
        """These and the tensors of the loader's batch, which another module may get."""
        self.labels_of: Callable[[int], Any] = _nothing
        """The labels of the batch in a step, one per sample, if there are any."""
        self.audit: Audit | None = None
        """Set by the installation: examines the model behind a loss on a few of these steps."""
        self.sample = isolation.guard("loss functions", self._sample_root)
        """Called right before a backward, if due, with its root and whether a GradScaler scaled it."""

    # HOT PATH ---------------------------------------------------------------

    def _sample_root(self, root: Any, scaled: bool) -> None:
        recorder = self._recorder
        if recorder.micro_step and not self._tried:
            return
        begun, begun_cpu = _now(), _cpu()
        first = getattr(root, "grad_fn", None)
        if first is not None and scaled:
            first = first.next_functions[0][0]
        found = functions_in(first) if first is not None else []
        for number in range(min(len(found), MOST_FUNCTIONS)):
            self._write(found[number], None if number or recorder.micro_step else first)
        self._spent += _cpu() - begun_cpu
        self._tried += 1
        if found or self._tried == MOST_TRIED:
            self.pace.took(self._spent)
            self._tried, self._spent = 0, 0
        audit = self.audit
        if audit is not None and recorder.step >= audit.due and not recorder.micro_step:
            audit.run(first)
        recorder.cost_ns += _now() - begun

    def _write(self, one: Found, root: Any) -> None:
        recorder, intern = self._recorder, self._recorder.intern
        node = one.node
        operations, softmax, layer, rows, rows_used, mixed = behind(node)
        shape = _shape(node) if one.function == "difference" else _shape_into(node, 0) or _shape_into(node, 1)
        before = _before_broadcast(node)
        bounds = bounds_of(_prediction(node), loss_figures.operation, _scalar)
        dimension, classes = NULL_INTEGER, NULL_INTEGER
        over_batch = NULL_BOOLEAN
        if softmax is not None:
            sizes, dimension = _shape(softmax), loss_figures.signed(softmax._saved_dim)
            if sizes and -len(sizes) <= dimension < len(sizes):
                dimension %= len(sizes)
                classes = sizes[dimension]
                over_batch = dimension == 0 and len(sizes) > 1 and 1 not in sizes[:2]
        torch: Any = sys.modules["torch"]
        plain = not transformed(torch)
        kept = loss_figures.kept(node, "target") if plain else None
        numel = NULL_INTEGER if kept is None else kept.numel()
        fields = [
            recorder.step, recorder.micro_step, _now() + ANCHOR_NS, intern(one.function),
            intern(one.reduction),
            intern(" < ".join(operations)) if operations else NULL_STRING,
            intern(layer) if layer else NULL_STRING,
            NULL_DOUBLE if bounds is None else bounds.low, NULL_DOUBLE if bounds is None else bounds.high,
            NULL_STRING if bounds is None else intern(bounds.by),
            self._shape(shape), rows, rows_used, self._shape(before), self._shape(one.weighted),
            self._shape(mixed),
            dimension, over_batch, classes, one.smoothing, numel,
        ]
        with torch.no_grad(), torch._C.DisableTorchFunction():
            figures = loss_figures.figures(torch, node, kept, classes) if plain else None
            inputs = (self.inputs_of(recorder.step) or []) if root is not None else []
            if inputs and kept is None:  # a written-out loss saves no target: use the batch's label
                kept, none = self.labels_of(recorder.step), [float("nan")] * loss_figures.FIGURES
                if kept is not None and figures is None:
                    figures = torch.tensor(none, dtype=torch.float64, device=kept.device)
            compared = None
            if inputs and kept is not None and figures is not None:
                index = getattr(node, "_saved_ignore_index", None)
                ignored = None if index is None else loss_figures.signed(index)
                compared = input_targets.relation(torch, inputs, kept, ignored, node)
            samples = (self.samples_of(recorder.step) or []) if inputs else []
            negatives = in_batch_negatives.figures(torch, node, samples) if plain else None
            of_ctc = ctc_targets.figures(torch, node) if plain else None
            if of_ctc is not None:  # it has no figures of other losses
                figures = of_ctc.new_full((loss_figures.FIGURES,), float("nan"))
                negatives = compared = None
            if figures is not None:
                parts = ((of_ctc, ctc_targets), (negatives, in_batch_negatives), (compared, input_targets))
                figures = torch.cat([figures, *(
                    figures.new_full((kind.FIGURES,), float("nan")) if one is None else one
                    for one, kind in parts
                )])
        if figures is None:
            self._put(fields, [])
        elif figures.is_cpu:
            self._put(fields, figures.tolist())
        elif not capturing():
            self._delivery.send(figures, lambda row: self._put(fields, row))

    def _shape(self, sizes: tuple[int, ...] | None) -> int:
        """String number of a shape; NULL beyond `MOST_SHAPES`, so that shapes do not fill the table."""
        if not sizes:
            return NULL_STRING
        if sizes not in self._shapes:
            if len(self._shapes) >= MOST_SHAPES:
                return NULL_STRING
            self._shapes[sizes] = self._recorder.intern(str(list(sizes)))
        return self._shapes[sizes]

    def _put(self, fields: list[Any], figures: list[float]) -> None:
        *known, column, later = figures or [float("nan")] * FIGURES
        self._append(
            *fields, *[NULL_DOUBLE if one != one else one for one in known],
            NULL_INTEGER if column != column else int(column),
            NULL_BOOLEAN if later != later else later > 0.0,
        )


def _nothing(_step: int) -> Any:
    """Default until the installation sets the functions: no inputs or labels are known."""
    return None


# The graph -------------------------------------------------------------------


def target_of(first: Any) -> tuple[Any, int | None]:
    """The target saved by a loss function between this node and the last layers, and its `ignore_index`; both
    None without one."""
    for one in functions_in(first) if first is not None else ():
        kept = loss_figures.kept(one.node, "target")
        if kept is not None:
            index = getattr(one.node, "_saved_ignore_index", None)
            return kept, None if index is None else loss_figures.signed(index)
    return None, None


def functions_in(first: Any) -> list[Found]:
    """The loss functions between a root and the last layers, nearest first."""
    waiting: list[tuple[Any, tuple[Any, ...]]] = [(first, ())]
    seen = {first}
    found: list[Found] = []
    branches: set[Any] = set()
    while waiting and len(seen) <= MOST_NODES:
        node, above = waiting.pop(0)
        name = loss_figures.operation(node)
        if name in _LAYERS:
            continue
        function = _FUNCTIONS.get(name) or _written_out(node, name)
        if function:
            found.append(
                Found(function, node, _reduction(node, above), _factor(above), _weighted(node, above))
            )
            continue
        if name in _SOFTMAX:
            branches.add(node)
            continue
        if name in ("Sub", "Rsub") and _before_broadcast(node):
            weighted = _weighted(node, above)
            found.append(Found("difference", node, _reduction(node, above), NULL_DOUBLE, weighted))
            continue
        for following, _ in node.next_functions[: 1 if name in _JOINING else None]:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append((following, (*above, node)))
    compared = {one.node.next_functions[0][0] for one in found}
    found = [_with_smoothing(one, branches) for one in found]
    return found + [
        Found("softmax", one, "other", NULL_DOUBLE) for one in list(branches - compared)[:1] if _shape(one)
    ]


def _written_out(node: Any, name: str) -> str:
    """Name of an MSE or L1 loss written out: the square or absolute value of a difference with one side that
    requires a gradient; empty for other operations."""
    if name == "Pow" and _scalar(node, "exponent") == 2.0:
        kind = "mse_loss"
    elif name == "Abs":
        kind = "l1_loss"
    else:
        return ""
    inner = node.next_functions[0][0]
    if inner is None or loss_figures.operation(inner) not in ("Sub", "Rsub"):
        return ""
    sides = [one for one, _ in inner.next_functions if one is not None]
    return f"{kind} (written out)" if len(sides) == 1 else ""


def _reduction(node: Any, above: tuple[Any, ...]) -> str:
    """Reduction of a loss function; `sum` only if nothing between it and the root can have divided by the
    number of elements."""
    own = getattr(node, "_saved_reduction", 0)
    names = [loss_figures.operation(one) for one in above]
    if own == 1 or (own == 0 and "Mean" in names):
        return "mean"
    factors = [_scalar(one, "other") for one, name in zip(above, names, strict=True) if name == "Mul"]
    if "Mean" in names or "Div" in names or any(one is None or abs(one) < 0.1 for one in factors):
        return "other"
    return "sum" if own == 2 or "Sum" in names else "other"


def _factor(above: tuple[Any, ...]) -> float:
    """The constant between 0 and 1 that directly multiplies the loss function's value; NULL without one."""
    if above and loss_figures.operation(above[-1]) == "Mul":
        factor = _scalar(above[-1], "other")
        if factor is not None and 0.0 < factor < 1.0:
            return factor
    return NULL_DOUBLE


def _with_smoothing(one: Found, branches: set[Any]) -> Found:
    """Detect cross entropy and its label smoothing: with smoothing s, torch adds the mean of all log
    probabilities, and weights the rest by 1 - s."""
    inner = one.node.next_functions[0][0]
    smoothed = one.function == "nll_loss" and one.smoothing != NULL_DOUBLE and inner in branches
    if one.function == "nll_loss" and inner is not None and loss_figures.operation(inner) == "LogSoftmax":
        return one._replace(function="cross_entropy", smoothing=1.0 - one.smoothing if smoothed else 0.0)
    return one._replace(smoothing=NULL_DOUBLE)


def behind(node: Any) -> Behind:
    """The operations that computed the prediction of a loss function, back to a layer."""
    operations: list[str] = []
    softmax, layer, rows, rows_used, view = None, "", NULL_INTEGER, NULL_INTEGER, None
    moved = False
    current = _prediction(node)
    for _ in range(16):
        if current is None:
            break
        name = loss_figures.operation(current)
        if name in _LAYERS:
            layer = name.rpartition("::")[2]
            break
        if name in _SOFTMAX and softmax is None:
            softmax = current
            view = current.next_functions[0][0]
        moved = moved or name in _MOVING
        if name not in _SHAPING:
            operations.append("Dropout" if name in _DROPPING or _drops(current, name) else name)
        elif name in ("Slice", "Select") and getattr(current, "_saved_dim", None) == 0:
            before, after = getattr(current, "_saved_self_sym_sizes", ()), _shape(current)
            if before and after:
                rows, rows_used = int(before[0]), after[0] if name == "Slice" else 1
        following = [one for one, _ in current.next_functions if one is not None]
        if len(following) != 1:
            break
        current = following[0]
    mixed = None if moved else _mixed(softmax, view, layer)
    return Behind(operations, softmax, layer, rows, rows_used, mixed)


def _mixed(softmax: Any, view: Any, layer: str) -> tuple[int, ...] | None:
    """The shape in front of a view that gives a softmax its input, if the classes lay on another axis there:
    the view does not move them, as a permutation would, but fills each row of classes with other numbers."""
    if view is None or loss_figures.operation(view) not in _VIEWS or not view.next_functions[0][0]:
        return None
    before, after = _shape(*view.next_functions[0]), _shape(softmax)
    dimension = loss_figures.signed(softmax._saved_dim)
    if not before or not after or not -len(after) <= dimension < len(after):
        return None
    classes, inner = after[dimension], _product(after[dimension % len(after) + 1 :])
    if classes < 2:
        return None
    if "Conv" in layer:
        channels = len(before) > 2 and before[1] == classes
        place = 1 if channels else None
    elif before[-1] % classes == 0:  # features that are cut into rows of classes
        return None if before[-1] > classes or inner == 1 else before
    else:
        place = before.index(classes) if before.count(classes) == 1 else None
    if place is None or _product(before[place + 1 :]) == inner:
        return None
    return before


def _prediction(node: Any) -> Any:
    """The node that computed a loss function's prediction; None without one."""
    name = loss_figures.operation(node)
    current = node if name in _SOFTMAX else node.next_functions[0][0]
    if name in loss_figures.WRITTEN_OUT:
        current = next((one for one, _ in current.next_functions if one is not None), None)
    return current


def _drops(node: Any, name: str) -> bool:
    """Whether a product is dropout on the host: its factor contains only zeros and one number above 1."""
    factor = loss_figures.kept(node, "other") if name == "Mul" else None
    if factor is None or not factor.is_cpu or not factor.is_floating_point() or factor.requires_grad:
        return False
    if tuple(factor.shape) != _shape(node) or factor.layout is not sys.modules["torch"].strided:
        return False
    values = set(loss_figures.part(factor)[:MASK_ELEMENTS].tolist())
    return len(values) == 2 and min(values) == 0.0 and max(values) > 1.0


def scales(node: Any) -> bool:
    """Whether an operation multiplies its input by a number, or by a dropout mask."""
    constant = _scalar(node, "other") is not None or _scalar(node, "self") is not None
    return constant or _drops(node, loss_figures.operation(node))


def _before_broadcast(node: Any) -> tuple[int, ...] | None:
    """Shape of the prediction if the loss function broadcasts it to more elements; else None."""
    source, number = node.next_functions[0]
    if loss_figures.operation(node) in ("Sub", "Rsub"):
        sides = [one for one in node.next_functions if one[0] is not None]
        source, number = sides[0] if len(sides) == 1 else (None, 0)
        compared = _shape(node)
    elif loss_figures.operation(node) in loss_figures.WRITTEN_OUT:
        compared = _shape(source)
        source, number = next((one for one in source.next_functions if one[0] is not None), (None, 0))
    elif source is not None and loss_figures.operation(source) == "Expand":
        compared = _shape(source)
        source, number = source.next_functions[0]
    else:
        return None
    shape = _shape(source, number)
    return shape if compared and shape and _product(shape) < _product(compared) else None


def _weighted(node: Any, above: tuple[Any, ...]) -> tuple[int, ...] | None:
    """Shape of a loss function's values times a factor, if the product has more elements; else None."""
    shape = _shape(node)
    for one in reversed(above):
        product = _shape(one)
        if shape and product and loss_figures.operation(one) == "Mul" and _product(shape) < _product(product):
            return product
        shape = product
    return None


def _shape_into(node: Any, place: int) -> tuple[int, ...] | None:
    """Shape of a node's input at this position."""
    given = node.next_functions[place : place + 1]
    return _shape(*given[0]) if given and given[0][0] is not None else None


def _shape(node: Any, number: int = 0) -> tuple[int, ...] | None:
    """Shape of a node's output."""
    made = getattr(node, "_input_metadata", None)  # input of its backward, so output of its forward
    return tuple(map(int, made[number].shape)) if made and len(made) > number else None


def _scalar(node: Any, name: str) -> float | None:
    """A number that a node saved, possibly as a 0-d tensor on the host. None if it cannot be read without
    waiting or running a hook of the job, or if it is learned."""
    tensor = loss_figures.kept(node, name)
    if tensor is not None:  # torch warns about converting a tensor that requires grad
        return float(tensor) if tensor.is_cpu and tensor.dim() == 0 and not tensor.requires_grad else None
    value = None if hasattr(node, f"_raw_saved_{name}") else getattr(node, f"_saved_{name}", None)
    return float(value) if isinstance(value, (int, float)) else None


def _product(sizes: tuple[int, ...]) -> int:
    found = 1
    for size in sizes:
        found *= size
    return found
