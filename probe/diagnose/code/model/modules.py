"""The modules of a program, their buffers, the methods of their forward, and the softmax that a value comes
out of. Pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.flow import Flow
from probe.diagnose.code.program import Program
from probe.diagnose.code.syntax import Function, argument, is_method, is_own, is_string, own_nodes

_SOFTMAX = ("torch.softmax", "torch.nn.functional.softmax")
_PASSES = frozenset({"to", "float", "half", "type_as", "contiguous", "type", "bfloat16"})


def module_classes(program: Program) -> Iterator[ast.ClassDef]:
    """The classes of the program that are modules."""
    for classes in program.classes.values():
        yield from (of for of in classes if program.is_module_class(of))


def forwards(program: Program) -> Iterator[Function]:
    """`forward` of each module of the program, and the methods that it calls on self."""
    for of in module_classes(program):
        waiting, seen = ["forward"], {"__init__"}
        while waiting:
            name = waiting.pop()
            method = None if name in seen else program.method(of, name)
            seen.add(name)
            if method is None:
                continue
            yield method
            for node in own_nodes(method):
                if is_method(node) and is_own(node.func):
                    waiting.append(node.func.attr)


def buffer_of(program: Program, node: ast.AST) -> ast.AST | None:
    """What a buffer of self was registered with."""
    of = program.class_of(node)
    if of is None or not isinstance(node, ast.Attribute):
        return None
    for call in ast.walk(of):
        given = call.args if is_method(call, "register_buffer") and len(call.args) > 1 else []
        if given and is_string(given[0]) and given[0].value == node.attr:
            return given[1]
    return None


def softmax_of(flow: Flow, node: ast.AST) -> tuple[ast.Call, ast.AST, ast.AST | None] | None:
    """The softmax that a value comes out of (through dropout and casts), its argument and its axis."""
    for _ in range(8):
        node = flow.value(node)
        if not isinstance(node, ast.Call):
            return None
        name = flow.program.called(node)
        if name in _SOFTMAX and node.args:
            return node, node.args[0], argument(node, "dim", 1)
        made = flow.maker(node)
        of = flow.program.called(made)
        if is_method(node, "softmax") and not name and of != "torch.nn.Softmax":
            return node, node.func.value, argument(node, "dim", 0)
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


def commented(program: Program, scope: ast.AST, name: str) -> bool:
    """Whether a name stands in a comment of a function: its use may be taken out on purpose."""
    lines = program.source_of[scope].lines
    first, last = getattr(scope, "lineno", 1), getattr(scope, "end_lineno", len(lines))
    return any(re.search(rf"#.*\b{re.escape(name)}\b", line) for line in lines[first - 1 : last])
