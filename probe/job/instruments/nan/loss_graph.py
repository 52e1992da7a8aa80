"""Loss graph: finds the first operation between model and loss that produced a NaN or an infinity.

Repeats operations from the tensors that the nodes of the autograd graph saved: only in a forked child
(`forked_probe`), because unpacking saved tensors may run the job's code. If backward has freed them
(`held_trace`), only the names of the nodes remain (`able_behind`). Uses the job's torch, inside functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from probe.base.isolation import capture
from probe.job.instruments.core.loss_share import saved_number
from probe.job.instruments.core.tensor_summaries import is_nonfinite, torch_module
from probe.job.instruments.nan.replay import saved

MOST_NODES = 512


def nodes(root: Any, last: Any = None) -> Iterator[Any]:
    """The first `MOST_NODES` nodes of a loss's graph, nearest first; not those reached only via `last`."""
    first = getattr(root, "grad_fn", None)
    waiting, seen = [first] if first is not None else [], {first}
    while waiting and len(seen) <= MOST_NODES:
        node = waiting.pop(0)
        yield node
        for following, _ in node.next_functions if node is not last else ():
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def names(root: Any) -> list[str]:
    """Names of the 64 nodes nearest to the loss."""
    return [node.name() for node, _ in zip(nodes(root), range(64), strict=False)]


_BREAKS = {
    "Log": "log of zero", "Log2": "log of zero", "Log10": "log of zero", "Log1p": "log of zero",
    "BinaryCrossEntropy": "log of zero", "Div": "division by zero", "Reciprocal": "division by zero",
    "Rsqrt": "division by zero", "NllLoss": "division by zero", "NllLoss2D": "division by zero",
    "Sqrt": "out of domain", "Acos": "out of domain", "Asin": "out of domain", "Atanh": "out of domain",
    "Exp": "overflow", "Expm1": "overflow", "Pow": "overflow",
}
"""Operations that can turn numbers of usual size into a NaN or an infinity, with the cause."""


def able_behind(root: Any, *, divided: bool) -> dict[str, str]:
    """The operations after the last use of a parameter, up to the loss, that can turn usual numbers into a
    NaN or an infinity, each with a `cause`. `divided`: this job divides its losses by a number, as for
    accumulation; that division is left out."""
    names = _behind_model(root, divided=divided)
    return {name: _BREAKS[kind] for name in names if (kind := name.partition("Backward")[0]) in _BREAKS}


def _behind_model(root: Any, *, divided: bool) -> list[str]:
    first: Any = getattr(root, "grad_fn", None)
    waiting: list[Any] = [first] if first is not None else []
    seen, found = {first}, []
    while waiting and len(seen) <= MOST_NODES:
        node = waiting.pop(0)
        following = [one for one, _ in node.next_functions if one is not None]
        if any(one.name().endswith("AccumulateGrad") for one in following):
            continue
        if not (divided and node is first and node.name().startswith("Div")):
            found.append(node.name())
        fresh = [one for one in following if one not in seen]
        seen.update(fresh)
        waiting += fresh
    return found


def divides(root: Any) -> bool:
    """Whether a loss's last operation is a division by a number; call before its backward."""
    first = getattr(root, "grad_fn", None)
    return first is not None and first.name().startswith("Div") and (
        saved_number(first, "_raw_saved_other") is not None
    )


def first_bad_operation(root: Any) -> dict[str, Any] | None:
    """The node farthest from the loss that turned finite inputs into non-finite outputs: its name, its saved
    tensors, and `after_model`: whether no node nearer to the loss uses a parameter.

    Instead with `given` if a layer's input is bad and comes from outside the graph."""
    farthest = None
    for node in nodes(root):
        given, error = capture(functools.partial(_has_bad_input, node))
        if error is None and given:
            return {"op": node.name(), "inputs": saved(node), "given": True}
        made, error = capture(functools.partial(_turned_nonfinite, node))
        if error is None and made:
            farthest = node
    return (
        None
        if farthest is None
        else {
            "op": farthest.name(),
            "inputs": saved(farthest),
            "cause": _cause(farthest),
            "nothing_counted": farthest.name().startswith("NllLoss"),
            "after_model": not _uses_parameters_before(root, farthest),
        }
    )


_GIVEN = {"Addmm": ("_saved_mat1", 1), "Mm": ("_saved_self", 0), "Convolution": ("_saved_input", 0)}
"""Layers: attribute of the saved input, and its index among the node's next functions."""


def _has_bad_input(node: Any) -> bool:
    """Whether a layer's input is bad and came from outside the graph."""
    kept, place = _GIVEN.get(node.name().partition("Backward")[0], ("", 0))
    return bool(kept) and node.next_functions[place][0] is None and is_nonfinite(getattr(node, kept))


def _uses_parameters_before(root: Any, last: Any) -> bool:
    """Whether a path from the loss reaches a parameter without passing `last`."""
    return any(node.name().endswith("AccumulateGrad") for node in nodes(root, last))


def _turned_nonfinite(node: Any) -> bool:
    """Repeat an operation: whether it turned finite inputs into non-finite outputs."""
    name = node.name()
    if name.startswith("NllLoss"):
        return bool((node._saved_total_weight == 0).all()) and node._saved_reduction == 1
    if name.startswith("MeanBackward"):
        return bool(getattr(node, "_saved_self_sym_numel", 1) == 0)
    if name.startswith(_PASS_ON):
        return False
    made = _REPEATED[name.rstrip("0123456789")](node) if name.rstrip("0123456789") in _REPEATED else None
    if made is None:
        made = getattr(node, "_saved_result", None)
    given = [
        getattr(node, kept, None)
        for kept in ("_saved_self", "_saved_other", "_saved_target", "_saved_exponent")
    ]
    return is_nonfinite(made) and not any(is_nonfinite(one) for one in given)


_PASS_ON = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Hardtanh", "Elu")
"""Operations that save only their result, and give finite results for finite inputs."""


def _of_self(function: str) -> Callable[[Any], Any]:
    return lambda node: getattr(torch_module(), function)(node._saved_self)


def _divided(node: Any) -> Any:
    """The reciprocal of the divisor: the dividend is saved only if the divisor needs a gradient."""
    divisor = node._saved_other
    if divisor is None or not hasattr(divisor, "detach"):
        return None
    return torch_module().reciprocal(divisor)


def _squared_difference(node: Any) -> Any:
    return (node._saved_self - node._saved_target) ** 2


def _product(node: Any) -> Any:
    if node._saved_self is None or node._saved_other is None:
        return None
    return node._saved_self * node._saved_other


_REPEATED: dict[str, Callable[[Any], Any]] = {
    **{
        f"{name.capitalize()}Backward": _of_self(name)
        for name in ("log", "log2", "log10", "log1p", "acos", "asin", "atanh")
    },
    "DivBackward": _divided,
    "MulBackward": _product,
    "MseLossBackward": _squared_difference,
    "PowBackward": lambda node: torch_module().pow(node._saved_self, node._saved_exponent),
    "BinaryCrossEntropyBackward": lambda node: torch_module().nn.functional.binary_cross_entropy(
        node._saved_self, node._saved_target, reduction="none"
    ),
}


def _cause(node: Any) -> str | None:
    """The `cause` in python.nonfinite for a node that produced the value."""
    name = node.name()
    if name.startswith(("Log", "BinaryCrossEntropy")):
        kept = getattr(node, "_saved_self", None)
        negative = kept is not None and bool((kept < 0).any())
        return "out of domain" if negative else "log of zero"
    if name.startswith(("Div", "Reciprocal", "Rsqrt", "NllLoss", "Mean")):
        return "division by zero"
    if name.startswith(("Sqrt", "Acos", "Asin", "Atanh")):
        return "out of domain"
    return "overflow" if name.startswith(("Exp", "Mul", "MseLoss", "Pow", "Sum")) else None
