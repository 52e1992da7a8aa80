"""Batches that are changed where the data set holds them, in each epoch once more. Pure; standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from probe.diagnose.code.computed.computation import Computation, computation_of
from probe.diagnose.code.computed.value import (
    DRAWN,
    SHAPED,
    Many,
    Table,
    Value,
    comes_from,
    constant,
    number,
    origins,
)
from probe.diagnose.code.program import Program
from probe.diagnose.code.rule import Finders, Remark
from probe.diagnose.code.syntax import short
from probe.diagnose.code.traits.backwards import reaches
from probe.diagnose.code.traits.updates import optimizer_of

FINDERS = Finders()
_VIEWS = SHAPED | {"from_numpy", "as_tensor", "numpy", "T", "t", "transpose", "permute", "swapaxes", "narrow"}
_CUTS = frozenset({"split", "chunk", "tensor_split", "unbind"})
_CHANGES = ("add", "sub", "mul", "div", "set_item", "masked_fill", "copy")
_MADE = frozenset({"randn", "rand", "zeros", "ones", "tensor", "load", "normal", "uniform", "float", "stack", "cat", "where", "div", "sub", "sin", "arange", "array", "astype", "random", "mul", "add", "randint", "from_numpy", "standard_normal", "linspace"})


@FINDERS.add("sample-changed-in-place")
def _batch_of_a_view(program: Program) -> Iterator[Remark]:
    """A slice of the training data, which is no copy, is changed in place in each epoch, and given to the network."""
    computation = computation_of(program)
    said: set[ast.AST] = set()
    for value in computation.of(*_CHANGES):
        if len(value.where.loops) < 2 or value.node in said or not value.args or not _is_in_place(value):
            continue
        view = _view(computation, value.args[0], value)
        if view is None or not _adds_up(value) or not reaches(computation, value, lambda one: one.op == "run" and not one.where.no_grad, lambda one: one.op in _VIEWS or one.op in _CHANGES or one.op in ("float", "to", "clamp", "run")):
            continue
        said.add(value.node)
        yield Remark(value.node, f"{short(value.node)} changes {short(view.node)} where it is stored: a slice is no copy, and each epoch changes it once more")


def _is_in_place(value: Value) -> bool:
    """Whether an operation writes into what it is done on."""
    if value.op == "set_item" or isinstance(value.node, ast.AugAssign):
        return True
    return isinstance(value.node, ast.Call) and isinstance(value.node.func, ast.Attribute) and value.node.func.attr == f"{value.op}_"


def _adds_up(value: Value) -> bool:
    """Whether changing it again gives other numbers than changing it once: it is drawn, or a factor or term of its own."""
    others = [*value.args[1:], *value.named.values()]
    if any(one.op in DRAWN for part in others for one in origins(part)):
        return True
    neutral = 0 if value.op in ("add", "sub") else 1
    if value.op not in ("add", "sub", "mul", "div") or not others or number(others[0]) == neutral:
        return False
    return not any(comes_from(part, one) for part in others for one in value.args[:1])


def _view(computation: Computation, value: Value, change: Value) -> Value | None:
    """The data that a value shares its numbers with, if they were made before the epochs, and are cut the same way in each."""
    loops = change.where.loops
    for _ in range(40):
        if value.op == "set_item" or (value.op in _VIEWS and value.args) or (value.op in _CHANGES and _is_in_place(value)):
            value = value.args[0]
        elif value.op == "part" and len(value.args) == 2 and value.where.loops[:1] == loops[:1] and _is_slice(value.args[1]):
            return value if _is_stored(value.args[0], loops) else None
        elif value.op == "part" and len(value.args) == 2 and value.args[0].op == "element" and isinstance(constant(value.args[1]), int):
            value = value.args[0]
        elif value.op == "element" and value.args and value.args[0].op in _CUTS and value.args[0].args:
            return value if _is_stored(value.args[0].args[0], loops) else None
        else:
            return None
    return None


def _is_slice(index: Value) -> bool:
    """Whether an index takes a stretch of rows: what comes back shares its numbers with the whole."""
    if isinstance(index, Many):
        return bool(index.parts) and index.parts[0].op == "slice" and all(one.op in ("slice", "@constant") for one in index.parts)
    return index.op == "slice"


def _is_stored(value: Value, loops: tuple[ast.AST, ...]) -> bool:
    """Whether data are made before the outermost of some loops, and are no result of a network."""
    while value.op in _VIEWS and value.args:
        value = value.args[0]
    return loops[0] not in value.where.loops and (value.op in _MADE or (value.op == "part" and bool(value.args) and value.args[0].op in (*_MADE, "split", "chunk")))


@FINDERS.add("sample-changed-in-place")
def _data_of_each_epoch(program: Program) -> Iterator[Remark]:
    """Each epoch gives the name of the training data what it makes of them by a draw: the next one begins with that."""
    computation = computation_of(program)
    steps = [one for one in computation.of("step") if optimizer_of(one) is not None]
    for value in computation.of("add", "sub", "mul") if steps else ():
        around = program.parent.get(value.node)
        again = isinstance(value.node, ast.AugAssign) or (
            isinstance(value.node, ast.BinOp) and isinstance(around, ast.Assign) and len(around.targets) == 1 and ast.unparse(around.targets[0]) == ast.unparse(value.node.left)
        )
        loops = value.where.loops
        if not again or not loops or len(value.args) != 2 or value.where.under or value.where.no_grad:
            continue
        start, by = value.args
        drawn = any(one.op in DRAWN and one.where.loops == loops for one in origins(by))
        if not drawn or start.op not in _MADE or loops[0] in start.where.loops or any(one.op in ("run", "grad", "parameters") for one in origins(value)):
            continue
        step = next((one for one in steps if one.number > value.number and one.where.loops[: len(loops)] == loops and len(one.where.loops) > len(loops)), None)
        if step is not None and reaches(computation, value, lambda one: one.op == "run" and not one.where.no_grad, lambda one: one.op in (*_VIEWS, "part", "float", "to", "clamp", "element", *_CUTS)):
            yield Remark(value.node, f"{short(value.node)} changes what {short(start.node)} (line {start.line}) was in each pass of the loop of line {getattr(loops[-1], 'lineno', 0)}: each epoch begins with what the ones before have made of the data")
            return


@FINDERS.add("sample-changed-in-place")
def _sample_of_a_list(program: Program) -> Iterator[Remark]:
    """A data set keeps its samples in a list, each in a dict or a tuple, and changes the array of one where it lies when it is asked
    for it."""
    computation = computation_of(program)
    held: set[int] = set()
    lists = [one for one in computation.values if isinstance(one, Many) and one.grown]
    for value in computation.of(*_CHANGES):
        if not any(getattr(one, "name", "") == "__getitem__" for one in value.where.functions) or not value.args or value.where.under or not _is_in_place(value):
            continue
        drawn = any(one.op in DRAWN and any(getattr(each, "name", "") == "__getitem__" for each in one.where.functions) for part in (*value.args[1:], *value.named.values()) for one in origins(part))
        if not drawn and (not _adds_up(value) or any(one.op in DRAWN for part in value.args[1:] for one in origins(part))):
            continue
        at = value.args[0]
        while (at.op in _VIEWS and at.args) or at.op == "set_item" or (at.op in _CHANGES and _is_in_place(at)):
            at = at.args[0]
        held = held or {id(one) for listed in lists for one in _inside(listed)}
        if id(at) in held and at.op in _MADE and not any(getattr(one, "name", "") in ("__getitem__", "__iter__") for one in at.where.functions):
            yield Remark(value.node, f"{short(value.node)} changes the sample ({short(at.node)}, line {at.line}) where the list holds it: it is changed once more each time it is drawn")
            return


def _inside(value: Value, depth: int = 4) -> Iterator[Value]:
    """What is kept in a list, also in the dicts and tuples in it."""
    for one in value.made_of() if depth else ():
        yield one
        if isinstance(one, (Many, Table)):
            yield from _inside(one, depth - 1)
