"""What negatives that are drawn at random may not be. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_call, is_method, last_word, short

_TEST = re.compile(r"(^|_)(tests?|valid\w*|vals?|dev|held_?out|holdout)(_|$)", re.I)
_TRAIN = re.compile(r"(^|_)(train\w*|trn|fit)(_|$)", re.I)
_JUDGES = re.compile(r"eval|test|valid|rank|metric|score|judge|recall|ndcg|mrr|hits", re.I)
_DRAWS = ("randrange", "randint", "integers", "choice", "random_integers")
_BUILT_IN = frozenset({"zip", "enumerate", "range", "set", "frozenset", "map", "tuple", "list", "tolist", "values", "items", "numpy"})
_CHAIN = 4
"""Calls between the draw and the backward."""


def held_out_never_drawn(program: Program) -> Iterator[Remark]:
    """The training draws its negatives anew where one is in a table of known pairs, and the table holds those of the test part."""
    for function in [one for several in program.functions.values() for one in several]:
        if _JUDGES.search(function.name) or not _is_trained_with(program, function):
            continue
        for table, where in _rejections(function):
            filled = next(_filled_with_all(program, table), None)
            if filled is not None:
                yield Remark(where, f"{short(where)} draws no pair that {table} holds, and {short(filled)} (line {filled.lineno}) puts those of the held-out part into it too: training never calls them wrong, as it does all others")
                return


def _rejections(function: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The tables in which a loop looks up what it has drawn, to draw anew: `while j in seen[u]`, `todo = known[r, h, t]`."""
    for loop in ast.walk(function):
        if not isinstance(loop, ast.While):
            continue
        drawn = {name for one in ast.walk(loop) if isinstance(one, ast.Assign) and any(isinstance(part, ast.Call) and last_word(part.func) in _DRAWS for part in ast.walk(one.value)) for name in _names(one.targets)}
        if not drawn:
            continue
        for test in [loop.test, *(one.test for one in ast.walk(loop) if isinstance(one, ast.If))]:
            yield from ((last_word(_root(one.comparators[0])), one) for one in ast.walk(test) if isinstance(one, ast.Compare) and len(one.ops) == 1 and isinstance(one.ops[0], (ast.In, ast.NotIn)) and drawn & _names([one.left]))
        asked = _names([loop.test])
        for one in ast.walk(loop):
            if isinstance(one, ast.Assign) and asked & _names(one.targets) and isinstance(one.value, ast.Subscript):
                yield last_word(_root(one.value)), one.value


def _filled_with_all(program: Program, table: str) -> Iterator[ast.expr]:
    """Where a table is filled with the pairs of all parts: with those of both, or with pairs that are split into parts later."""
    for node in program.everywhere(ast.For, ast.Assign):
        over = None
        if isinstance(node, ast.For) and any(_fills(one, table) for one in ast.walk(node)):
            over = node.iter
        elif isinstance(node, ast.Assign) and table in {last_word(_root(one)) for one in node.targets} and (isinstance(node.value, ast.SetComp) or is_call(node.value, "set", "frozenset")):
            over = node.value
        if over is not None and (_is_both(over) or _is_split_later(program, node, over, table)):
            yield over


def _fills(node: ast.AST, table: str) -> bool:
    """Whether a node puts something into a table."""
    if is_method(node, "add", "append", "update"):
        return isinstance(node.func, ast.Attribute) and last_word(_root(node.func.value)) == table
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript) and last_word(_root(node.targets[0])) == table and isinstance(node.value, ast.Constant) and node.value.value in (True, 1)


def _is_both(node: ast.expr) -> bool:
    """Whether what a loop goes over names the part that is trained on and one that is held out."""
    words = [last_word(one) for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute))]
    return any(map(_TEST.search, words)) and any(map(_TRAIN.search, words))


def _is_split_later(program: Program, fill: ast.AST, over: ast.expr, table: str) -> bool:
    """Whether the pairs that a table is filled with, or the table, are divided afterwards into parts with such names."""
    own = {last_word(one) for part in ast.walk(fill) if isinstance(part, ast.comprehension) for one in ast.walk(part.target)}
    source = (_names([over]) | {table}) - _BUILT_IN - own
    if any(_TRAIN.search(one) or _TEST.search(one) for one in source):
        return False
    found: set[str] = set()
    for one in ast.walk(program.scope(fill)):
        if getattr(one, "lineno", 0) <= getattr(fill, "lineno", 0):
            continue
        targets, value = (one.targets, one.value) if isinstance(one, ast.Assign) else ([one.target], one.value) if isinstance(one, ast.AugAssign) else ([one.target], one.iter) if isinstance(one, (ast.For, ast.comprehension)) else ([], None)
        if value is not None and source & _names([value]):
            names = {last_word(_root(part)) for target in targets for part in (target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target])}
            found |= names
            source |= names if not any(_TEST.search(name) or _TRAIN.search(name) for name in names) else set()
    return any(map(_TEST.search, found)) and any(map(_TRAIN.search, found))


def _is_trained_with(program: Program, function: ast.AST, depth: int = _CHAIN) -> bool:
    """Whether a function runs where the training calls backward, or gives the samples of a data set."""
    name = getattr(function, "name", "")
    if name in ("__getitem__", "__iter__"):
        return True
    for call in program.calls() if depth else ():
        if last_word(call.func) != name:
            continue
        around = program.frame(call)
        if any(is_method(one, "backward") for one in ast.walk(around)) and not _JUDGES.search(getattr(around, "name", "")):
            return True
        if isinstance(around, ast.FunctionDef) and around is not function and not _JUDGES.search(around.name) and _is_trained_with(program, around, depth - 1):
            return True
    return False


def _names(nodes: list[ast.expr]) -> set[str]:
    return {word for node in nodes for one in ast.walk(node) if isinstance(one, (ast.Name, ast.Attribute)) and (word := last_word(one)) not in ("self", "")}


def _root(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Subscript):
        node = node.value
    return node
