"""Which of several rows of scores is taken for the result. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import Code, Many, Table, Value, constant, origins
from probe.diagnose.code.finders.objects.folds import is_start
from probe.diagnose.code.finders.training.chosen_scores import TEST, VALIDATION, names_of
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.updates import plain

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
    elif key.op == "part" and key.args[0].op == "element":  # of a row, where the key was followed
        found = constant(key.args[1])
    else:
        found = constant(key.args[0]) if key.op.endswith("itemgetter") and len(key.args) == 1 else None
    return found if isinstance(found, str) else None


def _is_measured(score: Value) -> bool:
    """Whether a score is one of the rows of a loader."""
    return any(one.op == "rows" and "loader" in one.named for one in origins(score))


@FINDERS.add("chosen-by-the-test")
def _best_setting_by_test(program: Program) -> Iterator[Remark]:
    """Each turn of a loop trains a network of its own, and of their scores on the test part the best one is kept; there is no
    validation part."""
    computation = computation_of(program)
    if any(VALIDATION.search(target.id) for target in computation.stored) or any(VALIDATION.search(one.arg) for one in program.everywhere(ast.arg)):
        return
    found: dict[ast.AST, list[tuple[Value, Value, set[int]]]] = {}
    for asked in computation.of("lt", "gt", "le", "ge"):
        for score, best in (asked.args, asked.args[::-1]) if len(asked.args) == 2 else ():
            nets = {id(net): net for one in origins(score) if one.op == "run" and one.where.no_grad for net in [plain(one.args[0])]}
            if not nets or not (is_start(best) or best.op == "either") or not any(TEST.search(name) for name in names_of(computation, score)):
                continue
            anew = any(set(asked.where.loops) & set(net.where.loops) for net in nets.values())
            found.setdefault(asked.node, []).append((asked, score, set(nets) if not anew else set()))
    for several in found.values():
        asked, score, first = several[0]
        if (not first or any(not first & others for _, _, others in several[1:])) and program.loops(asked.node):
            name = next(one for one in names_of(computation, score) if TEST.search(one))
            yield Remark(asked.node, f"{short(asked.node)} keeps the best of several networks by {name}, and nothing else is measured: of many tries the luckiest one is reported")
            return
