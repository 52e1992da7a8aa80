"""NaN origin: derives from the findings of a trace where a NaN or an infinity came from, and why.

Pure: plain values in; the columns direction, module, param, op, cause, evidence, inputs, kind and step of
python.nonfinite out. A direction is named only if the findings allow no other; otherwise it is `unknown`, and
the evidence states what is missing. Standard library only.
"""

from __future__ import annotations

import itertools
import json
from typing import Any, NamedTuple

GROWTH_RATIO = 10.0
"""A run diverged before it broke if its last finite loss is this many times the lowest in the history …"""
GROWING_STEPS = 3
LEAP_RATIO = 1000.0
"""… after this many growing losses, or `LEAP_RATIO` times after any losses."""
LARGE_LR = 1.0
"""Adaptive optimizers use 1e-5 to 1e-2 in practice; torch's defaults are 1e-3."""
FEW_RATIO = 0.05
"""An optimizer's step writes every element, so it never leaves a smaller share of bad ones than this."""
_LIMITS = {"float16": 65504.0, "bfloat16": 3.39e38, "float32": 3.4e38, "float64": 1.8e308}
_LOGS = ("log", "log2", "log10", "log1p", "logit", "xlogy", "log_sigmoid_forward")
_DOMAINS = ("sqrt", "acos", "asin", "atanh", "acosh", "pow", "lgamma")
_QUOTIENTS = (
    "div",
    "reciprocal",
    "rsqrt",
    "floor_divide",
    "remainder",
    "_softmax",
    "_log_softmax",
    "mean",
    "var",
    "std",
    "var_mean",
    "std_mean",
    "native_layer_norm",
    "native_batch_norm",
    "native_group_norm",
    "linalg_vector_norm",
    "cosine_similarity",
    "_native_batch_norm_legit",
)
_STEEP = (
    "Sqrt",
    "Norm",
    "LinalgVectorNorm",
    "Std",
    "Var",
    "Cdist",
    "EuclideanDist",
    "Acos",
    "Asin",
    "Atan2",
    "Rsqrt",
    "Reciprocal",
    "Pow",
    "Log",
)
"""Operations whose derivative is infinite somewhere, the most likely first."""


class Seen(NamedTuple):
    """The detector's knowledge at the event."""

    step: int
    micro_step: int
    seen_by: str
    kind: str
    losses: list[float]
    """Earlier finite losses, oldest first."""
    checked_before: bool
    """Whether gradients were checked in the previous step, and were finite."""
    norm_before: float | None
    """Gradient norm of the previous step, if known."""
    several_ranks: bool
    lr: float | None = None
    refused: str = ""
    """Why nothing could be repeated; empty if it was."""
    held_ms: float | None = None
    """How long the training thread was held for the trace; None if the trace ran in a fork, or not at all."""
    bad_before: bool = False
    """Whether gradients of the previous step are known to have been non-finite."""


class Origin(NamedTuple):
    """Columns of python.nonfinite. `evidence` is a list of lines."""

    direction: str
    step: int
    micro_step: int | None
    kind: str
    evidence: list[str]
    module: str | None = None
    param: str | None = None
    op: str | None = None
    cause: str | None = None
    inputs: Any = None


def find_origin(event: Seen, found: dict[str, Any]) -> Origin:
    """Where the event began, from the findings of its trace by name."""
    step = event.step - event.bad_before
    lines = [f"{_SEEN[event.seen_by]} {'NaN' if event.kind == 'nan' else 'infinite'} in step {step}"]
    origin = _of_parameters(event, found, lines)
    if origin is None:
        origin = (
            _of_gradients(event, found, lines)
            if event.seen_by != "loss"
            else _of_forward(event, found, lines)
        )
    notes = [_refusal(event, found), _unfinished(found), _held(event)]
    return origin._replace(evidence=[*origin.evidence, *[note for note in notes if note]])


_SEEN = {
    "loss": "the loss was",
    "gradient": "gradients were",
    "gradient norm": "the gradient norm was",
    "scaler": "scaled gradients were",
}


def _part(found: dict[str, Any], name: str) -> dict[str, Any]:
    value = found.get(name)
    return value if isinstance(value, dict) and "error" not in value else {}


def _refusal(event: Seen, found: dict[str, Any]) -> str:
    again = _part(found, "forward") or _part(found, "backward")
    why = event.refused or again.get("refused", "")
    return f"the step was not repeated: {why}" if why else ""


def _held(event: Seen) -> str:
    if event.held_ms is None:
        return ""
    return f"examined in the training process, held for {event.held_ms:.0f} ms before an optimizer's step"


def _unfinished(found: dict[str, Any]) -> str:
    again = _part(found, "forward") or _part(found, "backward")
    errors = [
        f"{name}: {value['error']}"
        for name, value in found.items()
        if isinstance(value, dict) and "error" in value
    ]
    if "stopped" in again:
        errors.append(f"repeating it raised {again['stopped']}")
    if "error" in found:
        errors.append(str(found["error"]))
    if not found.get("whole") and not errors and "cut short" in found:
        errors.append(str(found["cut short"]))
    return "; ".join(errors)


# Bad weights: the event began before this step's forward ---------------------------


def _of_parameters(event: Seen, found: dict[str, Any], lines: list[str]) -> Origin | None:
    parameters = _part(found, "parameters")
    if not parameters.get("bad_count"):
        if parameters.get("count"):
            lines.append(f"all {parameters['count']} parameters were finite")
        return None
    bad, optimizer = parameters["bad"], parameters.get("optimizer") or {}
    first = bad[0]
    share = sum(one["nan"] + one["inf"] for one in bad) / max(1, sum(one["elements"] for one in bad))
    lines.append(
        f"{parameters['bad_count']} of {parameters['count']} parameters were not finite before the step, "
        f"first {first['name']} "
        f"({first['nan']} NaN and {first['inf']} infinite of {first['elements']})"
    )
    before = event.step - 1
    kind = "nan" if first["nan"] else "inf"
    common: dict[str, Any] = {
        "kind": kind,
        "param": first["name"],
        "evidence": lines,
        "module": _owner_of(first["name"]),
    }
    lr = optimizer.get("lr")
    if optimizer.get("zero_divisors"):
        lines.append(
            f"{optimizer['class']} with eps {optimizer['eps']:g} divided by a second moment that is 0 in "
            f"{optimizer['zero_divisors']} elements"
        )
        return Origin("optimizer", before, None, cause="division by zero", **common)
    if lr is not None and lr - lr != 0.0:
        lines.append(f"the learning rate is {lr}")
        return Origin("optimizer", before, None, cause="learning rate", **common)
    if optimizer.get("bad_states") or _not_finite(event.norm_before) or event.bad_before:
        seen = f"the state of {optimizer.get('class')} ({', '.join(optimizer.get('bad_states', []))})"
        lines.append(
            f"{seen} is not finite either: gradients of step {before} were not"
            if optimizer.get("bad_states")
            else f"the gradient norm of step {before} was {event.norm_before}"
            if _not_finite(event.norm_before)
            else f"gradients of step {before} were not finite when its backward ended"
        )
        common["param"], common["module"] = parameters["last_bad"], parameters.get("last_owner")
        if parameters["bad_count"] == parameters["count"]:
            common["module"] = None
        elif event.bad_before:  # the weights show only where the event began
            lines.append(f"it began between {common['module']} and {parameters['next_good'] or 'the loss'}")
            common["module"] = None
        else:
            lines.append(f"the parameters behind {common['param']} are finite")
        return Origin("backward", before, None, **common)
    few = share < FEW_RATIO or (parameters["bad_count"] == 1 and parameters["count"] > 2)
    if few:
        lines.append(
            "an optimizer's step writes every element, and its state is finite: something else wrote these"
        )
        return Origin("parameter", event.step, event.micro_step, cause="bad weight", **common)
    if event.checked_before:
        lines.append(f"gradients of step {before} were finite when its backward ended")
    cause = "learning rate" if _diverged(event, lines) or (lr is not None and abs(lr) > LARGE_LR) else None
    if cause and lr is not None:
        lines.append(f"the learning rate is {lr:g}")
    if not event.checked_before and cause is None:
        lines.append(f"gradients of step {before} were not checked: its backward may have been the origin")
        return Origin("unknown", before, None, cause=None, **common)
    return Origin("optimizer", before, None, cause=cause, **common)


def _owner_of(parameter: str) -> str | None:
    return parameter.rpartition(".")[0] or None


def _not_finite(value: float | None) -> bool:
    return value is not None and value - value != 0.0


def _diverged(event: Seen, lines: list[str]) -> bool:
    """Whether the loss grew before it broke."""
    losses = event.losses
    if len(losses) < 2:
        return False
    last, lowest = losses[-1], max(min(abs(one) for one in losses[:-1]), 1e-12)
    tail = losses[-GROWING_STEPS:]
    growing = len(tail) == GROWING_STEPS and all(one < other for one, other in itertools.pairwise(tail))
    if last > LEAP_RATIO * lowest or (growing and last > GROWTH_RATIO * lowest):
        lines.append(f"the loss had grown from {lowest:.4g} to {last:.4g} in the {len(losses)} before")
        return True
    return False


# The loss was bad, the weights were not --------------------------------------------


def _of_forward(event: Seen, found: dict[str, Any], lines: list[str]) -> Origin:
    batch, forward = _part(found, "batch"), _part(found, "forward")
    birth = forward.get("birth")
    common: dict[str, Any] = {
        "step": event.step,
        "micro_step": event.micro_step,
        "kind": event.kind,
        "evidence": lines,
    }
    if batch.get("bad"):
        lines.append(_batch_line(batch))
        if birth is None or birth["source"] != "operation":
            return Origin("data", cause="data", inputs=_batch_inputs(batch), **common)
        lines.append("but the model's own NaN or infinity did not come from it")
    elif batch:
        lines.append("the batch was finite as it was loaded")
    if birth is not None and birth["source"] == "input":
        changed = "the model's input was not: something between the loader and the model changed it"
        lines.append(changed if batch else "the model's input was not finite")
        return Origin("data", cause="data", inputs=forward.get("inputs"), **common)
    if birth is not None and birth["source"] == "buffer":
        lines.append(f"the buffer {birth['name']} was not finite")
        return Origin(
            "parameter", param=birth["name"], module=_owner_of(birth["name"]), cause="bad weight", **common
        )
    if birth is not None and birth["source"] == "operation":
        lines.append("the step was repeated with the same inputs" + _WITH[bool(forward.get("random"))])
        return _of_birth(event, birth, lines, common)
    if forward and "refused" not in forward and "stopped" not in forward:
        lines.append(f"the forward of {forward['root']} was repeated and is finite; the loss is not")
        return _of_loss(event, found, lines, common)
    graph = _part(found, "graph")
    if graph.get("given"):
        lines.append(f"the input of {graph['op']} was not finite, and no operation before it caused that")
        return Origin("data", cause="data", inputs=graph.get("inputs"), **common)
    if graph:
        origin = _of_loss(event, found, lines, common)
        return origin if graph.get("after_model", True) else origin._replace(direction="forward")
    return Origin("unknown", cause="learning rate" if _diverged(event, lines) else None, **common)


def _batch_line(batch: dict[str, Any]) -> str:
    bad = [one for one in batch["tensors"] if one.get("nan") or one.get("inf")]
    texts = [
        f"{one['name']}: {one['nan']} NaN and {one['inf']} infinite of shape {one['shape']}"
        for one in bad[:4]
    ]
    return f"the batch was not finite as it was loaded ({'; '.join(texts)})"


def _batch_inputs(batch: dict[str, Any]) -> list[Any]:
    return list(batch["tensors"][:4])


_WITH = {True: " and random numbers", False: ""}


def _of_birth(event: Seen, birth: dict[str, Any], lines: list[str], common: dict[str, Any]) -> Origin:
    cause, why = _cause_of(birth)
    made = "NaN" if birth["kind"] == "nan" else "infinities"
    of = "deliberate infinities" if birth.get("masked") else "finite numbers"
    where = birth["module"] or "no module"
    lines.append(f"`{birth['op']}` in {where} was the first to turn {of} into {made}")
    lines += [why] if why else []
    if cause in ("overflow", None) and _diverged(event, lines):
        cause = "learning rate"
    inputs = {"operation": birth["inputs"], "module": birth["module_inputs"]}
    return Origin("forward", module=birth["module"], op=birth["op"], cause=cause, inputs=inputs, **common)


def _cause_of(birth: dict[str, Any]) -> tuple[str | None, str]:
    """Likely cause, and the numbers that show it."""
    op = birth["op"].rstrip("_")
    inputs = [one for one in birth["inputs"] if one.get("elements")]
    if birth.get("masked"):
        return "division by zero", "whole rows of its input are -inf: everything is masked"
    if not inputs:
        return ("division by zero", "its input is empty") if op in _QUOTIENTS else (None, "")
    first, last = inputs[0], inputs[-1]
    if op in _LOGS:
        if first["negatives"]:
            return (
                "out of domain",
                f"{first['negatives']} of its inputs are negative, down to {first['min']:.4g}",
            )
        return "log of zero", f"{first['zeros']} of {first['elements']} inputs are 0"
    if op in _DOMAINS and birth["kind"] == "nan":
        return "out of domain", f"inputs lie between {first['min']:.4g} and {first['max']:.4g}"
    return _overflow_or_quotient(op, birth, first, last)


def _overflow_or_quotient(
    op: str, birth: dict[str, Any], first: dict[str, Any], last: dict[str, Any]
) -> tuple[str | None, str]:
    if op in ("div", "floor_divide", "remainder", "reciprocal", "rsqrt") or (op == "pow" and last["zeros"]):
        if last["zeros"] or 0.0 in birth["scalars"]:
            return "division by zero", f"{last['zeros']} of {last['elements']} divisors are 0"
    elif op in _QUOTIENTS:
        large = max(abs(first["max"]), abs(first["min"]))
        if large > _LIMITS.get(first["dtype"], 3.4e38) ** 0.5:
            return "overflow", f"its largest input is {large:.4g}, whose square is beyond {first['dtype']}"
        return "division by zero", f"its input lies between {first['min']:.4g} and {first['max']:.4g}"
    dtype = birth["output"].get("dtype", first["dtype"])
    limit = _LIMITS.get(dtype)
    largest = max(abs(one) for each in (first, last) for one in (each["min"], each["max"]))
    ends = f"; {dtype} ends at {limit:g}" if limit else ""
    return "overflow", f"its largest input is {largest:.4g}{ends}"


def _of_loss(event: Seen, found: dict[str, Any], lines: list[str], common: dict[str, Any]) -> Origin:
    graph = _part(found, "graph")
    if graph.get("given"):
        graph = {}  # behind the model, whose output is finite
    if not graph and isinstance(found.get("behind"), dict):
        graph = _breaks(event, _part(found, "behind"), lines)
    cause = graph.get("cause")
    if graph.get("nothing_counted"):
        lines.append("every target is ignored, so the loss is the mean of nothing")
    elif graph and "behind" not in found:
        lines.append(f"{graph['op']} turned finite inputs into non-finite ones")
    if cause in ("overflow", None) and _diverged(event, lines):
        cause = "learning rate"
    return Origin("loss", op=graph.get("op"), cause=cause, inputs=graph.get("inputs"), **common)


def _breaks(event: Seen, able: dict[str, str], lines: list[str]) -> dict[str, Any]:
    """The only operation behind the model that could have caused it, from `loss_graph.able_behind`; empty if
    there are several or none."""
    if len(able) != 1:
        told = ", ".join(sorted(able)) or "no operation that often does it"
        lines.append(f"between the model's last layer and the loss is {told}; their inputs were gone")
        return {}
    [(name, cause)] = able.items()
    made = "NaN" if event.kind == "nan" else "infinities"
    lines.append(
        f"between the model's last layer and the loss, {name} is the only operation that makes {made} of "
        "usual numbers; its inputs were gone"
    )
    return {"op": name, "cause": "out of domain" if (cause, made) == ("log of zero", "NaN") else cause}


# The loss was finite, gradients were not -------------------------------------------


def _of_gradients(event: Seen, found: dict[str, Any], lines: list[str]) -> Origin:
    gradients, backward, batch = _part(found, "gradients"), _part(found, "backward"), _part(found, "batch")
    param = gradients.get("last_bad")
    common: dict[str, Any] = {
        "step": event.step,
        "micro_step": event.micro_step,
        "kind": gradients.get("kind", event.kind),
        "evidence": lines,
    }
    lines.append("the loss itself was finite")
    if batch.get("bad"):
        lines.append(_batch_line(batch))
        return Origin("data", param=param, cause="data", inputs=_batch_inputs(batch), **common)
    if gradients:
        lines.append(
            f"{gradients['bad_count']} of {gradients['count']} gradients were not finite; in the model's "
            f"order the last of them is {param}"
            + (f", and {gradients['next_good']} behind it was finite" if gradients["next_good"] else "")
        )
    origin = backward.get("origin")
    if origin is not None:
        cause = _steep(origin)
        lines.append(
            f"in a backward repeated from the output of {backward['root']} with a gradient of ones, "
            f"{origin['op']} in {origin['module']} was the first with a non-finite gradient"
        )
        lines += [_values(origin["inputs"])] if origin["inputs"] else []
        return Origin(
            "backward", module=origin["module"], param=param, op=origin["op"], cause=cause,
            inputs=origin["inputs"], **common,
        )
    return _of_boundary(event, found, lines, common)


def _of_boundary(event: Seen, found: dict[str, Any], lines: list[str], common: dict[str, Any]) -> Origin:
    """The origin if the repeated backward was finite, or could not run."""
    gradients, backward = _part(found, "gradients"), _part(found, "backward")
    param, everything = gradients.get("last_bad"), gradients.get("bad_count") == gradients.get("count")
    repeated = bool(backward) and "refused" not in backward and "stopped" not in backward
    if repeated:
        lines.append(
            f"a backward repeated from the output of {backward['root']} with a gradient of ones is finite"
        )
    steep = _between(found) if repeated else []
    if steep:
        lines.append(
            f"between the model and the loss is {', '.join(steep)}, whose derivative can be infinite"
        )
    if event.several_ranks and not steep and (repeated or everything):
        lines.append(
            "this rank's own loss and the repeated computation are finite: the all-reduce brought it"
        )
        return Origin("backward", param=param, cause="from another rank", **common)
    if event.several_ranks and steep and event.losses and event.losses[-1] == 0.0:
        lines.append("this rank's own loss was exactly 0, where that derivative is infinite")
        return Origin("backward", param=param, op=steep[0], cause="infinite derivative", **common)
    if event.several_ranks:
        lines.append("the all-reduce may have brought it from another rank")
    elif everything and repeated:
        cause = "infinite derivative" if steep else None
        return Origin("backward", param=param, op=steep[0] if steep else None, cause=cause, **common)
    elif gradients and not everything:
        lines.append(
            f"it began between {gradients.get('owner')} and {gradients.get('next_good') or 'the loss'}"
        )
    module = gradients.get("owner") if gradients and not everything else None
    return Origin("backward", module=module, param=param, **common)


def _between(found: dict[str, Any]) -> list[str]:
    """Nodes between the loss and the model's output whose derivative has a pole, most likely first."""
    names, ends = found.get("nodes"), set(_part(found, "backward").get("ends", ()))
    near: list[str] = []
    for name in names if isinstance(names, list) else []:
        if name in ends:
            break
        near.append(name)
    return sorted((name for name in near if name.startswith(_STEEP)), key=_steepness)


def _steepness(name: str) -> int:
    """Index in `_STEEP`."""
    return next(place for place, known in enumerate(_STEEP) if name.startswith(known))


def _steep(origin: dict[str, Any]) -> str | None:
    return "infinite derivative" if origin["op"].startswith((*_STEEP, "Div")) else None


def _values(inputs: list[dict[str, Any]]) -> str:
    texts = [
        f"{one.get('name', 'input')}: {one['zeros']} zeros of {one['elements']}, "
        f"{one['min']:.4g} to {one['max']:.4g}"
        for one in inputs
        if one.get("elements")
    ]
    return f"saved from its forward: {'; '.join(texts)}"


def as_json(inputs: Any) -> str | None:
    """The `inputs` column."""
    return None if inputs is None else json.dumps(inputs, default=str)[:20_000]
