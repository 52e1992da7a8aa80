"""The modules of a program and the methods that their forward runs. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.program import Program
from probe.diagnose.code.syntax import Function, is_method, is_own, own_nodes


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
