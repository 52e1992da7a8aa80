"""The parsed files of a program: which nodes stand where, and what is around each. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from itertools import chain, takewhile

from probe.diagnose.code.source import Source
from probe.diagnose.code.syntax import Function, Loop, Node, Scope, blocks_of, says, walk


class Parsed:
    """The parsed files of a program. `files` maps a path to its text, or to what was parsed of it; files that
    cannot be read are in `failed`, with the reason. The first file is the script."""

    def __init__(self, files: Mapping[str, str | Source]) -> None:
        found = [one if isinstance(one, Source) else Source(path, one) for path, one in files.items()]
        self.sources = [source for source in found if source.failed is None]
        self.failed = {source.path: source.failed for source in found if source.failed is not None}
        self.source_of: dict[ast.AST, Source] = {}
        self.parent: dict[ast.AST, ast.AST] = {}
        self._of_type: dict[type[ast.AST], list[ast.AST]] = {}
        self._number: dict[ast.AST, int] = {}
        self._found: dict[tuple[type[ast.AST], ...], list[ast.AST]] = {}
        self.functions: dict[str, list[Function]] = {}
        self.classes: dict[str, list[ast.ClassDef]] = {}
        for source in self.sources:
            self._index(source)

    def _index(self, source: Source) -> None:
        for node in walk(source.tree):
            self.source_of[node] = source
            self._of_type.setdefault(type(node), []).append(node)
            self._number[node] = len(self._number)
            for child in ast.iter_child_nodes(node):
                self.parent[child] = node
            if isinstance(node, Function):
                self.functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):
                self.classes.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.partition(".")[0]
                    source.imports[name] = alias.name if alias.asname else name
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    source.imports[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        at = self.parent.get(node)
        while at is not None:
            yield at
            at = self.parent.get(at)

    def scope(self, node: ast.AST) -> Scope:
        """The function, lambda, class or module whose names a node's own names are."""
        for around in self.parents(node):
            if isinstance(around, Scope):
                return around
        assert isinstance(node, ast.Module)
        return node

    def function_of(self, node: ast.AST) -> Function | None:
        """The function around a node; None at the top of a file."""
        return next((one for one in self.parents(node) if isinstance(one, Function)), None)

    def function_name(self, node: ast.AST) -> str | None:
        """Name of the function around a node; None at the top of a file."""
        function = self.function_of(node)
        return None if function is None else function.name

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class whose method a node stands in; None outside of classes."""
        return next((one for one in self.parents(node) if isinstance(one, ast.ClassDef)), None)

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops around a node within its function, innermost first."""
        found: list[Loop] = []
        for around in self.parents(node):
            if isinstance(around, Loop):
                found.append(around)
            elif isinstance(around, Scope):
                break
        return found

    def calls_around(self, node: ast.AST) -> Iterator[ast.Call]:
        """The calls in whose arguments a node stands, within its statement."""
        around = takewhile(lambda one: not isinstance(one, ast.stmt), self.parents(node))
        return (one for one in around if isinstance(one, ast.Call))

    def without_gradient(self, node: ast.AST) -> bool:
        """Whether a node stands under no_grad, within its function."""
        for around in self.parents(node):
            if isinstance(around, (ast.With, ast.AsyncWith)):
                if any(says(item.context_expr, "no_grad", "inference_mode") for item in around.items):
                    return True
            elif isinstance(around, Function):
                return any(says(one, "no_grad", "inference_mode") for one in around.decorator_list)
        return False

    def statement(self, node: ast.AST) -> ast.AST:
        """The innermost statement that a node stands in."""
        return next((one for one in self.parents(node) if isinstance(one, ast.stmt)), node)

    def frame(self, node: ast.AST) -> Function | ast.Module:
        """The function around a node, or its file."""
        return self.function_of(node) or self.source_of[node].tree

    def block(self, statement: ast.AST) -> list[ast.stmt]:
        """The list of statements that a statement stands in; empty for all else."""
        return next((found for found in blocks_of(self.parent.get(statement)) if statement in found), [])

    def after(self, statement: ast.AST) -> list[ast.stmt]:
        """The statements that follow one in its block."""
        block = self.block(statement)
        return block[block.index(statement) + 1 :] if isinstance(statement, ast.stmt) and block else []

    def everywhere(self, *types: type[Node]) -> Iterator[Node]:
        """All nodes of these types in all files, in order of the files."""
        if types not in self._found:
            found = [nodes for kind, nodes in self._of_type.items() if issubclass(kind, types)]
            self._found[types] = sorted(chain(*found), key=self._number.__getitem__)
        return (node for node in self._found[types] if isinstance(node, types))

    def scopes(self) -> Iterator[ast.Module | Function]:
        """All files and functions."""
        return self.everywhere(ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)

    def calls(self) -> Iterator[ast.Call]:
        """All calls in all files."""
        return self.everywhere(ast.Call)
