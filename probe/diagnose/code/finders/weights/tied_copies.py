"""Weights that two layers are to share, and that are copied. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import computation_of
from probe.diagnose.code.computed.value import KEPT, Value
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short

FINDERS = Finders()
_COPIES = ("clone", "deepcopy", "tensor", "copy", "cat", "add", "numpy")
_MODULES = ("torch.nn.Linear", "torch.nn.Embedding")


@FINDERS.add("tie-broken")
def _tied_by_a_copy(program: Program) -> Iterator[Remark]:
    """Where weights are to be tied, a layer gets a copy of the other one's weight: a parameter of its own."""
    for value in computation_of(program).of("set_attribute"):
        layer, given = (value.args[0], value.args[-1]) if len(value.args) == 2 else (value, value)
        if value.data != "weight" or layer.op not in _MODULES or not _says_tied(program, value):
            continue
        copied: Value | None = None
        while given.op in ("torch.nn.Parameter", "Parameter", *KEPT) and given.args:
            copied = given if given.op in _COPIES else copied
            given = given.args[0]
        other = given.args[0] if given.op == "weight" and given.args else layer
        if copied is not None and other is not layer and other.op in _MODULES:
            yield Remark(value.node, f"{short(copied.node)} (line {copied.line}) is a copy, and {short(value.node)} gets it as a weight of its own: the two layers share nothing")
            return


@FINDERS.add("tie-broken")
def _replaced_after_the_tie(program: Program) -> Iterator[Remark]:
    """Two layers share their weight, and one of them is replaced by a new one afterwards: `net["table"] = nn.Embedding(…)`."""
    computation = computation_of(program)
    for tie in computation.of("set_attribute"):
        shared = tie.args[-1] if len(tie.args) == 2 and tie.data == "weight" else tie
        if shared.op != "weight" or not shared.args or not isinstance(shared.node, ast.Attribute) or not isinstance(tie.node, ast.Attribute):
            continue
        owners = {ast.unparse(one.value) for one in (shared.node, tie.node)}
        for value in computation.of("set_item", "set_attribute"):
            made = value.args[-1] if value.args else value
            later = value.number > tie.number and program.function_of(value.node) is program.function_of(tie.node) and value.where.under == tie.where.under
            new = made.op.startswith(_MODULES) and made.number > tie.number
            again = any(one.op == "set_attribute" and one.data == "weight" and one.number > value.number for one in computation.of("set_attribute"))
            target = _target(program, value)
            if later and new and not again and target in owners:
                yield Remark(value.node, f"{target} becomes {short(made.node)}, which has a weight of its own: line {tie.line} has tied {ast.unparse(tie.node)} to {ast.unparse(shared.node)}")
                return


def _target(program: Program, value: Value) -> str:
    """What a statement gives a new value to."""
    statement = program.statement(value.node)
    return ast.unparse(statement.targets[0]) if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else ""


def _says_tied(program: Program, value: Value) -> bool:
    """Whether the function, or a condition around it, says that weights are tied."""
    function = program.function_of(value.node)
    names = [getattr(function, "name", "")]
    at: ast.AST | None = value.node
    while at is not None and at is not function:
        if isinstance(at, ast.If):
            names.append(ast.unparse(at.test))
        at = program.parent.get(at)
    words = {part for name in names for part in name.lower().replace(".", "_").replace("(", "_").split("_")}
    return bool(words & {"tie", "tied", "ties", "tying", "share", "shared"})
