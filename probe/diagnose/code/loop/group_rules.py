"""What is set for several groups, parameters or layers at once, and reaches only a part of them, or all alike. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.finders.objectives.frozen_tables import frozen_table_with_a_rate
from probe.diagnose.code.finders.weights.lost_groups import groups_flattened
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


@RULES.add("rates-of-groups-lost", "all groups get one rate from the first step on, and those that were made with a smaller one lose it", "keep each group's own rate: group[\"lr\"] = group[\"initial_lr\"] * factor")
def _groups_lost(program: Program) -> Iterator[Remark]:
    """One rate that is set in all groups of an optimizer whose groups were made with different ones."""
    flow = flow_of(program)
    several = [call for call in program.calls() if is_torch_optimizer(program, call) and _different_rates(flow, call)]
    for node, target in _sets_rate(program) if len(several) == 1 else ():
        loops = [one for one in program.loops(node) if isinstance(one, ast.For) and mentions(one.iter, "param_groups") and is_name(one.target)]
        group = loops[0].target if loops else None
        value = node.value
        if not isinstance(node, ast.Assign) or group is None or not is_name(target.value, text_of(group)) or isinstance(value, ast.Subscript):
            continue
        own_rate = any(text_of(group) in names_read(one) for one in flow.origins(value))
        if not own_rate and number_in(value) != 0:
            yield Remark(node, f"{short(node)} is the same for each group, and {short(several[0])} (line {several[0].lineno}) gives them different rates")


def _different_rates(flow: Flow, call: ast.Call) -> bool:
    """Whether an optimizer is made with groups of which at least two have a rate of their own, written differently."""
    groups = flow.value(call.args[0]) if call.args else None
    made = [one for one in groups.elts if isinstance(one, ast.Dict)] if isinstance(groups, ast.List) else []
    rates = {text_of(value) for one in made for key, value in zip(one.keys, one.values, strict=True) if is_string(key) and key.value == "lr"}
    return len(rates) > 1


@RULES.add("loop-variable-in-a-closure", "when it runs, all of them use the value of the last turn of the loop", "bind it where it is made: lambda grad, scale=scale: grad * scale")
def _late_binding(program: Program) -> Iterator[Remark]:
    """A function that is made in a loop and kept, and reads a variable that each turn of the loop sets."""
    for made in program.everywhere(ast.Lambda, ast.FunctionDef):
        loop = next((one for one in program.loops(made) if isinstance(one, ast.For)), None)
        if loop is None or not isinstance(made, (ast.Lambda, ast.FunctionDef)):
            continue
        set_here = names_of(loop.target) | {name for part in loop.body if isinstance(part, ast.Assign) for name in names_of(part.targets[0])}
        body = made.body if isinstance(made.body, list) else [made.body]
        own_names = {one.arg for one in ast.walk(made.args) if isinstance(one, ast.arg)} | {one.id for part in body for one in ast.walk(part) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
        late = sorted(({one.id for part in body for one in ast.walk(part) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)} - own_names) & set_here)
        keeper = _kept_by(program, made, loop)
        if late and keeper is not None:
            yield Remark(made, f"{short(keeper)} keeps a function that reads {late[0]} when it is called: after the loop of line {loop.lineno}, {late[0]} is that of the last turn for all of them")


def _kept_by(program: Program, made: ast.Lambda | ast.FunctionDef, loop: ast.For) -> ast.AST | None:
    """What keeps a function beyond the turn of the loop that made it: a hook, a list, a dict."""
    name = made.name if isinstance(made, ast.FunctionDef) else ""
    if any(is_method(one, "remove") for one in own_nodes(loop)):
        return None  # the hook goes before the next turn
    for one in own_nodes(loop):
        given = one.args if isinstance(one, ast.Call) else []
        here = any(part is made or (name and is_name(part, name)) for part in given)
        if here and is_method(one, "append", "register_hook", "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook", "register_post_accumulate_grad_hook"):
            return one
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Subscript) and (one.value is made or (name and is_name(one.value, name))):
            return one
    return None


RULES.add(
    "frozen-table-with-a-rate",
    "the table keeps the vectors that it was given: the rate of its group changes nothing",
    "nn.Embedding.from_pretrained(vectors, freeze=False)",
)(frozen_table_with_a_rate)


RULES.add(
    "groups-flattened",
    "all parameters have the optimizer's own settings: the rate or decay that was chosen for a group is that of none",
    "give the optimizer the groups themselves: AdamW(groups, lr=...)",
)(groups_flattened)
