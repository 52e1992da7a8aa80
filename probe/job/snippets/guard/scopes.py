"""What the syntax of a snippet says of its names: which are assigned where. Part of the guard.

Standard library only.
"""

from __future__ import annotations

import ast


def assigned(node: ast.AST) -> set[str]:
    """Names that a statement assigns in its own scope, or may."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            found.add(part.id)
        elif isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(part.name)
        elif isinstance(part, ast.alias):
            found.add(part.asname or part.name.partition(".")[0])
        elif isinstance(part, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and part.name is not None:
            found.add(part.name)
        elif isinstance(part, ast.MatchMapping) and part.rest is not None:
            found.add(part.rest)
    return found


def parameters_of(arguments: ast.arguments) -> list[str]:
    """Names of all parameters."""
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg,
        arguments.kwarg]
    return [argument.arg for argument in named if argument is not None]


def defaults(arguments: ast.arguments) -> list[tuple[str, ast.expr]]:
    """Parameters that have a default, with it."""
    plain = [*arguments.posonlyargs, *arguments.args]
    last = plain[len(plain) - len(arguments.defaults) :]
    found = [(argument.arg, default) for argument, default in zip(last, arguments.defaults, strict=True)]
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            found.append((argument.arg, default))
    return found


def annotated(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.expr]:
    """Annotations in the head of a function."""
    parts = [part.annotation for part in ast.walk(node.args) if isinstance(part, ast.arg)]
    return [part for part in (*parts, node.returns) if part is not None]


def has_method(cls: ast.ClassDef, method: str) -> bool:
    """Whether a class defines a method itself."""
    return any(isinstance(one, ast.FunctionDef) and one.name == method for one in cls.body)

