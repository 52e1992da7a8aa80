"""Seeds that were to change with the epoch, and stay. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import is_own, last_word, own, short

FINDERS = Finders()
_SEEDS = ("manual_seed", "default_rng", "RandomState", "Random", "seed")


@FINDERS.add("seeded-in-the-loop")
def _epoch_never_set(program: Program) -> Iterator[Remark]:
    """What is drawn anew for each epoch begins with a seed and the number of the epoch, which nothing ever moves on."""
    called = {last_word(one.func) for one in program.calls()}
    if not called & {*_SEEDS} or not any(len(program.loops(one)) > 0 for one in program.everywhere(ast.For)):
        return
    for frame in program.everywhere(ast.ClassDef):
        methods = [one for one in frame.body if isinstance(one, ast.FunctionDef)]
        first = next((one for one in methods if one.name == "__init__"), None)
        walked = next((one for one in methods if one.name == "__iter__"), None)
        if first is None or walked is None:
            continue
        counts = {one.attr for target, given in _given(first) if isinstance(given, ast.Constant) and given.value in (0, 1) and not isinstance(given.value, bool) for one in [target] if is_own(one)}
        for node in own(walked, ast.BinOp):
            inside = [one for one in (node.left, node.right) if is_own(one)]
            count = next((one for one in inside if one.attr in counts), None)
            if not isinstance(node.op, ast.Add) or len(inside) != 2 or count is None or not _is_given_to_a_call(program, node):
                continue
            moved = [one for one in program.everywhere(ast.Attribute) if one.attr == count.attr and isinstance(one.ctx, ast.Store) and next((each for each in program.parents(one) if isinstance(each, ast.FunctionDef)), None) is not first]
            makers = {next((each.name for each in program.parents(one) if isinstance(each, ast.FunctionDef)), None) for one in moved}
            if all(name is not None and name not in called and name != "__iter__" for name in makers) and "setattr" not in called:
                yield Remark(node, f"{short(node)} is the same in each epoch: nothing moves {short(count)} on, and the order of the samples is that of the first one each time")
                return


def _given(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What is stored in a function, and what is given to it."""
    for node in own(function, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield target, node.value


def _is_given_to_a_call(program: Program, node: ast.AST) -> bool:
    return isinstance(program.parent.get(node), ast.Call)
