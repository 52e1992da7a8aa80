"""What a decoder of CTC leaves out of what it reads. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Many, Value, alternatives, bare, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_string, number_in, short
from probe.diagnose.code.traits.numberings import contents, first_words, is_one_ahead

_COLLAPSES = ("unique_consecutive", "groupby")


def letter_dropped(program: Program) -> Iterator[Remark]:
    """A decoder that joins repeated numbers drops another number than the blank of the loss: one of the letters."""
    computation = computation_of(program)
    for loss in computation.of("ctc_loss"):
        given = loss.argument("blank", 4)
        if given is None or number(given) == 0 or len(loss.args) < 2:
            continue
        for first, table in _first_letters(program, computation, loss.args[1]):
            dropped = next(_dropped(program, first), None)
            if dropped is not None:
                yield Remark(dropped, f"{short(dropped)} leaves out the number {first:g}, which is a letter ({short(table.node)}, line {table.line}): the blank of {short(loss.node)} (line {loss.line}) is {short(given.node)}")
                return


def _first_letters(program: Program, computation: Computation, targets: Value) -> Iterator[tuple[float, Value]]:
    """The number that targets have for the first letter, and where it is given."""
    yield from first_words(computation, targets)
    if any(is_string(one) and (re.fullmatch(r"<\w+>", one.value) or one.value.lower() in ("pad", "blank")) for one in program.everywhere(ast.Constant)):
        return  # which may come first
    for held in contents(computation, targets):
        for one in alternatives(held):
            start = number(one.args[0]) if one.op == "index" and one.data == "enumerate" and one.args else None
            if start is not None:
                yield start, one
        fixed = [number(one) for one in alternatives(held)] if held.op == "either" else [None]
        if None not in fixed:
            yield min(one for one in fixed if one is not None), held


def _dropped(program: Program, letter: float) -> Iterator[ast.Compare]:
    """Comparisons that leave out a number in functions that join what is repeated."""
    for node in program.everywhere(ast.Compare):
        operands = [node.left, *node.comparators]
        fixed = [at for at, one in enumerate(operands) if number_in(one) == letter]
        if len(fixed) != 1 or not _collapses(program.frame(node)):
            continue
        at = fixed[0]
        other = operands[at + 1] if at + 1 < len(operands) else operands[at - 1]
        operation = node.ops[at if at < len(node.ops) else at - 1]
        above = (ast.Lt,) if at < len(node.ops) else (ast.Gt,)
        if isinstance(other, ast.Name | ast.Subscript) and isinstance(operation, (ast.NotEq, *(above if letter == 0 else ()))):
            yield node


def _collapses(frame: ast.AST) -> bool:
    """Whether a function joins numbers that follow each other and are the same."""
    names = {one.attr if isinstance(one, ast.Attribute) else one.id for one in ast.walk(frame) if isinstance(one, ast.Attribute | ast.Name)}
    return any(name in names for name in _COLLAPSES) or any("prev" in name or "last" in name for name in names)


def blanks_before_repeats(program: Program) -> Iterator[Remark]:
    """A decoder of CTC takes the blanks out first, and joins what is repeated then: the blank between two equal letters is
    gone."""
    computation = computation_of(program)
    blanks = {0.0 if (given := loss.argument("blank", 4)) is None else number(given) for loss in computation.of("ctc_loss")}
    blank = blanks.pop() if len(blanks) == 1 else None
    if blank is None:
        return
    for value in computation.of("ne", "eq", "unique_consecutive", "itertools.groupby", "groupby"):
        if value.op in ("ne", "eq"):
            left_out = next((found for one, other in (value.args, value.args[::-1]) if len(value.args) == 2 and (found := _left_out(computation, one, other, blank)) is not None), None)
            left_out = left_out or _left_out_of_neighbours(computation, value, blank)
        else:
            left_out = _without(computation, value.args[0], blank) if value.args else None
        if left_out is not None:
            yield Remark(value.node, f"{short(value.node)} joins what is repeated, and {short(left_out.node)} (line {left_out.line}) has left out the blanks before: a letter that stands twice is read once")
            return
    asked = {id(one.node): one for one in computation.of("ne", "eq") if any(number(each) == blank for each in one.args)}
    for loop in program.everywhere(ast.For):
        compared = _compared_with_the_last_letter(loop, asked)
        if compared is not None:
            yield Remark(compared[0], f"{short(compared[0])} joins what is repeated, and {short(compared[1].node)} (line {compared[1].line}) passes over the blanks: a letter that stands twice is read once")
            return


def _compared_with_the_last_letter(loop: ast.For, asked: dict[int, Value]) -> tuple[ast.Compare, Value] | None:
    """Where a loop compares a letter with the last one that was no blank, and where it passes over the blanks."""
    for place, one in enumerate(loop.body):
        test = asked.get(id(one.test)) if isinstance(one, ast.If) and not one.orelse else None
        if not isinstance(one, ast.If) or test is None:
            continue
        skips = test.op == "eq" and len(one.body) == 1 and isinstance(one.body[0], ast.Continue)
        rest = loop.body[place + 1 :] if skips else one.body if test.op == "ne" else []
        inside = {id(part) for each in rest for part in ast.walk(each)}
        for compared in (part for each in rest for part in ast.walk(each)):
            if not isinstance(compared, ast.Compare) or not isinstance(compared.ops[0], ast.NotEq) or len(compared.ops) != 1:
                continue
            names = [part.id for part in (compared.left, compared.comparators[0]) if isinstance(part, ast.Name)]
            given = [part for part in ast.walk(loop) if isinstance(part, ast.Assign) and any(isinstance(target, ast.Name) and target.id in names for target in part.targets)]
            if len(names) == 2 and given and all(id(part) in inside and isinstance(part.value, ast.Name) and part.value.id in names for part in given):
                return compared, test
    return None


def _left_out_of_neighbours(computation: Computation, value: Value, blank: float) -> Value | None:
    """Where blanks are left out of a row whose neighbours are compared: `row[1:] != row[:-1]`, `row[i] != row[i - 1]`."""
    if len(value.args) != 2:
        return None
    one, other = (bare(each, "int") for each in value.args)
    if one.op == other.op == "part" and len(one.args) == len(other.args) == 2 and one.args[0] is other.args[0]:
        ahead = is_one_ahead(one.args[1], other.args[1]) or is_one_ahead(other.args[1], one.args[1])
        return _without(computation, one.args[0], blank) if ahead else None
    back = next((each for each in (getattr(value.node, "left", None), *getattr(value.node, "comparators", ())) if isinstance(each, ast.Subscript) and _is_one_back(each.slice)), None)
    row = back.value if back is not None and one is other else None
    for target, given in computation.stored.items():
        if not isinstance(row, ast.Name) or target.id != row.id:
            continue
        for held in given:
            if isinstance(held, Many) and held.grown and held.number < value.number and any(bare(part, "int") is one for part in held.parts):
                filtered = isinstance(held.node, ast.ListComp) and any(each.ifs for each in held.node.generators)
                added = filtered or any(each.args[0] is held and any(test in [under for under, _ in each.where.under] for test in _tests(computation, one, blank)) for each in computation.of("append"))
                test = next(_tests(computation, one, blank), None) if added else None
                if test is not None:
                    return test
    return None


def _is_one_back(index: ast.expr) -> bool:
    """Whether an index is that of the place before: `i - 1`."""
    return isinstance(index, ast.BinOp) and isinstance(index.op, ast.Sub) and number_in(index.right) == 1


def _left_out(computation: Computation, letter: Value, last: Value, blank: float) -> Value | None:
    """Where blanks are left out of what is compared with the last one of a list, and put into it."""
    if last.op != "part" or len(last.args) != 2 or number(last.args[1]) != -1 or not isinstance(last.args[0], Many):
        return None
    for added in computation.of("append"):
        if added.args[0] is last.args[0] and len(added.args) > 1 and bare(added.args[1], "int") is bare(letter, "int"):
            return next((one for one in _tests(computation, bare(added.args[1], "int"), blank) if one.number < added.number), None)
    return None


def _tests(computation: Computation, letter: Value, blank: float) -> Iterator[Value]:
    """Where a number is compared with the blank."""
    yield from (one for one in computation.users(letter) if one.op in ("ne", "eq") and any(number(each) == blank for each in one.args))


def _without(computation: Computation, row: Value, blank: float) -> Value | None:
    """Where the blanks are left out of a row."""
    row = row if isinstance(row, Many) else bare(row)
    if isinstance(row, Many):
        return next((test for part in row.parts for test in _tests(computation, bare(part, "int"), blank) if test.number < row.number), None)
    mask = row.args[1] if row.op in ("part", "masked_select") and len(row.args) == 2 else None
    return mask if mask is not None and mask.op == "ne" and number(mask.args[1]) == blank else None
