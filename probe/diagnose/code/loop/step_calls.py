"""The calls that a training step is made of, in their order, and the optimizers that they are for. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from probe.diagnose.code.flow import Flow
from probe.diagnose.code.program import Key, Program
from probe.diagnose.code.syntax import (
    Scope,
    argument,
    is_attribute,
    is_method,
    is_name,
    last_word,
    without_data,
)

_MAYBE = (ast.If, ast.For, ast.While, ast.Try, ast.IfExp, ast.BoolOp, ast.AsyncFor, ast.Match)
"""What runs a part of itself in some cases only, or more than once."""


class Event(NamedTuple):
    """A call that a training step is made of. `what` is zero, backward, step, clip, unscale or
    update; `of` is the optimizer (of zero: the optimizer or the module; of update: the scaler).
    `always`: whether it runs whenever its block does; `scaled`: whether a gradient scaler takes part."""

    what: str
    of: Key | None
    node: ast.Call
    always: bool
    scaled: bool


def events_of(flow: Flow, block: Sequence[ast.stmt]) -> list[Event]:
    """What a list of statements does to gradients and parameters, in order, without nested functions."""
    return [event for statement in block for event in _events_in(flow, statement)]


@lru_cache(maxsize=8192)
def _events_in(flow: Flow, statement: ast.stmt) -> tuple[Event, ...]:
    """The events of one statement. Kept, because ten rules ask for those of each statement."""
    found = (_event(flow, call, always) for call, always in calls_in(statement))
    return tuple(event for event in found if event is not None)


def _event(flow: Flow, call: ast.Call, always: bool) -> Event | None:
    name, family = last_word(call.func), flow.program.family
    if name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"):
        return Event("clip", flow.key(first_module(call)), call, always, False)
    if is_method(call, "clamp_") and is_attribute(without_data(call.func.value), "grad"):
        return Event("clip", None, call, always, False)
    if not is_method(call):
        return None
    of, first = call.func.value, call.args[0] if call.args else None
    if name == "zero_grad":
        return Event("zero", flow.key(of), call, always, False)
    if name in ("backward", "manual_backward"):
        return Event("backward", None, call, always, _scaled(flow, of))
    if name == "step" and len(call.args) == 1 and (family(of) == "scaler" or is_optimizer(flow, first)):
        return Event("step", flow.key(first), call, always, True)
    if name == "step" and is_optimizer(flow, of):
        return Event("step", flow.key(of), call, always, False)
    if name == "unscale_" and first is not None:
        return Event("unscale", flow.key(first), call, always, False)
    if name == "update" and family(of) == "scaler":
        return Event("update", flow.key(of), call, always, False)
    return None


def _scaled(flow: Flow, node: ast.AST, depth: int = 2) -> bool:
    """Whether an expression is a loss that a gradient scaler has multiplied."""
    if is_method(node, "scale", "scale_loss"):
        return True
    values = flow.values(flow.key(node)) if depth else []
    return any(value is not None and _scaled(flow, value, depth - 1) for value in values)


def is_optimizer(flow: Flow, node: ast.AST | None) -> bool:
    """Whether an expression is an optimizer: by its kind, or because it is both stepped and zeroed."""
    family = flow.program.family(node)
    if family is not None:
        return family == "optimizer"
    called = flow.called_on(flow.key(node))
    return {"step", "zero_grad"} <= called and "forward" not in called


def is_torch_optimizer(program: Program, call: ast.Call) -> bool:
    """Whether a call makes an optimizer of torch."""
    kind = program.kind(call)
    return kind is not None and kind.family == "optimizer" and kind.name.startswith("torch.optim.")


def optimized(flow: Flow, key: Key | None) -> Key | None:
    """The one module whose parameters an optimizer was made with."""
    made = flow.made_for(key)
    return flow.key(first_module(made)) if made is not None else None


def first_module(call: ast.Call) -> ast.expr | None:
    """`m` in `f(m.parameters(), ...)`; None where the first argument is something else."""
    first = argument(call, "params", 0) or argument(call, "parameters")
    return first.func.value if is_method(first, "parameters") else None


def calls_in(node: ast.AST) -> Iterator[tuple[ast.Call, bool]]:
    """The calls of a statement in order of the text, and whether each runs whenever the statement does."""
    waiting = [(node, True)]
    while waiting:
        at, always = waiting.pop()
        if isinstance(at, Scope):
            continue
        if isinstance(at, ast.Call):
            yield at, always
        always = always and not isinstance(at, _MAYBE)
        waiting += [(child, always) for child in ast.iter_child_nodes(at)][::-1]


def goes_over(program: Program, node: ast.AST, *methods: str) -> bool:
    """Whether a variable goes through what one of these methods gives."""
    for around in program.parents(node) if isinstance(node, ast.Name) else ():
        if isinstance(around, ast.For) and is_method(around.iter, *methods):
            names = [one.id for one in ast.walk(around.target) if isinstance(one, ast.Name)]
            if names[-1:] == [node.id]:  # type: ignore[attr-defined]
                return True
    return False


def owner_of_group(program: Program, node: ast.AST) -> ast.expr | None:
    """`o` in `o.param_groups[i]`, and of a variable that goes through `o.param_groups`."""
    at = node.value if isinstance(node, ast.Subscript) else node
    if isinstance(at, ast.Name):
        loops = [one for one in program.parents(node) if isinstance(one, ast.For)]
        at = next((one.iter for one in loops if is_name(one.target, at.id)), at)
    return at.value if is_attribute(at, "param_groups") else None
