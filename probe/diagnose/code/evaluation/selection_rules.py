"""The best epoch and early stopping: which score decides, and what is kept of it. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.flow import flow_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark, Rules
from probe.diagnose.code.syntax import (
    short,
)

RULES = Rules("data")

@RULES.add("patience-never-reset", "training ends too early", "set the count to 0 where the score has improved")
def _patience(program: Program) -> Iterator[Remark]:
    """A count of epochs without progress that progress does not set back."""
    flow = flow_of(program)
    for node in program.everywhere(ast.If):
        if not node.orelse or not program.loops(node) or not isinstance(node.test, ast.Compare) or not isinstance(node.test.ops[0], (ast.Lt, ast.LtE, ast.Gt, ast.GtE)):
            continue
        better = {ast.unparse(one) for one in (node.test.left, *node.test.comparators)}
        updated = {ast.unparse(one.targets[0]) for one in ast.walk(ast.Module(node.body, [])) if isinstance(one, ast.Assign)}
        for add in node.orelse:
            if not isinstance(add, ast.AugAssign) or not isinstance(add.op, ast.Add) or flow.number(add.value) != 1 or not better & updated:
                continue
            found = flow.bindings(add.target)
            loop = program.loops(node)[0]
            inside = [one for one in found if loop in program.parents(one.node)] if not isinstance(add.target, ast.Attribute) else found
            ends = any(
                isinstance(one, ast.If) and any(isinstance(inner, ast.Break) for inner in ast.walk(one))
                and ast.unparse(add.target) in {ast.unparse(part) for part in ast.walk(one.test) if isinstance(part, ast.expr)}
                for one in ast.walk(loop)
            )
            if len(inside) == 1 and ends:
                yield Remark(add, f"{short(add.target)} counts every epoch without progress and is never set back to 0: the run stops although it still improves now and then")
