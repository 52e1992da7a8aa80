"""Weights that two layers are to share, and that are copied. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import KEPT, Code, Value, origins
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


@FINDERS.add("tie-broken")
def _given_anew_in_a_loop(program: Program) -> Iterator[Remark]:
    """Two layers share their weight, and afterwards each layer of the network is given a new parameter as its weight, in a loop over
    the modules or by `apply`."""
    computation = computation_of(program)
    for tie in computation.of("set_attribute"):
        shared = tie.args[-1] if len(tie.args) == 2 and tie.data == "weight" else tie
        if shared.op != "weight" or not shared.args or tie.args[0].op not in _MODULES:
            continue
        layers = {tie.args[0].op, shared.args[0].op}
        again = [one.number for one in computation.of("set_attribute") if one is not tie and one.data == "weight" and one.args[-1].op == "weight"]
        for value in computation.of("set_attribute"):
            made = value.args[-1] if len(value.args) == 2 and value.data == "weight" else value
            when = _reached_at(computation, value)
            asked = [test for test, holds in value.where.under if test.op == "isinstance" and holds and len(test.args) == 2]
            classes = {str(one.data) for test in asked for one in origins(test.args[1]) if one.op == "@library"}
            if made.op == "torch.nn.Parameter" and when is not None and when > tie.number and not any(number > when for number in again) and (not asked or classes & layers):
                yield Remark(value.node, f"{short(value.node)} becomes {short(made.node)} in each layer, a parameter of its own: line {tie.line} has tied {short(tie.node)} to {short(shared.node)}")
                return


def _reached_at(computation: Computation, value: Value) -> int | None:
    """When a loop over all modules of a network, or what is applied to each of them, comes to a value; None where it is no layer of
    such a walk that is changed there."""
    layer = value.args[0] if value.args else value
    if layer.op == "part" and layer.args:  # of `for name, module in net.named_modules()`
        layer = layer.args[0]
    if layer.op == "element" and layer.args and layer.args[0].op in ("modules", "named_modules", "children"):
        return value.number
    if layer.op != "@input" or not value.where.functions:
        return None
    calls = [one for one in computation.of("apply") if len(one.args) == 2 and isinstance(one.args[1], Code) and one.args[1].function is value.where.functions[-1]]
    return max((one.number for one in calls), default=None)
