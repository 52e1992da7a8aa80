"""What a decoder of CTC leaves out of what it reads. Pure; standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import Value, alternatives, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Remark
from probe.diagnose.code.syntax import is_string, number_in, short
from probe.diagnose.code.traits.numberings import contents, first_words

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
