"""Functions in the loss whose gradient is infinite at a value that their argument can have.

No mistake by itself: whether the value occurs, the source does not say. So these remarks are of an area of their own,
which is only mentioned where the gradients of a training did become NaN or infinite. Pure.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.flow import Flow, flow_of
from probe.diagnose.code.loop.loss_rules import backwards
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import is_binary, is_method, number_in, own_nodes, short
from probe.diagnose.code.traits.backwards import has_gradient

RULES = Rules("numerics")
_BOUNDED = ("clamp", "clamp_min", "clip", "clamp_", "maximum", "max", "nan_to_num", "where")
_SHAPING = ("sum", "mean", "squeeze", "unsqueeze", "view", "reshape")
_MOST_FUNCTIONS = 64


@RULES.add("infinite-gradient", "the backward of a sum of squares of 0 divides 0 by 0, and that of an arc cosine of 1 divides by 0", "add a small number under the root, or clamp the argument")
def _infinite(program: Program) -> Iterator[Remark]:
    """A root of a sum of squares, and an arc cosine, that a loss is computed with."""
    flow = flow_of(program)
    for node in _of_losses(program, flow):
        root = _root_of(program, node)
        if root is not None and _is_square(flow, root) and _may_learn(program, node):
            yield Remark(node, f"{short(node)} has no gradient where what is under the root is 0")
        elif is_method(node, "acos", "arccos", "asin", "arcsin") and isinstance(node, ast.Call):
            given = program.operand(node)
            if given is not None and not any(_keeps_inside(flow, one) for one in flow.origins(given)):
                yield Remark(node, f"{short(node)} has an infinite gradient where its argument is 1 or -1")


def _may_learn(program: Program, node: ast.AST) -> bool:
    """Whether a gradient may flow back from what an expression computes: not where data are made, outside of a network."""
    if program.function_name(node) == "forward":
        return True
    found = [one for one in computation_of(program).values if one.node is node]
    return not found or any(has_gradient(one) for one in found)


def _of_losses(program: Program, flow: Flow) -> Iterator[ast.AST]:
    """The nodes that the losses are computed with, through functions and modules of the program, each once."""
    waiting = [iter(flow.origins(loss)) for _, loss in backwards(program)]
    seen: set[ast.AST] = set()
    functions: set[ast.AST] = set()
    inside: set[ast.AST] = set()
    while waiting:
        for node in waiting.pop():
            if node in seen:
                continue
            seen.add(node)
            yield node
            function = program.local_function(node) if isinstance(node, ast.Call) else None
            if function is None or not isinstance(node, ast.Call) or function in functions or len(functions) >= _MOST_FUNCTIONS:
                continue
            if function.name == "forward" or node in inside or any(_is_learned(program, one) for given in node.args for one in flow.origins(given)):
                functions.add(function)
                nodes = list(own_nodes(function))
                inside.update(nodes)
                waiting.append(iter(nodes))


def _is_learned(program: Program, node: ast.AST) -> bool:
    """Whether a node is the call of a module: what is made of numbers alone has no gradient."""
    return isinstance(node, ast.Call) and program.family(node.func) == "module"


def _keeps_inside(flow: Flow, node: ast.AST) -> bool:
    """Whether a call bounds a value, other than at 1: clamp(-1, 1) lets 1 through."""
    if not is_method(node, *_BOUNDED):
        return False
    return not any(abs(flow.number(one) or 0.0) == 1.0 for one in [*node.args, *(word.value for word in node.keywords)])


def _root_of(program: Program, node: ast.AST) -> ast.expr | None:
    """What a square root is taken of."""
    if is_method(node, "sqrt"):
        return program.operand(node)
    if is_binary(node, ast.Pow) and number_in(node.right) == 0.5:
        return node.left
    if is_method(node, "pow") and len(node.args) == 1 and number_in(node.args[0]) == 0.5:
        return node.func.value
    return None


def _is_square(flow: Flow, node: ast.AST) -> bool:
    """Whether a value is a square or a sum of squares to which nothing is added."""
    value = flow.value(node)
    while is_method(value, *_SHAPING) and (inner := flow.program.operand(value)) is not None:
        value = flow.value(inner)
    if is_binary(value, ast.Pow):
        return number_in(value.right) == 2 and isinstance(flow.value(value.left), (ast.BinOp, ast.Name, ast.Subscript))
    if is_binary(value, ast.Add):
        return _is_square(flow, value.left) and _is_square(flow, value.right)
    return is_method(value, "square") or (is_method(value, "pow") and number_in(value.args[-1] if value.args else None) == 2)
