"""Rates and weights that reach only a part of what they are for, or that change themselves. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.step_calls import is_torch_optimizer
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.terms import exponent_of
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    is_attribute,
    is_binary,
    is_method,
    is_name,
    is_negative,
    is_string,
    mentions,
    names_of,
    names_read,
    number_in,
    own_nodes,
    short,
    text_of,
)

RULES = Rules("loop")


@RULES.add("first-group-only", "the other groups keep their first rate for the whole training", "set it in each group: for group in optimizer.param_groups")
def _first_group(program: Program) -> Iterator[Remark]:
    """A rate that is set in the first group of an optimizer that was made with several."""
    flow = flow_of(program)
    if any(isinstance(one, (ast.For, ast.comprehension)) and mentions(one.iter, "param_groups") for one in program.everywhere(ast.For, ast.comprehension)):
        return
    sets = [
        (node, group.value.value, group.slice) for node, target in _sets_rate(program)
        if isinstance(group := target.value, ast.Subscript) and is_attribute(group.value, "param_groups")
    ]
    if any(number_in(place) != 0 for _, _, place in sets):
        return
    for node, of, _ in sets:
        given = flow.value(of)
        made = given if isinstance(given, ast.Call) else flow.made(flow.origin(flow.key(of)))
        groups = flow.value(made.args[0]) if made is not None and is_torch_optimizer(program, made) and made.args else None
        if isinstance(groups, ast.List) and len(groups.elts) > 1 and all(isinstance(one, ast.Dict) for one in groups.elts):
            yield Remark(node, f"{short(node)} sets the rate of the first of {len(groups.elts)} groups")


def _sets_rate(program: Program) -> Iterator[tuple[ast.Assign | ast.AugAssign, ast.Subscript]]:
    """The statements that set the entry "lr" of something, each with that entry."""
    for node in program.everywhere(ast.Assign, ast.AugAssign):
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Subscript) and is_string(target.slice) and target.slice.value == "lr":
                yield node, target


@RULES.add("factors-multiplied-up", "the factors of all steps so far are multiplied with each other: the rate vanishes within a few steps", "compute it from the first rate: group[\"lr\"] = base_lr * factor")
def _compounds(program: Program) -> Iterator[Remark]:
    """A rate that each step multiplies by a share of the progress, as if it were the first rate."""
    flow = flow_of(program)
    for node, target in _sets_rate(program):
        if not (mentions(target, "param_groups") or _is_group(program, target)):
            continue
        if isinstance(node, ast.AugAssign):
            factor: ast.AST | None = node.value if isinstance(node.op, ast.Mult) else None
        else:
            sides = [node.value.left, node.value.right] if is_binary(node.value, ast.Mult) else []
            factor = sides[1] if sides and text_of(sides[0]) == text_of(target) else sides[0] if sides and text_of(sides[1]) == text_of(target) else None
        counters = {name for loop in flow.loops(node) if isinstance(loop, ast.For) and not mentions(loop.iter, "param_groups") for name in names_of(loop.target)}
        progress = [one for one in flow.origins(factor) if is_binary(one, ast.Div, ast.Sub) and names_read(one) & counters] if factor is not None else []
        if progress:
            yield Remark(node, f"{short(node)} multiplies the rate that the step before left by {short(progress[0], 40)}, which is meant for the first rate")


def _is_group(program: Program, target: ast.AST) -> bool:
    """Whether an entry is that of the variable of a loop over the groups of an optimizer."""
    names = names_of(target)
    return any(isinstance(one, ast.For) and is_name(one.target, *names) and mentions(one.iter, "param_groups") for one in program.loops(target) if names)


@RULES.add("weight-without-price", "the loss falls fastest by making the weights of its terms small: in the end nothing is trained", "add the price of a small weight: torch.exp(-s) * loss + s")
def _without_price(program: Program) -> Iterator[Remark]:
    """Learned weights exp(-s) of losses, with nothing that holds s down."""
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Mult):
            continue
        for weight, loss in ((node.left, node.right), (node.right, node.left)):
            exponent = exponent_of(program, weight)
            inner = exponent.operand if is_negative(exponent) else None
            if inner is None or not _is_learned(flow_of(program), inner) or isinstance(loss, ast.Constant):
                continue
            store = text_of(inner.value if isinstance(inner, ast.Subscript) else inner)
            inside = {one for part in own_nodes(program.scope(node)) if exponent_of(program, part) is not None for one in ast.walk(part)}
            frame = program.class_of(node) or program.frame(node)
            free = [one for one in ast.walk(frame) if isinstance(one, (ast.Name, ast.Attribute)) and isinstance(one.ctx, ast.Load) and text_of(one) == store and one not in inside and not _is_kept(program, one)]
            if not free:
                yield Remark(node, f"{short(node)} is smaller the larger {text_of(inner)} is, and nothing else in the loss depends on it")
                break


def _is_kept(program: Program, node: ast.AST) -> bool:
    """Whether a value is only given to an optimizer, or shown."""
    return any(is_torch_optimizer(program, one) or is_name(one.func, "print") for one in program.calls_around(node))


def _is_learned(flow: Flow, node: ast.AST) -> bool:
    """Whether a value is a parameter, or an element of one."""
    at = node.value if isinstance(node, ast.Subscript) else node
    made = flow.value(at)
    if isinstance(made, ast.Call) and flow.program.called(made) == "torch.nn.Parameter":
        return True
    return is_method(made, "requires_grad_") or flow.program.kind_name(at) == "torch.nn.Parameter"
