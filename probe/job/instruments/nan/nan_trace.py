"""NaN trace: everything that is examined after an event, part by part.

Runs in a forked child (`forked_probe`), where the state is that of the event. Without a fork, the parts that
only read run later on the agent's thread. Findings are plain values, from which `nan_origin` makes a row.
torch is the job's own, inside functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from probe.base.isolation import capture, describe
from probe.job.instruments.core.object_access import unwrapped
from probe.job.instruments.core.tensor_summaries import (
    batch_summary,
    counts,
    has_float_values,
    is_nonfinite,
    local,
    statistics,
    tensors_in,
    torch_module,
)
from probe.job.instruments.nan import loss_graph, replay

MOST_NAMED = 20
_NO_REPLAY = (
    "FullyShardedDataParallel",
    "FSDPModule",
    "DeepSpeedEngine",
    "PipelineStage",
    "XlaFullyShardedDataParallel",
)
_SECOND_MOMENT = "exp_avg_sq"
Send = Callable[[str, Any], None]


class Scene(NamedTuple):
    """What the detector held at the event. References only, no copies."""

    seen_by: str
    root: Any
    """What backward was called on; None when not known."""
    call: Any
    """See `forward.RootCall`; None when the step's forward was not watched."""
    batch: Any
    """See `batch_history.Batch`; None without a loader."""
    roots: list[Any]
    optimizers: list[Any]
    path: Callable[[Any], str | None]


def trace(scene: Scene, send: Send) -> None:
    """Examine everything, the cheapest parts first: what was sent before a kill is kept.

    On one thread, as in a loader's worker: OpenMP would wait for its other threads, which are not in the
    fork."""
    torch_module().set_num_threads(1)
    _attempt(send, "batch", lambda: _batch(scene))
    named = list(named_parameters(scene.roots))
    _attempt(send, "parameters", lambda: _parameters(scene, named))
    if scene.seen_by == "loss":
        _attempt(send, "graph", lambda: loss_graph.first_bad_operation(scene.root))
        _attempt(send, "forward", lambda: _repeat(scene, functools.partial(_forward, scene, named)))
    else:
        _attempt(send, "gradients", lambda: _gradients(scene, named))
        _attempt(send, "nodes", lambda: loss_graph.names(scene.root))
        _attempt(send, "backward", lambda: _repeat(scene, _backward))


def trace_without_fork(scene: Scene, send: Send, *, on_a_device: bool) -> None:
    """Examine what can be read beside the training, which has continued; nothing on a device, because that
    would wait for it."""
    _attempt(send, "batch", lambda: None if on_a_device and not _on_host(scene) else _batch(scene))
    if on_a_device:
        return
    _attempt(send, "parameters", lambda: _parameters(scene, list(named_parameters(scene.roots))))


def _attempt(send: Send, name: str, find: Callable[[], Any]) -> None:
    found, error = capture(find)
    send(name, {"error": describe(error)} if error is not None else found)


def named_parameters(roots: list[Any]) -> Iterator[tuple[str, Any]]:
    """Parameters of all models by name; from the second model on with its class as a prefix."""
    seen: set[int] = set()
    for place, root in enumerate(roots):
        inner = unwrapped(root)
        prefix = f"{type(inner).__name__}." if place else ""
        for name, parameter in inner.named_parameters():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield prefix + name, parameter


def _on_host(scene: Scene) -> bool:
    content = scene.batch.alive() if scene.batch is not None else None
    return all(tensor.is_cpu for _, tensor in tensors_in(content))


def _batch(scene: Scene) -> dict[str, Any] | None:
    content = scene.batch.alive() if scene.batch is not None else None
    return None if content is None else batch_summary(content)


def _parameters(scene: Scene, named: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which parameters are not finite, and the optimizer state of those."""
    bad = [(name, one) for name, one in named if is_nonfinite(local(one))]
    found: dict[str, Any] = {
        "count": len(named),
        "bad_count": len(bad),
        "bad": [_one_parameter(name, one) for name, one in bad[:MOST_NAMED]],
        "last_bad": bad[-1][0] if bad else None,
        "last_owner": _owner(scene, bad[-1][0]) if bad else None,
    }
    if bad:
        found["optimizer"] = _optimizer(scene.optimizers, bad)
    return found


def _one_parameter(name: str, parameter: Any) -> dict[str, Any]:
    own = local(parameter)
    nan, infinite = counts(own)
    return {"name": name, "nan": nan, "inf": infinite, "elements": int(own.numel())}


def _optimizer(optimizers: list[Any], bad: list[tuple[str, Any]]) -> dict[str, Any] | None:
    """The optimizer of bad parameters: settings, whether its state is finite, whether it divides by zero."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            inside = {id(one) for one in group["params"]}
            mine = [(name, one) for name, one in bad if id(one) in inside]
            if mine:
                return {
                    "class": type(optimizer).__name__,
                    "lr": _number(group.get("lr")),
                    "eps": _number(group.get("eps")),
                    **_states(optimizer, group, mine),
                }
    return None


def _states(optimizer: Any, group: Any, mine: list[tuple[str, Any]]) -> dict[str, Any]:
    bad_states: set[str] = set()
    zero_divisors = 0
    for _, parameter in mine:
        state = optimizer.state.get(parameter, {})
        for key, value in state.items():
            if has_float_values(local(value)) and value.dim() and is_nonfinite(local(value)):
                bad_states.add(str(key))
        second = state.get(_SECOND_MOMENT)
        own = local(parameter)
        if second is not None and not _number(group.get("eps")) and second.shape == own.shape:
            zero_divisors += int((second[~torch_module().isfinite(own)] == 0).sum())
    return {"bad_states": sorted(bad_states), "zero_divisors": zero_divisors}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) or has_float_values(value) else None


def _gradients(scene: Scene, named: list[tuple[str, Any]]) -> dict[str, Any]:
    """Which gradients are not finite, in the order of the parameters."""
    have = [(name, local(one.grad)) for name, one in named if one.grad is not None]
    states = [(name, is_nonfinite(gradient)) for name, gradient in have]
    bad = [name for name, state in states if state]
    last_bad = max((place for place, (_, state) in enumerate(states) if state), default=-1)
    after = [name for name, state in states[last_bad + 1 :] if not state]
    kinds = {
        "nan" if counts(gradient)[0] else "inf"
        for (_, gradient), (_, state) in zip(have, states, strict=True)
        if state
    }
    return {
        "count": len(have),
        "bad_count": len(bad),
        "last_bad": bad[-1] if bad else None,
        "next_good": after[0] if after else None,
        "kind": "nan" if "nan" in kinds else "inf",
        "owner": _owner(scene, bad[-1]) if bad else None,
    }


def paths(scene: Scene) -> Callable[[Any], str | None]:
    """Paths of modules: known ones, else those found in the models. In the first steps none is known yet."""
    found: dict[int, str] = {}
    for place, root in enumerate(scene.roots):
        inner = unwrapped(root)
        label = type(inner).__name__
        for name, module in inner.named_modules():
            found.setdefault(id(module), (f"{label}.{name}" if place else name) if name else label)
    return lambda module: scene.path(module) or found.get(id(module))


def _owner(scene: Scene, name: str) -> str | None:
    """Path of the module that holds a parameter."""
    wanted = dict(named_parameters(scene.roots)).get(name)
    for root in scene.roots:
        for module in unwrapped(root).modules():
            if any(one is wanted for one in module.parameters(recurse=False)):
                return paths(scene)(module)
    return None


# The step's forward, repeated ---------------------------------------------------------


def _repeat(scene: Scene, run: Callable[[replay.Modules, Any, Any, Any], dict[str, Any]]) -> dict[str, Any]:
    refused = replay_refusal(scene.call)
    return {"refused": refused} if refused else run(*_prepared(scene))


def _forward(
    scene: Scene, named: list[tuple[str, Any]], modules: replay.Modules, module: Any, args: Any, kwargs: Any
) -> dict[str, Any]:
    given = list(tensors_in([args, kwargs]))
    buffers = [("buffer", name, one) for name, one in module.named_buffers()]
    inputs = [("input", name, one) for name, one in given]
    watched = replay.Forward(
        modules, [("parameter", name, local(one)) for name, one in named] + buffers + inputs
    )
    output, error = capture(lambda: watched.run(module, args, kwargs))
    found: dict[str, Any] = {
        "root": modules.name(module),
        "random": scene.call.random_state is not None,
        "inputs": [{"name": name, **statistics(one)} for name, one in given[: replay.MOST_INPUTS]],
    }
    if error is not None:
        blamed = [one for one in watched.births if not one["deliberate"]]
        return {**found, "stopped": describe(error), "birth": blamed[0] if blamed else None}
    return {**found, "birth": watched.birth_of(output)}


def _backward(modules: replay.Modules, module: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    watched = replay.Backward(modules)
    output, error = capture(lambda: watched.run(module, args, kwargs))
    ends = (
        {one.grad_fn.name() for _, one in tensors_in(output) if one.grad_fn is not None}
        if error is None
        else ()
    )
    found = {"root": modules.name(module), "origin": watched.origin, "ends": sorted(ends)}
    return {**found, "stopped": describe(error)} if error is not None else found


def _prepared(scene: Scene) -> tuple[replay.Modules, Any, Any, Any]:
    """Watched modules, and module and arguments of the kept call; restores its random state and autocast."""
    torch = torch_module()
    call = scene.call
    no_collectives()
    if call.random_state is not None:
        torch.set_rng_state(call.random_state)
    if call.autocast is not None:
        torch.set_autocast_enabled("cpu", True)
        torch.set_autocast_dtype("cpu", call.autocast)
    modules = replay.Modules(paths(scene))
    modules.watch()
    return modules, unwrapped(call.module), _private(call.args), _private(call.kwargs)


def _private(value: Any) -> Any:
    """A copy with tensors of its own: those of a loader's worker lie in read-only memory here."""
    torch = torch_module()
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(_private(item) for item in value)
    return {key: _private(item) for key, item in value.items()} if type(value) is dict else value


def no_collectives() -> None:
    """Make collectives raise: the other ranks do not take part in this child."""
    distributed = torch_module().distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return

    def refused(*_args: Any, **_kwargs: Any) -> Any:
        raise RuntimeError("a repeated forward calls no collectives")

    group = distributed.ProcessGroup
    for name in (
        "allreduce",
        "broadcast",
        "allgather",
        "_allgather_base",
        "reduce_scatter",
        "_reduce_scatter_base",
        "alltoall",
        "alltoall_base",
        "reduce",
        "gather",
        "scatter",
        "send",
        "recv",
        "barrier",
    ):
        if hasattr(group, name):
            setattr(group, name, refused)


def replay_refusal(call: Any) -> str:
    """Why a kept call (`forward.RootCall` or None) cannot be repeated; empty when it can."""
    if call is None:
        return "the model's call was not kept: the phases of this step were not timed, or the job compiles"
    if call.kwargs is None:
        return "the model's arguments could not be read"
    for module in call.module.modules():
        kinds = {kind.__name__ for kind in type(module).__mro__}
        if kinds & set(_NO_REPLAY):
            return "the model is sharded over ranks"
    if any(hasattr(one, "to_local") for one in call.module.parameters()):
        return "the model is sharded over ranks"
    return ""
