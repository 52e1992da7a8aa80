"""Critics that learn from a loss that is not theirs, or from values that they give themselves. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import CUT, backwards
from probe.diagnose.code.program import Program
from probe.diagnose.code.rollout.targets import SAME_GRAPH, from_module, is_bootstrap, with_graph
from probe.diagnose.code.rollout.terms import factors
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    argument,
    is_binary,
    is_method,
    is_name,
    is_negative,
    is_own,
    last_word,
    names_read,
    operands,
    own,
    returned,
    says,
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
            known = error is not None and (_of_values(flow, error.right) or _is_given(flow, error.right) or _in_one_loss(program, flow, node, text_of(other)))
            if error is not None and not cut and known:
                yield Remark(node, f"{short(node)} is differentiated by the values too: {short(other)} is {short(error)}, with the critic's graph")


def _in_one_loss(program: Program, flow: Flow, product: ast.BinOp, error: str) -> bool:
    """Whether one backward starts from the product and from the square of its error: then the error has a graph."""
    for _, loss in backwards(program):
        found = list(flow.origins(loss))
        squares = any(is_method(one, "pow", "square") and text_of(one.func.value) == error for one in found) or any(is_binary(one, ast.Pow) and text_of(one.left) == error for one in found)
        if product in found and squares:
            return True
    return False


def _of_values(flow: Flow, node: ast.AST) -> bool:
    """Whether an expression is what a module gives, alone or as one of several results."""
    given = flow.given(node) if is_name(node) else None
    made = given.value if given is not None else flow.value(node)
    return isinstance(made, ast.Call) and (flow.program.family(made.func) == "module" or "value" in text_of(made.func).lower() or is_name(made.func, "net", "model", "agent"))


@RULES.add(
    "advantage-with-gradient",
    "the policy's loss moves the values to where that loss falls, away from the returns",
    "take the advantage out of the graph: (returns - values).detach()",
)
def _advantage_with_gradient(program: Program) -> Iterator[Remark]:
    """A log probability times an advantage that keeps the critic's graph, in one backward with its loss."""
    flow = flow_of(program)
    for scope in program.scopes():
        calls = list(own(scope, ast.Call))
        if sum(is_method(one, "backward") for one in calls) > 1:
            continue
        compared = _compared(scope)
        for node in own(scope, ast.BinOp):
            for one, other in operands(node) if is_binary(node, ast.Mult) else ():
                while is_negative(one):
                    one = one.operand
                if not is_method(flow.value(one), "log_prob") and not re.match(r"(new_|cur_)?log_?p(i|rob|$)|logps?$", last_word(one)):
                    continue
                advantage = with_graph(flow, other)
                values = advantage.right if advantage is not None else None
                if values is None or advantage is None or text_of(values) not in compared or program.without_gradient(node):
                    continue
                if from_module(flow, values) or _is_given(flow, values):
                    yield Remark(
                        node,
                        f"{short(node)} is differentiated by the values too: {short(other)} is {short(advantage)}, "
                        "with the critic's graph",
                    )


def _compared(scope: ast.AST) -> set[str]:
    """What a scope gives to losses, or takes from something and squares, with its graph."""
    found: set[str] = set()
    for one in own(scope, ast.Call, ast.BinOp):
        name = last_word(one.func) if isinstance(one, ast.Call) else ""
        parts: list[ast.expr] = []
        if isinstance(one, ast.Call) and (name.endswith("_loss") or "mse" in name.lower() or "huber" in name.lower()):
            parts = one.args[:2]
        difference = one.func.value if is_method(one, "pow", "square") else one.left if is_binary(one, ast.Pow) else None
        if is_binary(difference, ast.Sub):
            parts = [difference.left, difference.right]
        for part in parts:
            while is_method(part, *SAME_GRAPH):
                part = part.func.value
            found.add(text_of(part))
    return found


def _is_given(flow: Flow, node: ast.AST) -> bool:
    """Whether a variable is a parameter of its function, and nothing else."""
    found = flow.bindings(node)
    return bool(found) and all(one.how == "parameter" for one in found)


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


@RULES.add(
    "target-with-gradient", "the loss also falls by moving the target towards the prediction",
    "compute the target under torch.no_grad(), or detach it",
)
def _target_with_gradient(program: Program) -> Iterator[Remark]:
    """A bootstrapped target that keeps the graph of the network whose prediction it is compared with."""
    flow = flow_of(program)
    yield from _of_differences(program, flow)
    for call in program.calls():
        if not is_loss(program, call) or len(call.args) < 2 or program.without_gradient(call):
            continue
        predicted, target = call.args[:2]
        if not is_bootstrap(flow, target) or any(is_method(one, *CUT) for one in flow.origins(target)):
            continue
        networks = _called_networks(flow, predicted)
        for one in flow.origins(target):
            called = isinstance(one, ast.Call) and program.family(one.func) == "module"
            if called and text_of(one.func) in networks and not program.without_gradient(one):  # type: ignore[attr-defined]
                yield Remark(
                    call,
                    f"{short(target, 40)} keeps the graph of {short(one, 40)}, the network that "
                    f"{short(predicted, 40)} is computed by",
                )
                break


def _called_networks(flow: Flow, node: ast.AST) -> set[str]:
    return {
        text_of(one.func) for one in flow.origins(node)
        if isinstance(one, ast.Call) and flow.program.family(one.func) == "module"
    }


def _of_differences(program: Program, flow: Flow) -> Iterator[Remark]:
    """A difference of a value and of a reward with the discounted value of the next state, both with their graph, that is squared."""
    for node in program.everywhere(ast.BinOp):
        if not is_binary(node, ast.Sub) or program.without_gradient(node) or not _is_squared(program, flow, node):
            continue
        for one, other in ((node.left, node.right), (node.right, node.left)):
            target, value = flow.value(one), flow.value(other)
            cut = [part for side in (one, other, target, value) for part in ast.walk(side) if is_method(part, *CUT)]
            if cut or program.without_gradient(target) or program.without_gradient(value) or not is_binary(target, ast.Add) or not isinstance(value, ast.Call):
                continue
            for reward, later in operands(target):
                parts = list(factors(later))
                again = [part for part in parts if isinstance(part, ast.Call) and _same_network(part, value) and text_of(part) != text_of(value)]
                if again and any(says(part, "gamma", "discount") for part in parts) and not is_method(reward, *CUT):
                    yield Remark(node, f"{short(node)} is differentiated through its target too: {short(again[0])} in {short(target)} keeps its graph")


def _same_network(one: ast.Call, other: ast.Call) -> bool:
    """Whether two calls run the same network, or the same method of it."""
    return text_of(one.func) == text_of(other.func) and bool(one.args) and bool(other.args)


def _is_squared(program: Program, flow: Flow, node: ast.BinOp) -> bool:
    """Whether a difference is squared where it stands, or where the function that returns it is called."""
    if any(is_method(one, "pow", "square") or is_binary(one, ast.Pow) for one in list(program.parents(node))[:3]):
        return True
    statement, function = program.statement(node), program.function_of(node)
    if isinstance(statement, ast.Return) and statement.value is node and function is not None:
        places = [program.statement(call) for call in program.calls() if program.local_function(call) is function]
    else:
        places = [statement]
    for place in places:
        name = place.targets[0] if isinstance(place, ast.Assign) else None
        if is_name(name) and any(
            (is_method(one, "pow", "square") and is_name(one.func.value, name.id)) or (is_binary(one, ast.Pow) and is_name(one.left, name.id))
            for one in own(program.frame(place), ast.Call, ast.BinOp)
        ):
            return True
    return False
