"""Which of several rows of scores is taken for the result. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Code, Many, Table, Value, constant, origins
from probe.diagnose.code.finders.training.chosen_scores import TEST, VALIDATION
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()


@FINDERS.add("chosen-by-the-test")
def _best_row_by_test(program: Program) -> Iterator[Remark]:
    """Of rows with a score of the validation part and one of the test part, the row is taken whose score of the test part is best."""
    chosen = [(one, key) for one in computation_of(program).of("max", "min") if (key := _key(one)) is not None]
    if any(VALIDATION.search(key) for _, key in chosen):
        return
    for best, key in chosen:
        rows = best.args[0]
        table = rows.parts[0] if isinstance(rows, Many) and rows.grown and len(rows.parts) == 1 else None
        score = table.entries.get(key) if isinstance(table, Table) else None
        if not isinstance(table, Table) or score is None or not TEST.search(key) or not _is_measured(score):
            continue
        other = next((name for name, one in table.entries.items() if isinstance(name, str) and VALIDATION.search(name) and _is_measured(one)), None)
        if other is not None:
            yield Remark(best.node, f"{short(best.node)} takes the row that scores best on the test part ('{key}'), beside a score of the validation part ('{other}') that decides nothing")
            return


def _key(best: Value) -> str | None:
    """The name of the entry that rows are compared by."""
    key = best.named.get("key")
    if key is None or len(best.args) != 1:
        return None
    if isinstance(key, Code):
        body = key.function.body if isinstance(key.function, ast.Lambda) else None
        found = body.slice.value if isinstance(body, ast.Subscript) and isinstance(body.value, ast.Name) and isinstance(body.slice, ast.Constant) else None
    else:
        found = constant(key.args[0]) if key.op.endswith("itemgetter") and len(key.args) == 1 else None
    return found if isinstance(found, str) else None


def _is_measured(score: Value) -> bool:
    """Whether a score is one of the rows of a loader."""
    return any(one.op == "rows" and "loader" in one.named for one in origins(score))
