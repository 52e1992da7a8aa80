"""Critics that learn from a loss that is not theirs. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import CUT
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.targets import with_graph
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_binary,
    is_method,
    is_name,
    is_own,
    last_word,
    names_read,
    operands,
    own,
    returned,
    short,
    text_of,
)
from probe.diagnose.code.torch_losses import is_loss

RULES = Rules("rollout")


@RULES.add("error-shared-with-the-critic", "the policy's loss moves the values to where that loss falls, away from the returns", "take it out of the graph for the policy: log_prob * error.detach()")
def _shared_error(program: Program) -> Iterator[Remark]:
    """One difference of returns and values that is squared for the critic and weights the log probabilities too."""
    flow = flow_of(program)
    for scope in program.scopes():
        yield from _of_scope(program, flow, scope)


def _of_scope(program: Program, flow: Flow, scope: ast.AST) -> Iterator[Remark]:
    squared = {text_of(one.func.value) for one in own(scope, ast.Call) if is_method(one, "pow", "square")}
    squared |= {text_of(one.left) for one in own(scope, ast.BinOp) if is_binary(one, ast.Pow) and flow.number(one.right) == 2}
    for node in own(scope, ast.BinOp):
        for one, other in operands(node) if is_binary(node, ast.Mult) else ():
            given = flow.given(other) if is_name(other) and other.id in squared else None
            if given is None or not re.match(r"log_?p", last_word(one), re.I):
                continue
            local = program.local_function(given.value) if isinstance(given.value, ast.Call) and given.place is not None else None
            results = [value for value in returned(local) if isinstance(value, ast.Tuple)] if local is not None else []
            value = results[0].elts[given.place or 0] if len(results) == 1 and len(results[0].elts) > (given.place or 0) else given.whole
            error = with_graph(flow, value) if value is not None else None
            cut = error is None or any(is_method(part, *CUT) for part in flow.origins(error.right)) or program.without_gradient(error)
            if error is not None and not cut and _of_values(flow, error.right):
                yield Remark(node, f"{short(node)} is differentiated by the values too: {short(other)} is {short(error)}, with the critic's graph")


def _of_values(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is what a module gives, alone or as one of several results."""
    given = flow.given(node) if is_name(node) else None
    made = given.value if given is not None else flow.value(node)
    return isinstance(made, ast.Call) and (flow.program.family(made.func) == "module" or "value" in text_of(made.func).lower() or is_name(made.func, "net", "model", "agent"))


@RULES.add("values-against-a-row", "each value is compared with the return of every step: all of them are pulled towards the mean", "squeeze the values: critic(states).squeeze(-1)")
def _values_against_row(program: Program) -> Iterator[Remark]:
    """The column that a critic gives, added to or compared with a row of returns or rewards."""
    flow = flow_of(program)
    for node in program.everywhere(ast.BinOp):
        if is_binary(node, ast.Add, ast.Sub) and {_axis(flow, node.left), _axis(flow, node.right)} == {"row", "column"}:
            yield Remark(node, f"{short(node)} joins a column (N, 1) and a row (N): what comes out is (N, N)")
    for call in program.calls():
        if is_loss(program, call) and len(call.args) > 1 and {_axis(flow, call.args[0]), _axis(flow, call.args[1])} == {"row", "column"}:
            yield Remark(call, f"{short(call)} compares a column (N, 1) with a row (N): each value with every return")


_ALIKE = ("detach", "float", "to", "cuda", "cpu", "clone", "double", "sigmoid", "tanh")


def _axis(flow: Flow, node: ast.AST, depth: int = 8) -> str | None:
    """Whether a value is a column of a critic, or a row of one number for each step; None where it is not known."""
    one = flow.given(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
    if one is not None and one.place is not None and one.how == "assign" and isinstance(one.value, ast.Call):
        return "column" if _gives_column(flow, one.value.func, one.place) else None
    value = flow.value(node)
    while is_method(value, *_ALIKE) and flow.program.dotted(value.func) is None:
        return _axis(flow, value.func.value, depth - 1) if depth else None
    if is_binary(value, ast.Add, ast.Sub, ast.Mult, ast.Div) and depth:
        sides = [(side, _axis(flow, side, depth - 1)) for side in (value.left, value.right)]
        kinds = {kind for side, kind in sides if not _one_number(flow, side)}
        return kinds.pop() if len(kinds) == 1 else None
    if not isinstance(value, ast.Call):
        return None
    if flow.program.called(value) in ("torch.tensor", "torch.FloatTensor", "torch.as_tensor", "torch.Tensor") and value.args:
        return "row" if _numbers(flow, value.args[0]) else None
    return "column" if _gives_column(flow, value.func, None) else None


def _one_number(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is one number for all steps: a constant, a discount, a mean."""
    return flow.number(node) is not None or bool(re.search(r"gamma|discount|eps", last_word(node), re.I)) or is_method(node, "mean", "std")


def _numbers(flow: Flow, node: ast.AST) -> bool:
    """Whether a list holds discounted sums of rewards, which begin at a number."""
    key = flow.key(node)
    puts = [one.args[-1] for one in flow.calls.get(key, []) if is_method(one, "append", "insert") and one.args] if key is not None else []
    for put in puts:
        bound = flow.bound.get(flow.key(put), []) if flow.key(put) is not None else []  # type: ignore[arg-type]
        begins = any(one.value is not None and flow.number(one.value) == 0 for one in bound)
        sums = [one.value for one in bound if is_binary(one.value, ast.Add) and last_word(put) in names_read(one.value)]
        if not begins or not sums or len(puts) != 1 or not all(_of_plain_rewards(flow, one) for one in sums):
            return False
    return bool(puts)


def _of_plain_rewards(flow: Flow, node: ast.AST) -> bool:
    """Whether the rewards of a sum are taken one by one from a list by a loop, and no tensors of the program."""
    return not any(flow.program.family(one) == "tensor" or isinstance(one, ast.Call) for one in ast.walk(node))


def _gives_column(flow: Flow, func: ast.AST, place: int | None, depth: int = 4) -> bool:
    """Whether what a call runs ends in a Linear layer with one output, and nothing takes that axis away."""
    program = flow.program
    made = flow.made(flow.origin(flow.key(func)))
    if made is None or not depth:
        return False
    name = program.called(made)
    if name == "torch.nn.Linear":
        return place is None and flow.number(argument(made, "out_features", 1)) == 1
    if name == "torch.nn.Sequential":
        last = [one for one in made.args if not (isinstance(one, ast.Call) and not one.args)][-1:]
        return place is None and bool(last) and program.called(last[0]) == "torch.nn.Linear" and isinstance(last[0], ast.Call) and flow.number(argument(last[0], "out_features", 1)) == 1
    of = program.classes.get(name, [])
    forward = program.method(of[0], "forward") if len(of) == 1 else None
    results = returned(forward) if forward is not None else []
    result: ast.AST | None = results[0] if len(results) == 1 else None
    if isinstance(result, ast.Tuple):
        result = result.elts[place] if place is not None and place < len(result.elts) else None
        place = None
    value = flow.value(result)
    return place is None and isinstance(value, ast.Call) and is_own(value.func) and _gives_column(flow, value.func, None, depth - 1)
