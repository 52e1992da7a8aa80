"""Noise that is added to the target too, as it is one object with the input. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import SHAPED, Value, bare, number
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.sides import Sides, draws_of, sides_of

FINDERS = Finders()
_VIEWS = SHAPED | {"from_numpy", "numpy", "detach", "data", "as_tensor", "asarray", "T", "t", "transpose", "permute"}
"""Operations whose result mostly shares its memory with what they are done on."""
_DATA = ("rows", "part", "element", "@input", "clamp", "to", "float")


@FINDERS.add("target-changed-with-input")
def _changed_too(program: Program) -> Iterator[Remark]:
    """Noise is added to the input, or a part of it is hidden by a factor, in place, and the target is read of the same memory
    after it."""
    computation = computation_of(program)
    changes = [one for one in computation.of("add", "sub", "mul") if len(one.args) == 2 and _is_in_place(one) and _is_drawn(one) and bare(one.args[0]).op in _DATA]
    for sides in sides_of(computation) if changes else ():
        for change in changes:
            late = _read_later(computation, change, sides) if id(change) in sides.given and (id(change) not in sides.beside or _has_two_names(program, change)) else None
            if late is not None:
                yield Remark(change.node, f"{short(change.node)} changes the tensor itself, and {short(late.node)} (line {late.line}) reads the target of the same memory after it")
                return


def _is_in_place(value: Value) -> bool:
    """Whether an operation writes into what it is done on."""
    if isinstance(value.node, ast.AugAssign):
        return True
    return isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Attribute) and value.node.func.attr == f"{value.op}_"


def _has_two_names(program: Program, value: Value) -> bool:
    """Whether what a method gives that changes a tensor gets another name than the tensor: `noisy = x.add_(noise)`."""
    around = program.parent.get(value.node)
    target = around.targets[0] if isinstance(around, ast.Assign) and around.value is value.node else None
    on = value.node.func.value if isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Attribute) else None
    return isinstance(target, ast.Name) and isinstance(on, ast.Name) and target.id != on.id


def _is_drawn(value: Value) -> bool:
    """Whether what a value is changed by is drawn, a number for each of its own."""
    return number(value.args[1]) is None and bool(draws_of(value.args[1])) and bare(value.args[1]).op not in ("random", "uniform", "gauss", "randint")


def _read_later(computation: Computation, change: Value, sides: Sides) -> Value | None:
    """What is read of the memory that was changed after it, beside the outputs of a model."""
    waiting = [change.args[0], *([change] if id(change) in sides.beside else [])]
    while waiting:
        for one in computation.users(waiting.pop()):
            if one is change or (change in one.args and id(change) not in sides.beside) or id(one) in sides.given:
                continue
            if one.op in _VIEWS and one.number < change.number:
                waiting.append(one)
            elif one.number > change.number and id(one) in sides.beside and one.op not in ("run", "shape", "size", "len", "randn_like", "zeros_like", "ones_like"):
                return one
    return None
