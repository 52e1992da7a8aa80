"""What an expression adds up, each term with its sign; exponentials. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import DEPTH, Flow, place_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.syntax import is_attribute, is_binary, is_call, is_method, is_negative, last_word

_FACTORS = ("coef", "weight", "beta", "alpha", "lambda", "lambd", "scale", "batch_size")
"""Words in the names of factors that are positive."""


def exponent_of(program: Program, node: ast.AST | None) -> ast.expr | None:
    """x of torch.exp(x) and x.exp()."""
    if not is_method(node, "exp"):
        return None
    return node.args[0] if program.called(node) == "torch.exp" and node.args else node.func.value


def factors(node: ast.AST) -> Iterator[ast.AST]:
    """What an expression multiplies."""
    if is_binary(node, ast.Mult):
        yield from factors(node.left)
        yield from factors(node.right)
    else:
        yield node


def terms(flow: Flow, node: ast.AST, sign: int = 1, depth: int = DEPTH) -> Iterator[tuple[int, ast.AST]]:
    """What an expression adds up, with signs: through sums, factors that are known, means, and variables;
    a term whose sign is not known has the sign 0."""
    if is_binary(node, ast.Add, ast.Sub):
        yield from terms(flow, node.left, sign, depth)
        yield from terms(flow, node.right, -sign if isinstance(node.op, ast.Sub) else sign, depth)
    elif is_negative(node):
        yield from terms(flow, node.operand, -sign, depth)
    elif is_binary(node, ast.Mult, ast.Div):
        factor, rest = (node.left, node.right) if _positive(flow, node.left) else (node.right, node.left)
        known = _positive(flow, factor)
        if not known or (isinstance(node.op, ast.Div) and factor is node.left):
            yield sign, node
        else:
            yield from terms(flow, rest, sign * known, depth)
    elif isinstance(node, ast.Call) and (inside := _mean_of(flow, node)) is not None:
        yield from terms(flow, inside, sign, depth)
    elif depth and isinstance(node, ast.Name):
        yield from _of_name(flow, node, sign, depth)
    else:
        yield sign, node


def _of_name(flow: Flow, node: ast.Name, sign: int, depth: int) -> Iterator[tuple[int, ast.AST]]:
    if (held := flow.held(node)) is not None:
        yield from terms(flow, held, sign, depth - 1)
        return
    yield sign, node
    key = (flow.program.scope(node), node.id)
    found_here = [one for one in flow.bound.get(key, []) if one.how != "parameter"]
    before = [one for one in found_here if place_of(one.node) < place_of(node)]
    for one in before:  # a sum that is built by += and -=
        if isinstance(one.node, ast.AugAssign) and isinstance(one.node.op, (ast.Add, ast.Sub)):
            other = -sign if isinstance(one.node.op, ast.Sub) else sign
            yield from terms(flow, one.node.value, other, depth - 1)
        elif one.whole is not None and one is before[0]:
            yield from terms(flow, one.whole, sign, depth - 1)


def _positive(flow: Flow, node: ast.AST) -> int:
    """1 or -1: the sign of a factor; 0 where it is not a plain number."""
    found = flow.number(node)
    if found is not None:
        return 1 if found > 0 else -1 if found < 0 else 0
    if is_negative(node):
        return -_positive(flow, node.operand)
    if is_call(node, "len") or is_method(node, "size", "numel"):
        return 1
    if isinstance(node, ast.Subscript) and is_attribute(node.value, "shape"):
        return 1
    plain = any(word in last_word(node).lower() for word in _FACTORS)
    return 1 if plain and flow.program.family(node) not in ("tensor", "module") else 0


def _mean_of(flow: Flow, call: ast.Call) -> ast.AST | None:
    """What a mean or sum is taken of: `x.mean()`, `torch.sum(x, 1)`."""
    if not is_method(call, "mean", "sum", "squeeze", "unsqueeze", "float", "div"):
        return None
    name = flow.program.dotted(call.func)
    if name in ("torch.mean", "torch.sum", "numpy.mean", "numpy.sum"):
        return call.args[0] if call.args else None
    return call.func.value if name is None else None
