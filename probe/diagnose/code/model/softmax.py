"""Which softmax a value comes out of, and which call made a module. Pure."""

from __future__ import annotations

import ast

from probe.diagnose.code.flow import Flow
from probe.diagnose.code.program import Program
from probe.diagnose.code.syntax import argument, is_method

_SOFTMAX = ("torch.softmax", "torch.nn.functional.softmax")
_PASSES = frozenset({"to", "float", "half", "type_as", "contiguous", "type", "bfloat16"})


def softmax_of(
    program: Program, flow: Flow, node: ast.AST
) -> tuple[ast.Call, ast.AST, ast.AST | None] | None:
    """The softmax that a value comes out of (through dropout and casts), its argument and its axis."""
    for _ in range(8):
        node = flow.value(node)
        if not isinstance(node, ast.Call):
            return None
        name = program.called(node)
        if name in _SOFTMAX and node.args:
            return node, node.args[0], argument(node, "dim", 1)
        if is_method(node, "softmax") and not name:
            return node, node.func.value, argument(node, "dim", 0)
        made = flow.maker(node)
        of = program.called(made)
        if made is not None and of == "torch.nn.Softmax" and node.args:
            return node, node.args[0], argument(made, "dim", 0)
        if name.endswith("functional.dropout") or of == "torch.nn.Dropout":
            if not node.args:
                return None
            node = node.args[0]
        elif is_method(node, *_PASSES):
            node = node.func.value
        else:
            return None
    return None
