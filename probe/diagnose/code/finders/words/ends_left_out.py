"""Ends of texts that a loss leaves out, by values. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Many, Value, bare, origins, same
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()


@FINDERS.add("end-is-the-padding")
def _end_left_out(program: Program) -> Iterator[Remark]:
    """Each row of numbers ends with one that a loss over these rows leaves out, whatever the number is."""
    computation = computation_of(program)
    for loss in computation.of("cross_entropy", "nll_loss"):
        left_out = loss.argument("ignore_index", 4)
        if left_out is None or len(loss.args) < 2 or loss.where.no_grad:
            continue
        row = next((one for one in origins(loss.args[1]) if _ends_with(one, bare(left_out)) and not any(user.op in ("append", "extend") and user.args[0] is one for user in computation.users(one))), None)
        if row is not None:
            yield Remark(loss.node, f"{short(loss.node)} leaves {short(left_out.node)} out of the loss, and each text ends with it: {short(row.node)} (line {row.line})")
            return


def _ends_with(row: Value, end: Value) -> bool:
    """Whether a row is numbers that are looked up, and one behind them that is always the same: `numbers + [end]`."""
    node = row.node
    joined = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and isinstance(node.right, ast.List) and len(node.right.elts) == 1
    listed = isinstance(node, ast.List) and len(node.elts) > 1 and isinstance(node.elts[-2], ast.Starred) and not isinstance(node.elts[-1], ast.Starred)
    if not isinstance(row, Many) or len(row.parts) < 2 or not (joined or listed):
        return False
    last = bare(row.parts[-1])
    # The start may be the same number: what is left out then is the start of the targets, which is never asked for.
    return last.op not in ("rows", "element", "index") and (last is end or same(last, end)) and not (last is bare(row.parts[0]) or same(last, bare(row.parts[0])))
