"""A source file of a program: its text, its tree, and what its names are imported from. Pure."""

from __future__ import annotations

import ast

DEEPEST = 150
"""Expressions within each other: what people write has a tenth of it, and Python allows 1,000 calls within
each other."""


class Source:
    """One file: where it lies, its text by lines, its tree, and what its names are imported from. `failed`
    says why it cannot be read; then the tree may be empty."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text, self.lines = path, text, text.split("\n")
        self.imports: dict[str, str] = {}
        self.failed: str | None = None
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.tree, self.failed = ast.Module([], []), f"{type(error).__name__}: {error}"
        if _deepest(self.tree) > DEEPEST:
            self.failed = "an expression is nested too deeply"


def _deepest(tree: ast.Module) -> int:
    """How deeply the expressions of a file are nested."""
    deepest = 0
    waiting: list[tuple[ast.AST, int]] = [(tree, 0)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        inner = 0 if isinstance(node, ast.stmt) else depth + 1
        waiting += [(child, inner) for child in ast.iter_child_nodes(node)]
    return deepest
