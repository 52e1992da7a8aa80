"""NaN trace: examines the job's state after an event, one part at a time.

Runs in a forked child (`forked_probe`), which has the state of the event, or on the training thread while it
is held (`held_trace`). Without either, the read-only parts run later on the agent's thread. Findings are
plain values, from which `nan_origin` builds a row. Uses the job's torch, inside functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from probe.base import accelerator
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
    which_nonfinite,
)
from probe.job.instruments.nan import loss_graph, replay

MOST_NAMED = 20
MOST_ENDS_BYTES = 64 << 20
"""Maximum size of the parameters to which a held backward runs: their gradients take as much memory."""
_NO_REPLAY = (
    "FullyShardedDataParallel",
    "FSDPModule",
    "DeepSpeedEngine",
    "PipelineStage",
    "XlaFullyShardedDataParallel",
)
_SECOND_MOMENT = "exp_avg_sq"
Send = Callable[[str, Any], None]


def _never(_error: BaseException) -> bool:
    return False


class Scene(NamedTuple):
    """The objects that the detector held at the event. References only, no copies."""

    seen_by: str
    root: Any
    """The tensor that backward was called on; None if unknown."""
    call: Any
    """See `forward.RootCall`; None if the step's forward was not watched."""
    batch: Any
    """See `batch_history.Batch`; None without a loader."""
    roots: list[Any]
    optimizers: list[Any]
    path: Callable[[Any], str | None]
    passes: Callable[[BaseException], bool] = _never
    """Whether an error does not come from the examined code, and must be raised."""
    divided: bool = False
    """Whether the last operation of the job's losses is a division by a number."""
    restraint: Any = None
    """See `held_trace.Restraint`; None in a fork, which can do no harm."""


def trace(scene: Scene, send: Send) -> None:
    """Examine everything, the cheapest parts first: findings sent before a kill are kept.

    Single-threaded, as in a loader's worker: OpenMP would wait for its other threads, which do not exist in
    the fork."""
    torch_module().set_num_threads(1)
    _attempt(scene, send, "batch", lambda: _batch(scene))
    named = list(named_parameters(scene.roots))
    _attempt(scene, send, "parameters", lambda: _parameters(scene, named))
    if scene.seen_by == "loss":
        _attempt(scene, send, "graph", lambda: loss_graph.first_bad_operation(scene.root))
        _attempt(scene, send, "forward", lambda: _repeat(scene, functools.partial(_forward, scene, named)))
    else:
        _attempt(scene, send, "gradients", lambda: _gradients(scene, named))
        _attempt(scene, send, "nodes", lambda: loss_graph.names(scene.root))
        _attempt(scene, send, "backward", lambda: _repeat(scene, functools.partial(_backward, scene, named)))


def trace_held(scene: Scene, send: Send) -> None:
    """Examine the most informative parts of a lost step, which has not reached the optimizer or was the first
    bad one to do so. A batch on the host is left to the agent's thread."""
    named = list(named_parameters(scene.roots))
    parameters = _attempt(scene, send, "parameters", lambda: _parameters(scene, named))
    if not _on_host(scene):
        _attempt(scene, send, "batch", lambda: _batch(scene))
    if scene.call is None or (parameters is not None and parameters["bad_count"]):
        return  # the event began before this step's forward
    if scene.seen_by == "loss":
        _attempt(scene, send, "behind", lambda: _behind(scene))
        _attempt(scene, send, "forward", lambda: _repeat(scene, functools.partial(_forward, scene, named)))
    else:
        _attempt(scene, send, "gradients", lambda: _gradients(scene, named))
        _attempt(scene, send, "nodes", lambda: loss_graph.names(scene.root))
        _attempt(scene, send, "backward", lambda: _repeat(scene, functools.partial(_backward, scene, named)))


def _behind(scene: Scene) -> dict[str, str] | None:
    return None if scene.root is None else loss_graph.able_behind(scene.root, divided=scene.divided)


def trace_without_fork(scene: Scene, send: Send, *, on_a_device: bool) -> None:
    """Examine the parts that can be read while training continues; nothing on a device, because reading would
    wait for it."""
    _attempt(scene, send, "batch", lambda: None if on_a_device and not _on_host(scene) else _batch(scene))
    if on_a_device:
        return
    _attempt(scene, send, "parameters", lambda: _parameters(scene, list(named_parameters(scene.roots))))


def _attempt(scene: Scene, send: Send, name: str, find: Callable[[], Any]) -> Any:
    found, error = _captured(scene, find)
    send(name, {"error": describe(error)} if error is not None else found)
    return found


def _captured(scene: Scene, action: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    found, error = capture(action)
    if error is not None:
        if scene.passes(error):
            raise error
        error.__traceback__ = None  # its frames hold tensors of the repeated code
    return found, error


def named_parameters(roots: list[Any]) -> Iterator[tuple[str, Any]]:
    """Parameters of all models by name; from the second model on, prefixed with the model's class."""
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
    """The non-finite parameters, and their optimizer's state."""
    states = which_nonfinite([local(one) for _, one in named])
    bad = [one for one, is_bad in zip(named, states, strict=True) if is_bad]
    last_bad = max((place for place, is_bad in enumerate(states) if is_bad), default=-1)
    found: dict[str, Any] = {
        "count": len(named),
        "next_good": named[last_bad + 1][0] if bad and last_bad + 1 < len(named) else None,
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
    """The optimizer of bad parameters: settings, non-finite states, and number of zero divisors."""
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
    """The non-finite gradients, in the order of the parameters."""
    have = [(name, local(one.grad)) for name, one in named if one.grad is not None]
    all_bad = which_nonfinite([gradient for _, gradient in have])
    states = [(name, is_bad) for (name, _), is_bad in zip(have, all_bad, strict=True)]
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
    """A function that gives a module's path: the known one, else one found in the models, because in the
    first steps none is known yet."""
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
    if refused:
        return {"refused": refused}
    with _prepared(scene) as prepared:
        return run(*prepared)


def _forward(
    scene: Scene, named: list[tuple[str, Any]], modules: replay.Modules, module: Any, args: Any, kwargs: Any
) -> dict[str, Any]:
    given = list(tensors_in([args, kwargs]))
    buffers = [("buffer", name, one) for name, one in module.named_buffers()]
    inputs = [("input", name, one) for name, one in given]
    watched = replay.Forward(
        modules, [("parameter", name, local(one)) for name, one in named] + buffers + inputs, scene.restraint
    )
    output, error = _captured(scene, lambda: watched.run(module, args, kwargs))
    found: dict[str, Any] = {
        "root": modules.name(module),
        "random": scene.call.random_state is not None,
        "inputs": [{"name": name, **statistics(one)} for name, one in given[: replay.MOST_INPUTS]],
    }
    stopped = _stopped(scene, error)
    if stopped:
        blamed = [one for one in watched.births if not one["deliberate"]]
        return {**found, "stopped": stopped, "birth": blamed[0] if blamed else None}
    return {**found, "birth": watched.birth_of(output)}


def _stopped(scene: Scene, error: BaseException | None) -> str:
    """The error that ended a repetition early, even if the repeated code caught it; empty if it completed."""
    refused = scene.restraint.stopped if scene.restraint is not None else ""
    return refused or (describe(error) if error is not None else "")


def _backward(
    scene: Scene, named: list[tuple[str, Any]], modules: replay.Modules, module: Any, args: Any, kwargs: Any
) -> dict[str, Any]:
    to = _few([one for _, one in named]) if scene.restraint is not None else None
    watched = replay.Backward(modules, scene.restraint, to)
    output, error = _captured(scene, lambda: watched.run(module, args, kwargs))
    ends = (
        {one.grad_fn.name() for _, one in tensors_in(output) if one.grad_fn is not None}
        if error is None
        else ()
    )
    found = {"root": modules.name(module), "origin": watched.origin, "ends": sorted(ends)}
    stopped = _stopped(scene, error)
    return {**found, "stopped": stopped} if stopped else found


def _few(parameters: list[Any]) -> list[Any]:
    """The parameters with non-finite gradients, or all if there are none (any more). The smallest first, up
    to `MOST_ENDS_BYTES`."""
    trained = [one for one in parameters if one.requires_grad]
    states = which_nonfinite([one.grad for one in trained])
    bad = [one for one, is_bad in zip(trained, states, strict=True) if is_bad]
    found: list[Any] = []
    size_bytes = 0
    for one in sorted(bad or trained, key=lambda one: int(one.numel())):
        size_bytes += one.numel() * one.element_size()
        if found and size_bytes > MOST_ENDS_BYTES:
            break
        found.append(one)
    return found


@contextmanager
def _prepared(scene: Scene) -> Iterator[tuple[replay.Modules, Any, Any, Any]]:
    """Watched modules, and module and arguments of the kept call, under its random state and autocast."""
    torch = torch_module()
    call = scene.call
    if scene.restraint is None:
        no_collectives()
    if call.random_state is not None:
        torch.set_rng_state(call.random_state)
    if call.device_state is not None:
        generator, state = call.device_state
        generator.set_state(state)
    modules = replay.Modules(paths(scene))
    args, kwargs = _private(call.args), _private(call.kwargs)
    if scene.restraint is not None:
        scene.restraint.made([args, kwargs])
    with ExitStack() as stack:
        for kind, dtype in _autocasts(call):
            # Without its cache: the job's next forward would use entries from one without gradients.
            on = dtype is not None
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=on, cache_enabled=False))
        modules.watch()
        stack.callback(modules.unwatch)
        yield modules, unwrapped(call.module), args, kwargs


def _autocasts(call: Any) -> list[tuple[str, Any]]:
    """Kinds of device whose autocast must be set for this call, each with its dtype; None for off."""
    torch = torch_module()
    found = [("cpu", call.autocast)]
    kind, dtype = call.device_autocast or (accelerator.kinds()[0], None)
    if kind != "cpu" and (dtype is not None or torch.is_autocast_enabled(kind)):
        found.append((kind, dtype))
    return found


def _private(value: Any) -> Any:
    """A copy with its own tensors: those from a loader's worker are in memory that is read-only here."""
    torch = torch_module()
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(_private(item) for item in value)
    return {key: _private(item) for key, item in value.items()} if type(value) is dict else value


def no_collectives() -> None:
    """Make collectives raise: the other ranks do not take part in this child's computation."""
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
    """Why a kept call (`forward.RootCall` or None) cannot be repeated; empty if it can."""
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
